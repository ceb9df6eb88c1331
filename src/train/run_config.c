/* Loading RUN.yaml: the table does the single keys, this file does what concerns several at once.
 */
#include "train/run_config.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BATCH 16384
#define DEFAULT_MICROBATCH 4096

static void check_batch(struct dt_config *c, struct dt_run_config *cfg)
{
    bool tokens = dt_config_given(c, "batch.tokens"),
         sequences = dt_config_given(c, "batch.sequences");
    if (tokens && sequences)
        dt_config_problem(
            c, "batch.sequences",
            "batch.tokens and batch.sequences are both given; the batch of a step has one size");
    if (!tokens && !sequences)
        cfg->batch.tokens = DEFAULT_BATCH;
    int64_t longest = cfg->data.max_length;
    if (!dt_config_given(c, "microbatch.tokens"))
        cfg->microbatch.tokens = longest > DEFAULT_MICROBATCH ? longest : DEFAULT_MICROBATCH;
    else if (cfg->microbatch.tokens && cfg->microbatch.tokens < longest)
        dt_config_problem(
            c, "microbatch.tokens",
            "microbatch.tokens (%lld) is less than data.max_length (%lld): the longest "
            "sequence would not fit; raise the first or lower the second",
            (long long)cfg->microbatch.tokens, (long long)longest);
}

static void check_length(struct dt_config *c, const struct dt_run_config *cfg)
{
    bool steps = dt_config_given(c, "train.steps"), epochs = dt_config_given(c, "train.epochs");
    if (steps && epochs)
        dt_config_problem(c, "train.epochs",
                          "train.steps and train.epochs are both given; a run has one length");
    if (!steps && !epochs)
        dt_config_problem(c, "train.steps",
                          "neither train.steps nor train.epochs is given; say how long to train");
    int64_t total = cfg->train.steps, warmup = dt_run_config_warmup(cfg, total);
    int64_t decay = dt_run_config_decay(cfg, total);
    if (steps && total && warmup > total)
        dt_config_problem(c, "optimizer.warmup",
                          "optimizer.warmup (%lld) is more than train.steps (%lld)",
                          (long long)warmup, (long long)total);
    else if (steps && total && warmup + decay > total)
        dt_config_problem(
            c, "optimizer.decay",
            "optimizer.warmup (%lld) and optimizer.decay (%lld) together are more than "
            "train.steps (%lld)",
            (long long)warmup, (long long)decay, (long long)total);
    if (cfg->optimizer.warmup.share && cfg->optimizer.schedule == DT_LR_WSD &&
        cfg->optimizer.decay.share && cfg->optimizer.warmup.value + cfg->optimizer.decay.value > 1)
        dt_config_problem(
            c, "optimizer.decay",
            "optimizer.warmup and optimizer.decay together are more than the whole run");
}

/* The list of numbers as integers, in which dispatch reckons. */
static void check_rates(struct dt_config *c, struct dt_run_config *cfg)
{
    int64_t n = cfg->rates.count;
    if (n == 0)
        return;
    if (n != cfg->workers) {
        dt_config_problem(c, "rates", "rates has %lld numbers for %lld workers; one for each",
                          (long long)n, (long long)cfg->workers);
        return;
    }
    cfg->rate = calloc((size_t)n, sizeof *cfg->rate);
    for (int64_t i = 0; i < n && cfg->rate; i++) {
        char *end;
        double x = strtod(cfg->rates.items[i], &end);
        if (*end || end == cfg->rates.items[i] || !(x >= 0.01 && x <= 1000))
            dt_config_problem(c, "rates", "rates: '%s' is not a number from 0.01 to 1000",
                              cfg->rates.items[i]);
        else
            cfg->rate[i] = (int64_t)(x * 1e6 + 0.5);
    }
}

static void check_rest(struct dt_config *c, const struct dt_run_config *cfg)
{
    if (cfg->data.eval.count && cfg->data.eval_fraction > 0)
        dt_config_problem(
            c, "data.eval_fraction",
            "data.eval and data.eval_fraction are both given; documents are held out only "
            "when there are no evaluation files");
}

/* "train.steps=20", "--train.steps=20", "data.shuffle", "no-data.shuffle". */
static void read_override(struct dt_config *c, const char *text)
{
    const char *dashes = strncmp(text, "--", 2) == 0 ? "" : "--", *equals = strchr(text, '=');
    char *option;
    if (asprintf(&option, "%s%.*s", dashes, (int)(equals ? equals - text : (long)strlen(text)),
                 text) < 0) {
        dt_config_problem(c, "", "no memory to read %s", text);
        return;
    }
    dt_config_read_option(c, option, equals ? equals + 1 : NULL);
    free(option);
}

/* Overrides, defaults, checks across keys, and the verdict. On failure *cfg is emptied. */
static int finish(struct dt_config *c, const char *const *overrides, int n,
                  struct dt_run_config *cfg)
{
    for (int i = 0; i < n; i++)
        read_override(c, overrides[i]);
    dt_config_defaults(c);
    check_batch(c, cfg);
    check_length(c, cfg);
    check_rates(c, cfg);
    check_rest(c, cfg);
    int rc = dt_config_end(c);
    if (rc < 0) {
        dt_error_pass(rc, __FILE__, __LINE__);
        dt_run_config_free(cfg);
        return rc;
    }
    if (cfg->eval.every && !cfg->data.eval.count && cfg->data.eval_fraction == 0)
        dt_warn("eval.every is given but there is nothing to evaluate on; give data.eval or "
                "data.eval_fraction");
    return DT_OK;
}

int dt_run_config_load(const char *path, const char *const *overrides, int n,
                       struct dt_run_config *cfg)
{
    struct dt_config *c;
    memset(cfg, 0, sizeof *cfg);
    DT_TRY(dt_config_begin(&dt_run_config_table, cfg, &c));
    dt_config_read_file(c, path);
    return finish(c, overrides, n, cfg);
}

int dt_run_config_parse(const char *name, const char *directory, const void *text, size_t size,
                        const char *const *overrides, int n, struct dt_run_config *cfg)
{
    struct dt_config *c;
    memset(cfg, 0, sizeof *cfg);
    DT_TRY(dt_config_begin(&dt_run_config_table, cfg, &c));
    dt_config_read_text(c, name, directory, text, size);
    return finish(c, overrides, n, cfg);
}

void dt_run_config_free(struct dt_run_config *cfg)
{
    free(cfg->rate);
    cfg->rate = NULL;
    dt_config_clear(&dt_run_config_table, cfg);
}

void dt_run_config_print(const struct dt_run_config *cfg, FILE *f)
{
    dt_config_print(&dt_run_config_table, cfg, f);
}

int64_t dt_run_config_warmup(const struct dt_run_config *cfg, int64_t steps)
{
    return dt_config_amount_of(cfg->optimizer.warmup, steps);
}

int64_t dt_run_config_decay(const struct dt_run_config *cfg, int64_t steps)
{
    if (cfg->optimizer.schedule != DT_LR_WSD)
        return 0;
    return dt_config_amount_of(cfg->optimizer.decay, steps);
}

int dt_run_config_hash(const struct dt_run_config *cfg, uint64_t *out)
{
    struct dt_hasher *h = dt_hasher_new();
    if (!h)
        return DT_FAIL(DT_E_MEMORY, "no memory to hash the configuration");
    for (size_t i = 0; i < dt_run_config_table.count; i++) {
        const struct dt_config_key *key = &dt_run_config_table.keys[i];
        if (key->change != DT_CONFIG_FIXED)
            continue;
        char *value = dt_config_value_text(key, cfg);
        if (!value) {
            dt_hasher_free(h);
            return DT_FAIL(DT_E_MEMORY, "no memory to hash the configuration");
        }
        dt_hasher_add(h, key->name, strlen(key->name) + 1);
        dt_hasher_add(h, value, strlen(value) + 1);
        free(value);
    }
    *out = dt_hasher_value(h);
    dt_hasher_free(h);
    return DT_OK;
}
