/* `ductile estimate RUN.yaml`: memory, FLOPs and time, without opening data or a device. */
#include "cli/cli.h"

#include "base/arena.h"
#include "base/machine.h"
#include "train/estimate.h"
#include "train/session.h"

#include <stdlib.h>
#include <sys/stat.h>

/* A plain text is one document and is encoded whole: the text, and five bytes for each of its
 * tokens (ids and their marks) at about 3.3 bytes of text a token. Rows of JSONL are encoded one by
 * one and take nothing that counts. */
static size_t preparation_bytes(const struct dt_run_config *c)
{
    const struct dt_config_strings *lists[] = {&c->data.train, &c->data.eval};
    size_t most = 0;
    for (int l = 0; l < 2; l++)
        for (int64_t i = 0; i < lists[l]->count; i++) {
            struct stat st;
            const char *path = lists[l]->items[i];
            bool rows = dt_path_ends_with(path, ".jsonl") || dt_path_ends_with(path, ".jsonl.gz");
            if (rows || dt_path_ends_with(path, ".bin") || stat(path, &st) != 0)
                continue;
            size_t bytes = (size_t)((double)st.st_size * (1 + 5 / 3.3));
            most = bytes > most ? bytes : most;
        }
    return most;
}

static int print_json(struct dt_cli *cli, const struct dt_estimate *e, double seconds,
                      double gflops)
{
    json_t *worker = json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "worker", 0, "state_bytes",
                               (json_int_t)e->state, "activation_bytes", (json_int_t)e->activations,
                               "batch_bytes", (json_int_t)e->batches, "preparation_bytes",
                               (json_int_t)e->preparation, "process_bytes", (json_int_t)e->process,
                               "total_bytes", (json_int_t)e->total);
    return dt_cli_json(cli, json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:[o]}", "total_bytes",
                                      (json_int_t)e->total, "parameters", (json_int_t)e->parameters,
                                      "trainable", (json_int_t)e->trainable, "flops_per_step",
                                      e->step_flops, "seconds_per_step", seconds, "gflops_assumed",
                                      gflops, "workers", worker));
}

static void print_text(const struct dt_estimate *e, double seconds, double gflops, int64_t steps)
{
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"weights, gradients, moments", e->state},
                {"activations and scratch", e->activations},
                {"batches", e->batches},
                {"or: tokenizing, before", e->preparation},
                {"program and libraries", e->process},
                {"total", e->total}};
    printf("parameters                   %12lld (%lld train)\n", (long long)e->parameters,
           (long long)e->trainable);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-28s %12.1f MiB\n", rows[i].name, (double)rows[i].bytes / 0x1p20);
    printf("FLOPs per step               %12.1f GFLOP\n", e->step_flops / 1e9);
    printf("time per step                %12.2f s at %.0f GFLOP/s\n", seconds, gflops);
    if (steps > 0)
        printf("time of %lld steps           %12.0f s\n", (long long)steps,
               seconds * (double)steps);
}

static int estimate(struct dt_cli *cli, const struct dt_run_config *c)
{
    char dir[DT_PATH];
    struct dt_arch *arch;
    struct dt_estimate e;
    bool *trainable = NULL;
    DT_TRY(dt_model_directory(c->model, dir));
    DT_TRY(dt_arch_load(dir, &arch));
    struct dt_batch_bound bound = dt_batch_bound_of(c);
    int rc = DT_NEW(&trainable, arch->tensor_count);
    if (rc >= 0)
        rc = dt_freeze(arch, &c->train.freeze, trainable);
    if (rc >= 0)
        rc = dt_estimate_run(arch, c, trainable, bound, preparation_bytes(c), &e);
    if (rc >= 0) {
        double gflops = dt_cli_float(cli, "gflops"), seconds = e.step_flops / 1e9 / gflops;
        if (cli->json)
            rc = print_json(cli, &e, seconds, gflops);
        else
            print_text(&e, seconds, gflops, c->train.steps);
    }
    if (rc >= 0) {
        const char *what;
        size_t allowed = dt_memory_allowed(c, &what);
        if (e.total > allowed && dt_estimate_check(arch, c, trainable, bound, &e) < 0)
            dt_warn("%s", dt_error_message());
    }
    free(trainable);
    dt_arch_free(arch);
    return rc;
}

static int run(struct dt_cli *cli)
{
    struct dt_run_config config;
    DT_TRY(dt_run_config_load(cli->arguments[0], cli->overrides, cli->override_count, &config));
    int rc = dt_kernels_select(config.kernels);
    if (rc >= 0) {
        dt_ops_set_threads(config.threads > 0 ? (int)config.threads : dt_machine_threads());
        rc = estimate(cli, &config);
    }
    dt_run_config_free(&config);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"gflops", 0, "N", DT_CLI_FLOAT, .fallback = "300", .min = 0.001, .max = 1e9,
     .doc = "speed to reckon time with, in GFLOP/s; `ductile doctor --measure` tells this "
            "machine's peak"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_estimate = {
    .name = "estimate",
    .run = run,
    .arguments = "RUN.yaml",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "memory by kind, FLOPs and time of a run, without running it",
    .options = options,
    .json = true,
    .config = true,
};
