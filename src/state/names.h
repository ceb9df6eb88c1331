/* Names of checkpoint directories, and getting rid of one. Private to state/. */
#ifndef DT_STATE_NAMES_H
#define DT_STATE_NAMES_H

#include "base/file.h"

#include <stdbool.h>
#include <stdint.h>

#define DT_NAME_TEMP ".tmp-"
#define DT_NAME_OLD ".old-"
#define DT_NAME_DELETE ".del-"

void dt_save_id(char out[24]); /* 16 hexadecimal digits, never the same twice */

/* DIR/step-00000100 (prefix ""), DIR/.tmp-ID-step-00000100, ... */
int dt_step_path(char out[DT_PATH], const char *dir, const char *prefix, const char *id,
                 int64_t step);
/* Is `name` PREFIX, an id and a dash (none for prefix ""), then step-N? */
bool dt_step_parse(const char *name, const char *prefix, int64_t *step);

/* Renames a checkpoint directory in `dir` to a .del- name, so that it is no checkpoint while half
 * of it is gone, and removes it. */
int dt_checkpoint_discard(const char *dir, const char *path);

#endif
