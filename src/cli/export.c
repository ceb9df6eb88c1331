/* `ductile export CKPT OUT`: a Hugging Face directory without the trainer's state. */
#include "cli/model_options.h"

#include "arch/arch.h"
#include "state/checkpoint.h"
#include "train/model_files.h"
#include "train/session.h"

#include <string.h>

/* What is passed on loses its checksums, so they are looked at a last time. */
static int verify(const char *from)
{
    char manifest[DT_PATH];
    DT_TRY(dt_path_join(manifest, from, "manifest.json"));
    return dt_file_exists(manifest) ? dt_checkpoint_verify_model(from) : DT_OK;
}

static int run(struct dt_cli *cli)
{
    char from[DT_PATH];
    struct dt_arch *arch;
    bool bf16 = strcmp(dt_cli_string(cli, "dtype"), "bfloat16") == 0;
    if (dt_cli_string(cli, "merge"))
        return DT_FAIL(DT_E_UNSUPPORTED, "--merge: adapters are not built into this version");
    DT_TRY(dt_kernels_select("auto"));
    DT_TRY(dt_model_directory(cli->arguments[0], from));
    DT_TRY(dt_arch_load(from, &arch)); /* what this program cannot read it does not pass on */
    dt_arch_free(arch);
    DT_TRY(verify(from));
    DT_TRY(dt_model_export(from, cli->arguments[1], bf16 ? DT_BF16 : DT_F32));
    dt_info("wrote %s in %s", cli->arguments[1], dt_cli_string(cli, "dtype"));
    return DT_OK;
}

static const struct dt_cli_option options[] = {
    {"dtype", 0, "TYPE", DT_CLI_STRING, .fallback = "bfloat16", .names = dt_cli_dtypes,
     .doc = "of the written weights"},
    {"merge", 0, "ADAPTER", DT_CLI_STRING, .doc = "comes with adapters, in a later version"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_export = {
    .name = "export",
    .run = run,
    .arguments = "CKPT OUT",
    .min_arguments = 2,
    .max_arguments = 2,
    .summary = "a Hugging Face directory from a checkpoint",
    .options = options,
};
