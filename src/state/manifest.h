/* manifest.json of a checkpoint: format, reading, writing. Private to state/. */
#ifndef DT_STATE_MANIFEST_H
#define DT_STATE_MANIFEST_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

struct dt_manifest_range {
    size_t offset, length;
    uint64_t hash;
};

struct dt_manifest_file {
    char *name; /* relative, '/' between folders */
    size_t size;
    struct dt_manifest_range *ranges;
    size_t count, room;
};

struct dt_manifest {
    char save_id[24];
    char created[32];
    int64_t step;
    struct dt_manifest_file *files;
    size_t count;
};

int dt_manifest_add_file(struct dt_manifest *m, const char *name, size_t size);
int dt_manifest_add_range(struct dt_manifest_file *f, size_t offset, size_t length, uint64_t hash);
/* Sorts the ranges; DT_E_CHECKPOINT unless they tile the file exactly. */
int dt_manifest_check_tiles(struct dt_manifest_file *f);
const struct dt_manifest_file *dt_manifest_find(const struct dt_manifest *m, const char *name);

/* The text with its own checksum at the end; free() it. */
int dt_manifest_text(const struct dt_manifest *m, char **text, size_t *size);
/* DIR/manifest.json, checked whole: own checksum, names, tiling. DT_E_CHECKPOINT. */
int dt_manifest_load(const char *dir, struct dt_manifest *out);
/* Every file there, plain, with its size. DT_E_CHECKPOINT. */
int dt_manifest_check_sizes(const char *dir, const struct dt_manifest *m);
void dt_manifest_free(struct dt_manifest *m);

#endif
