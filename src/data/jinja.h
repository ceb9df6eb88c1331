/* A small part of Jinja, as much as chat templates need to be *recognised*: they are run on probe
 * conversations and what they write is compared. Never used to write training data. */
#ifndef DT_DATA_JINJA_H
#define DT_DATA_JINJA_H

#include "data/chat.h"

/* Runs a template as transformers would (trim_blocks, lstrip_blocks; messages, bos_token,
 * eos_token, add_generation_prompt; everything else undefined) and appends what it writes. *raised
 * when it called raise_exception. DT_E_UNSUPPORTED with the line for what this part of Jinja does
 * not have, and for a template that takes too many steps or too much memory. */
int dt_jinja_render(const char *source, size_t bytes, const struct dt_turn *turns, int64_t count,
                    bool generation, const char *bos, const char *eos, struct dt_text *out,
                    bool *raised);

#endif
