/* Element types, named as safetensors names them. */
#ifndef DT_BASE_DTYPE_H
#define DT_BASE_DTYPE_H

#include <stddef.h>

enum dt_dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F64,
    DT_I64,
    DT_I32,
    DT_I16,
    DT_I8,
    DT_U8,
    DT_U16,
    DT_BOOL,
    DT_DTYPES
};

size_t dt_dtype_size(enum dt_dtype t);
const char *dt_dtype_name(enum dt_dtype t);               /* "F32", "BF16", ... */
int dt_dtype_parse(const char *name, enum dt_dtype *out); /* DT_E_DATA if unknown */

#endif
