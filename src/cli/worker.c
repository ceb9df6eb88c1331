/* `ductile worker`: what an agent starts; not for people. */
#include "cli/cli.h"

#include "cluster/worker.h"

#include <fcntl.h>

static int run(struct dt_cli *cli)
{
    (void)cli;
    if (fcntl(DT_WORKER_CONTROL, F_GETFD) < 0)
        return DT_FAIL(DT_E_USAGE, "workers are started by `ductile train` or `ductile agent`");
    return dt_worker_main();
}

const struct dt_cli_verb dt_cli_verb_worker = {
    .name = "worker",
    .run = run,
    .arguments = "",
    .summary = "one worker of a run; started by an agent",
    .hidden = true,
};
