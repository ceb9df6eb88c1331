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

/* What `estimate` looks at. */
struct subject {
    const struct dt_arch *arch;
    const struct dt_run_config *config;
    const bool *trainable;
    struct dt_batch_bound bound;
    size_t preparation;
};

static int add_worker(const struct subject *s, int32_t rank, json_t *list)
{
    struct dt_estimate e;
    DT_TRY(dt_estimate_run(s->arch, s->config, s->trainable, s->bound, s->preparation, rank, &e));
    json_t *w =
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "worker", rank, "state_bytes",
                  (json_int_t)e.state, "activation_bytes", (json_int_t)e.activations, "batch_bytes",
                  (json_int_t)e.batches, "preparation_bytes", (json_int_t)e.preparation,
                  "process_bytes", (json_int_t)e.process, "total_bytes", (json_int_t)e.total);
    return json_array_append_new(list, w) == 0 ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory");
}

static int print_json(struct dt_cli *cli, const struct subject *s, const struct dt_estimate *e,
                      double seconds, double gflops)
{
    json_t *workers = json_array();
    for (int32_t rank = 0; rank < s->config->workers; rank++)
        DT_TRY(add_worker(s, rank, workers));
    return dt_cli_json(
        cli, json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:o}", "total_bytes",
                       (json_int_t)e->all_workers, "parameters", (json_int_t)e->parameters,
                       "trainable", (json_int_t)e->trainable, "flops_per_step", e->step_flops,
                       "seconds_per_step", seconds, "gflops_assumed", gflops, "workers", workers));
}

static void print_text(const struct dt_estimate *e, int64_t workers, double seconds, double gflops,
                       int64_t steps)
{
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = {{"weights, gradients, moments", e->state},
                {"activations and scratch", e->activations},
                {"batches", e->batches},
                {"or: tokenizing, before", e->preparation},
                {"program and libraries", e->process},
                {workers > 1 ? "a worker" : "total", e->total},
                {"all workers, coordinator", e->all_workers}};
    size_t shown = sizeof rows / sizeof *rows - (workers > 1 ? 0 : 1);
    printf("parameters                   %12lld (%lld train)\n", (long long)e->parameters,
           (long long)e->trainable);
    for (size_t i = 0; i < shown; i++)
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
    struct subject s = {.arch = arch,
                        .config = c,
                        .bound = dt_batch_bound_of(c),
                        .preparation = preparation_bytes(c)};
    int rc = DT_NEW(&trainable, arch->tensor_count);
    if (rc >= 0)
        rc = dt_freeze(arch, &c->train.freeze, trainable);
    if (rc >= 0)
        rc = dt_estimate_run(arch, c, trainable, s.bound, s.preparation, -1, &e);
    if (rc >= 0) {
        double gflops = dt_cli_float(cli, "gflops"), seconds = e.step_flops / 1e9 / gflops;
        s.trainable = trainable;
        if (cli->json)
            rc = print_json(cli, &s, &e, seconds, gflops);
        else
            print_text(&e, c->workers, seconds, gflops, c->train.steps);
    }
    if (rc >= 0) {
        const char *what;
        size_t allowed = dt_memory_allowed(c, &what);
        if (e.all_workers > allowed && dt_estimate_check(arch, c, trainable, s.bound, &e) < 0)
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
        int64_t share = dt_machine_threads() / config.workers;
        dt_ops_assume_threads((int)(config.threads > 0 ? config.threads : share > 0 ? share : 1));
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
