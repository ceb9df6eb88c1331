/* What `eval`, `logits`, `generate` and `export` share: --dtype, --threads, --kernels. */
#ifndef DT_CLI_MODEL_OPTIONS_H
#define DT_CLI_MODEL_OPTIONS_H

#include "cli/cli.h"

#include "base/dtype.h"
#include "data/tokenizer.h"

extern const char *const dt_cli_dtypes[];

#define DT_CLI_MODEL_OPTIONS                                                                       \
    {"dtype",                                                                                      \
     0,                                                                                            \
     "TYPE",                                                                                       \
     DT_CLI_STRING,                                                                                \
     .fallback = "bfloat16",                                                                       \
     .names = dt_cli_dtypes,                                                                       \
     .doc = "what enters a matrix product: bfloat16 or float32"},                                  \
        {"threads",       0,        "N",         DT_CLI_INT,                                       \
         .fallback = "0", .min = 0, .max = 4096, .doc = "0: all cores of this process"},           \
    {                                                                                              \
        "kernels", 0, "SET", DT_CLI_STRING, .fallback = "auto",                                    \
                                            .doc = "a kernel set by name; see `ductile doctor`"    \
    }

/* Select kernels, open the team, and say what enters a GEMM. */
int dt_cli_model_options(struct dt_cli *cli, enum dt_dtype *compute);
/* "1,2,3" of --ids, each below V, appended to *out; at least one. */
int dt_cli_ids(const char *text, int64_t V, struct dt_ids *out);

#endif
