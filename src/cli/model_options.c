#include "cli/model_options.h"

#include "base/machine.h"
#include "ops/ops.h"

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
