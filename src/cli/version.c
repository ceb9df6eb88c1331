/* `ductile version`: what this binary is. */
#include "cli/cli.h"

#include <stddef.h>

static int run(struct dt_cli *cli)
{
#if defined(__clang__)
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    if (cli->json)
        return dt_cli_json(cli,
                           json_pack("{s:s, s:s}", "version", DT_VERSION, "compiler", compiler));
    printf("ductile %s (%s)\n", DT_VERSION, compiler);
    return DT_OK;
}

const struct dt_cli_verb dt_cli_verb_version = {
    .name = "version",
    .run = run,
    .arguments = "",
    .summary = "version of this program and the compiler that built it",
    .json = true,
};
