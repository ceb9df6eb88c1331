/* What the files of this room share: one pass over config.json, family by family. */
#ifndef DT_ARCH_INTERNAL_H
#define DT_ARCH_INTERNAL_H

#include "arch/arch.h"

#include "base/json.h"

#define DT_ARCH_DIM ((int64_t)1 << 31) /* bound of every single dimension */

/* What config.json says beyond struct dt_arch, and the tensor table needs. */
struct dt_biases {
    bool qkv, out, mlp;
};

/* refuse.c: DT_E_UNSUPPORTED for a key that changes what is computed, set to something that this
 * engine does not compute. Runs before anything else is read. */
int dt_arch_refuse(struct dt_json_in in, enum dt_family family);

/* attention.c: position encoding and windows, in both spellings. */
int dt_arch_read_rope(struct dt_json_in in, struct dt_arch *a);
int dt_arch_read_windows(struct dt_json_in in, struct dt_arch *a);

/* tensors.c */
int dt_arch_make_tensors(struct dt_arch *a, struct dt_biases biases, const char *where);

#endif
