/* Opening a run, cheapest mistakes first: model, directory and lock, configuration against what
 * stands there, data, memory. A follower (a worker of several) looks at model and data alone: the
 * coordinator has done the rest. */
#include "train/run.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STARTS_WITHOUT_PROGRESS 10

static int open_model(struct dt_run *r)
{
    const struct dt_run_config *c = r->config;
    DT_TRY(dt_model_directory(c->model, r->model_dir));
    DT_TRY(dt_arch_load(r->model_dir, &r->arch));
    DT_TRY(dt_tokenizer_of(r->model_dir, r->arch, &r->tokenizer));
    DT_TRY(DT_NEW(&r->trainable, r->arch->tensor_count));
    DT_TRY(dt_freeze(r->arch, &c->train.freeze, r->trainable));
    bool bounded = r->arch->learned_positions || r->arch->rope.kind == DT_ROPE_DYNAMIC;
    if (c->data.max_length > r->arch->positions && bounded)
        return DT_FAIL(DT_E_CONFIG,
                       "data.max_length = %" PRId64 ", but %s/config.json has %" PRId64
                       " positions; lower data.max_length",
                       c->data.max_length, r->model_dir, r->arch->positions);
    if (c->data.max_length > r->arch->positions)
        dt_warn("data.max_length = %" PRId64 " is beyond the model's %" PRId64 " positions",
                c->data.max_length, r->arch->positions);
    dt_info("model: %s, %s, %.2f M parameters, %" PRId64 " layers, width %" PRId64
            ", vocabulary %" PRId64,
            r->model_dir, dt_family_name(r->arch->family),
            (double)dt_arch_parameters(r->arch) / 1e6, r->arch->L, r->arch->C, r->arch->V);
    return DT_OK;
}

/* Starts that bring no newer checkpoint are counted, so that a scheduler's requeue does not loop
 * for ever. */
static int count_start(const struct dt_run *r)
{
    char path[DT_PATH], *text, line[64];
    size_t size;
    long long step = -1, starts = 0;
    DT_TRY(dt_path_join(path, r->config->output, ".starts"));
    if (dt_file_exists(path) && dt_file_read(path, 256, &text, &size) >= 0) {
        if (sscanf(text, "%lld %lld", &step, &starts) != 2 || step != r->first)
            starts = 0;
        free(text);
    }
    if (starts >= STARTS_WITHOUT_PROGRESS)
        return DT_FAIL(
            DT_E_NO_PROGRESS,
            "%lld starts from step %lld brought no newer checkpoint; look at the log, then "
            "remove %s to try again",
            starts, step, path);
    int n = snprintf(line, sizeof line, "%" PRId64 " %lld\n", r->first, starts + 1);
    if (dt_file_write(path, line, (size_t)n) < 0)
        dt_warn("starts cannot be counted: %s", dt_error_message());
    return DT_OK;
}

/* A start that finds nothing to do is no start without progress. */
static void forget_starts(const struct dt_run *r)
{
    char path[DT_PATH];
    if (dt_path_join(path, r->config->output, ".starts") >= 0)
        unlink(path);
}

/* What a killed start left of files that were being written (base/file.c, data/writer.c name them).
 * `names` begin with one of `stems`, or any when there are none, and go on with `mark` and a
 * process id. */
static int clean_files(const char *dir, const char *const *stems, const char *mark)
{
    struct dt_names names;
    if (!dt_file_is_dir(dir))
        return DT_OK;
    DT_TRY(dt_dir_list(dir, &names));
    for (size_t i = 0; i < names.count; i++) {
        char path[DT_PATH];
        const char *name = names.names[i], *at = strstr(name, mark);
        bool ours =
            at && at[strlen(mark) + strspn(at + strlen(mark), "0123456789")] == '\0' && !stems;
        for (int k = 0; at && stems && stems[k]; k++)
            ours |= strlen(stems[k]) == (size_t)(at - name) &&
                    strncmp(stems[k], name, (size_t)(at - name)) == 0;
        if (ours && dt_path_join(path, dir, name) >= 0 && unlink(path) == 0)
            dt_info("removed %s, left by a run that was killed", path);
    }
    dt_names_free(&names);
    return DT_OK;
}

static int clean(const struct dt_run *r)
{
    static const char *const written[] = {".starts", "config.yaml", ".control", ".cookie", NULL};
    static const char *const meeting[] = {".control", ".cookie"}; /* of workers of a killed run */
    char cache[DT_PATH], path[DT_PATH];
    for (size_t i = 0; i < sizeof meeting / sizeof *meeting; i++)
        if (dt_path_join(path, r->config->output, meeting[i]) >= 0)
            unlink(path);
    DT_TRY(dt_path_join(cache, r->config->output, "cache"));
    DT_TRY(clean_files(r->config->output, written, ".tmp-"));
    DT_TRY(clean_files(cache, NULL, ".tmp."));
    return dt_checkpoint_clean(r->checkpoints);
}

/* Decides where the run goes on: r->first. */
static int find_start(struct dt_run *r)
{
    const struct dt_run_config *c = r->config;
    char moved[DT_PATH], yaml[DT_PATH];
    DT_TRY(clean(r));
    if (r->options->start_over) {
        DT_TRY(dt_checkpoint_set_aside(r->checkpoints, moved));
        if (moved[0])
            dt_info("start over: the old checkpoints are now %s", moved);
    }
    DT_TRY(dt_checkpoint_newest(r->checkpoints, r->checkpoint, &r->saved));
    r->first = r->saved >= 0 ? r->saved : 0;
    DT_TRY(count_start(r));
    if (r->saved < 0)
        return DT_OK;
    DT_TRY(dt_path_join(yaml, c->output, "config.yaml"));
    if (dt_file_exists(yaml))
        DT_TRY(dt_run_config_diff(yaml, c, r->options->allow, r->options->allow_count));
    dt_info("going on from %s", r->checkpoint);
    return DT_OK;
}

static int follow(struct dt_run *r)
{
    const struct dt_train_options *o = r->options;
    r->first = o->first;
    r->saved = o->checkpoint[0] ? o->first : -1;
    snprintf(r->checkpoint, sizeof r->checkpoint, "%s", o->checkpoint);
    return DT_OK;
}

static int open_directory(struct dt_run *r)
{
    const struct dt_run_config *c = r->config;
    r->saved = -1;
    DT_TRY(dt_path_join(r->checkpoints, c->output, "checkpoints"));
    if (r->options->dry_run)
        return DT_OK;
    if (r->options->follow)
        return follow(r);
    DT_TRY(dt_run_lock(c->output, &r->lock));
    r->locked = true;
    return find_start(r);
}

static int write_config(const struct dt_run *r)
{
    char path[DT_PATH], *text = NULL;
    size_t size = 0;
    DT_TRY(dt_path_join(path, r->config->output, "config.yaml"));
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return DT_FAIL(DT_E_MEMORY, "cannot print the configuration: out of memory");
    dt_run_config_print(r->config, f);
    fclose(f);
    int rc = dt_file_write(path, text, size);
    free(text);
    return rc;
}

static struct dt_data_options data_options(const struct dt_run *r, char cache[DT_PATH])
{
    const struct dt_run_config *c = r->config;
    if (c->data.cache || r->options->dry_run)
        snprintf(cache, DT_PATH, "%s", c->data.cache ? c->data.cache : "");
    else
        snprintf(cache, DT_PATH, "%s/cache", c->output);
    return (struct dt_data_options){
        .tokenizer = r->tokenizer,
        .max_length = c->data.max_length,
        .vocab_size = r->arch->V,
        .on_bad_row = (enum dt_bad_row)c->data.on_bad_row,
        .format = c->data.format,
        .chat_template = c->data.chat_template,
        .model_dir = r->model_dir,
        .cache_dir = cache[0] ? cache : NULL,
        .seed = (uint64_t)c->seed,
    };
}

static int open_data(struct dt_run *r)
{
    const struct dt_run_config *c = r->config;
    char cache[DT_PATH];
    struct dt_data_options o = data_options(r, cache);
    DT_TRY(dt_end_of_text(c->data.end_of_text, r->arch, r->tokenizer, &o.end_of_text));
    bool hold_out = c->data.eval.count == 0 && c->data.eval_fraction > 0;
    o.files = (const char *const *)c->data.train.items;
    o.file_count = c->data.train.count;
    o.eval_fraction = hold_out ? c->data.eval_fraction : 0;
    o.part = hold_out ? DT_PART_TRAIN : DT_PART_ALL;
    DT_TRY(dt_dataset_open(&o, &r->train));
    o.part = hold_out ? DT_PART_EVAL : DT_PART_ALL;
    if (c->data.eval.count > 0) {
        o.files = (const char *const *)c->data.eval.items;
        o.file_count = c->data.eval.count;
    }
    if (hold_out || c->data.eval.count > 0)
        DT_TRY(dt_dataset_open(&o, &r->eval));
    /* Training does not need the tokenizer; a vocabulary of 150 000 would stay resident for
     * nothing. */
    dt_tokenizer_close(r->tokenizer);
    r->tokenizer = NULL;
    malloc_trim(0);
    return DT_OK;
}

static int open_sampler(struct dt_run *r)
{
    const struct dt_run_config *c = r->config;
    struct dt_sampler_options o = {.seed = (uint64_t)c->seed,
                                   .shuffle = c->data.shuffle,
                                   .batch_tokens = c->batch.tokens,
                                   .batch_sequences = c->batch.sequences};
    DT_TRY(dt_sampler_new(r->train, &o, &r->sampler));
    r->bound = (struct dt_batch_bound){dt_sampler_max_samples(r->sampler),
                                       dt_sampler_max_tokens(r->sampler), c->data.max_length};
    r->steps = c->train.steps;
    if (c->train.epochs > 0)
        DT_TRY(dt_sampler_steps(r->sampler, c->train.epochs, &r->steps));
    dt_info("data: %" PRId64 " sequences, %" PRId64 " tokens (%" PRId64 " train) · %" PRId64
            " steps",
            dt_dataset_samples(r->train), dt_dataset_tokens(r->train),
            dt_dataset_loss_tokens(r->train), r->steps);
    return DT_OK;
}

static int check_memory(struct dt_run *r)
{
    struct dt_estimate e;
    const char *what;
    DT_TRY(dt_estimate_run(r->arch, r->config, r->trainable, r->bound, 0, -1, &e));
    DT_TRY(dt_estimate_check(r->arch, r->config, r->trainable, r->bound, &e));
    double allowed = (double)dt_memory_allowed(r->config, &what) / 0x1p30;
    char workers[64] = "";
    if (r->config->workers > 1)
        snprintf(workers, sizeof workers, " a worker, %.2f GiB for %" PRId64 " workers",
                 (double)e.all_workers / 0x1p30, r->config->workers);
    dt_info("memory: needs %.2f GiB%s, %.2f GiB allowed by %s (state %.2f, activations %.2f) · "
            "%" PRId64 " of %" PRId64 " parameters train",
            (double)e.total / 0x1p30, workers, allowed, what, (double)e.state / 0x1p30,
            (double)e.activations / 0x1p30, e.trainable, e.parameters);
    return DT_OK;
}

/* A value of trainer.json that must be what this run computes. */
static int same(const json_t *trainer, const char *key, uint64_t value, const struct dt_run *r,
                const char *section)
{
    char now[20];
    const char *then = json_string_value(json_object_get(trainer, key));
    snprintf(now, sizeof now, "%016" PRIx64, value);
    if (!then || strcmp(then, now) == 0)
        return DT_OK;
    /* Confirmed as a section, as a key of it, or as the seed, which the order of the data follows
     * from. */
    for (int i = 0; i < r->options->allow_count; i++) {
        const char *allowed = r->options->allow[i];
        size_t n = strlen(section);
        if ((strncmp(allowed, section, n) == 0 && (allowed[n] == '\0' || allowed[n] == '.')) ||
            (strcmp(allowed, "seed") == 0 && strcmp(section, "data") == 0))
            return DT_OK;
    }
    return DT_FAIL(
        DT_E_CONFIG,
        "the %s behind '%s' is not what the checkpoint was trained with (hash %s then, %s now); "
        "give --allow-change=%s to go on all the same",
        key, section, then, now, section);
}

/* What the checkpoint says of itself fits this run, and how far it had come. */
static int check_trainer(struct dt_run *r)
{
    struct dt_checkpoint c;
    int rc;
    if (!r->checkpoint[0])
        return DT_OK;
    DT_TRY(dt_checkpoint_open(r->checkpoint, &c));
    DT_CHECK(done, rc, same(c.trainer, "arch", r->arch->hash, r, "model"));
    DT_CHECK(done, rc, same(c.trainer, "data", dt_dataset_hash(r->train), r, "data"));
    const char *kernels = json_string_value(json_object_get(c.trainer, "kernels"));
    if (kernels && strcmp(kernels, dt_k->name) != 0)
        dt_warn("the checkpoint was trained with kernel set %s, this run uses %s: results will "
                "differ in the last bits",
                kernels, dt_k->name);
    r->samples = json_integer_value(json_object_get(c.trainer, "samples"));
    r->tokens = json_integer_value(json_object_get(c.trainer, "tokens"));
done:
    dt_checkpoint_close(&c);
    return rc;
}

/* The coordinator of several computes nothing: it opens no team, since teams and children do not go
 * together, but sizes what its workers need. */
static void set_threads(const struct dt_run_config *c, bool compute)
{
    int cores = dt_machine_threads();
    int64_t share = cores / (c->workers > 0 ? c->workers : 1);
    int threads = c->threads > 0 ? (int)c->threads : share > 0 ? (int)share : 1;
    if (compute)
        dt_ops_set_threads(threads);
    else
        dt_ops_assume_threads(threads);
    if (c->workers == 1 && dt_ops_threads() < cores)
        dt_info("threads: %d of %d cores", dt_ops_threads(), cores);
}

int dt_run_open(struct dt_run *r, const struct dt_run_config *config,
                const struct dt_train_options *options)
{
    *r = (struct dt_run){.config = config, .options = options};
    DT_TRY(dt_kernels_select(config->kernels));
    set_threads(config, config->workers == 1 || options->follow);
    DT_TRY(open_model(r));
    DT_TRY(open_directory(r));
    DT_TRY(open_data(r));
    DT_TRY(open_sampler(r));
    if (options->follow)
        return DT_OK;
    DT_TRY(check_memory(r));
    if (options->dry_run)
        return DT_OK;
    DT_TRY(check_trainer(r));
    return write_config(r);
}

bool dt_run_has_work(struct dt_run *r)
{
    if (r->options->dry_run) {
        dt_info("dry run: configuration, model, data and memory are in order; nothing was trained");
        return false;
    }
    if (r->first < r->steps)
        return true;
    forget_starts(r);
    dt_info("nothing to do: step %lld of %lld is already saved; raise train.steps to go on",
            (long long)r->first, (long long)r->steps);
    return false;
}

void dt_run_close(struct dt_run *r)
{
    dt_sampler_free(r->sampler);
    dt_dataset_close(r->eval);
    dt_dataset_close(r->train);
    dt_tokenizer_close(r->tokenizer);
    free(r->trainable);
    dt_arch_free(r->arch);
    if (r->locked)
        dt_run_unlock(&r->lock);
    *r = (struct dt_run){0};
}
