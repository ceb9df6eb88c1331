/* `ductile train RUN.yaml` */
#include "cli/cli.h"

#include "cluster/cluster.h"

#define MOST_KEYS 64

static int run(struct dt_cli *cli)
{
    struct dt_run_config config;
    const char *allow[MOST_KEYS];
    struct dt_train_options o = {.dry_run = dt_cli_flag(cli, "dry-run"),
                                 .start_over = dt_cli_flag(cli, "start-over")};
    o.allow_count = dt_cli_list(cli, "allow-change", allow, MOST_KEYS);
    o.allow = allow;
    DT_TRY(dt_run_config_load(cli->arguments[0], cli->overrides, cli->override_count, &config));
    int rc = dt_cluster_train(&config, &o);
    dt_run_config_free(&config);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"dry-run", .type = DT_CLI_FLAG,
     .doc = "check configuration, model, data and memory, then stop before the first step"},
    {"start-over", .type = DT_CLI_FLAG,
     .doc = "move existing checkpoints aside and start from the model again"},
    {"allow-change", 0, "KEY", DT_CLI_LIST,
     .doc = "go on although KEY differs from what the run was started with"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_train = {
    .name = "train",
    .run = run,
    .arguments = "RUN.yaml",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "train a model; goes on by itself from the newest checkpoint",
    .details =
        "With `workers` above 1 this process starts them and coordinates; under srun, mpirun or "
        "torchrun's variables its tasks find each other.\nSIGTERM, SIGINT and SIGUSR1 save at the "
        "next step boundary and end with exit code "
        "75; the same command "
        "goes on.\nExit codes: 0 done, 2 bad usage or configuration, 3 bad data or model, "
        "74 the last save failed, "
        "75 stopped or a worker was lost (run again), 93 no progress over several starts, 1 "
        "anything else.",
    .options = options,
    .config = true,
};
