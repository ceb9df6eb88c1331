#include "base/dtype.h"

#include "base/error.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} table[DT_DTYPES] = {
    [DT_F32] = {"F32", 4}, [DT_BF16] = {"BF16", 2}, [DT_F16] = {"F16", 2},   [DT_F64] = {"F64", 8},
    [DT_I64] = {"I64", 8}, [DT_I32] = {"I32", 4},   [DT_I16] = {"I16", 2},   [DT_I8] = {"I8", 1},
    [DT_U8] = {"U8", 1},   [DT_U16] = {"U16", 2},   [DT_BOOL] = {"BOOL", 1},
};

size_t dt_dtype_size(enum dt_dtype t)
{
    return table[t].size;
}

const char *dt_dtype_name(enum dt_dtype t)
{
    return table[t].name;
}

int dt_dtype_parse(const char *name, enum dt_dtype *out)
{
    for (int i = 0; i < DT_DTYPES; i++)
        if (strcmp(table[i].name, name) == 0) {
            *out = (enum dt_dtype)i;
            return DT_OK;
        }
    return DT_FAIL(DT_E_DATA, "tensor type '%.40s' is not known", name);
}
