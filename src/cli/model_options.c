#include "cli/model_options.h"

#include "base/machine.h"
#include "ops/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_cli_dtypes[] = {"bfloat16", "float32", NULL};

int dt_cli_model_options(struct dt_cli *cli, enum dt_dtype *compute)
{
    int64_t threads = dt_cli_int(cli, "threads");
    *compute = strcmp(dt_cli_string(cli, "dtype"), "float32") == 0 ? DT_F32 : DT_BF16;
    DT_TRY(dt_kernels_select(dt_cli_string(cli, "kernels")));
    dt_ops_set_threads(threads > 0 ? (int)threads : dt_machine_threads());
    return DT_OK;
}

int dt_cli_ids(const char *text, int64_t V, struct dt_ids *out)
{
    const char *p = text;
    for (char *end;; p = end + 1) {
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || (*end != ',' && *end != '\0'))
            return DT_FAIL(DT_E_USAGE,
                           "--ids: expected numbers with commas between them, found '%.40s'", p);
        if (id < 0 || id >= V)
            return DT_FAIL(DT_E_DATA, "--ids: %lld is not below the model's vocabulary of %lld", id,
                           (long long)V);
        DT_TRY(dt_ids_push(out, (int32_t)id));
        if (*end == '\0')
            return DT_OK;
    }
}
