#include "train/estimate.h"

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a run has beside its arenas, measured (tests/unit/train/test_train_estimate.c holds it to
 * VmHWM): pages of the program and its libraries that only training touches, stacks of the team and
 * the data thread, buffers. */
#define PROCESS_EXTRA ((size_t)6 << 20)
/* And what the transport of a worker takes beside: its library, endpoints, queues. */
#define COMM_EXTRA ((size_t)6 << 20)

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct dt_batch_bound dt_batch_bound_of(const struct dt_run_config *c)
{
    int64_t longest = c->data.max_length;
    if (c->batch.sequences > 0)
        return (struct dt_batch_bound){c->batch.sequences, c->batch.sequences * longest, longest};
    int64_t tokens = c->batch.tokens > longest ? c->batch.tokens : longest;
    return (struct dt_batch_bound){tokens, tokens, longest};
}

int dt_freeze(const struct dt_arch *arch, const struct dt_config_strings *patterns, bool *trainable)
{
    for (int64_t i = 0; i < arch->tensor_count; i++)
        trainable[i] = true;
    for (int64_t p = 0; p < patterns->count; p++) {
        bool matched = false;
        for (int64_t i = 0; i < arch->tensor_count; i++)
            if (fnmatch(patterns->items[p], arch->tensors[i].name, 0) == 0) {
                trainable[i] = false;
                matched = true;
            }
        if (!matched)
            return DT_FAIL(DT_E_CONFIG,
                           "train.freeze: '%s' matches no tensor; names are like '%s' and '%s'",
                           patterns->items[p], arch->tensors[0].name,
                           arch->tensors[arch->tensor_count / 2].name);
    }
    return DT_OK;
}

struct dt_state_options dt_state_options_of(const struct dt_run_config *c, const bool *trainable,
                                            int32_t rank, struct dt_comm *comm)
{
    return (struct dt_state_options){.kind = DT_STATE_TRAIN,
                                     .trainable = trainable,
                                     .rank = rank,
                                     .workers = (int32_t)c->workers,
                                     .comm = comm,
                                     .exact = c->reduction == DT_REDUCTION_EXACT};
}

/* Evaluation takes a micro-batch for every worker at a time. */
struct dt_executor_options dt_executor_options_of(const struct dt_run_config *c,
                                                  struct dt_batch_bound bound, int32_t rank)
{
    int64_t evaluated = c->microbatch.tokens * c->workers;
    bound.tokens = bound.tokens > evaluated ? bound.tokens : evaluated;
    return (struct dt_executor_options){
        .compute = c->train.dtype == DT_RUN_FLOAT32 ? DT_F32 : DT_BF16,
        .train = true,
        .recompute = c->train.recompute == DT_RECOMPUTE_BLOCK,
        .exact = c->reduction == DT_REDUCTION_EXACT,
        .microbatch_tokens = c->microbatch.tokens,
        .positions = c->data.max_length,
        .bound = bound,
        .rank = rank,
        .workers = (int32_t)c->workers,
        .rates = c->rate,
    };
}

static size_t resident_now(void)
{
    char *text;
    size_t size;
    unsigned long long pages = 0;
    if (dt_file_read("/proc/self/statm", 4096, &text, &size) < 0)
        return 0;
    sscanf(text, "%*s %llu", &pages);
    free(text);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* State, activations and batches of one worker. */
static int estimate_rank(const struct dt_arch *arch, const struct dt_run_config *c,
                         const bool *trainable, struct dt_batch_bound bound, int32_t rank,
                         struct dt_estimate *out)
{
    struct dt_state_options so = dt_state_options_of(c, trainable, rank, NULL);
    struct dt_executor_options eo = dt_executor_options_of(c, bound, rank);
    struct dt_plan plan;
    DT_TRY(dt_state_bytes(arch, &so, &out->state));
    out->activations = dt_executor_bytes(arch, &eo);
    dt_executor_plan(arch, trainable, &eo, &plan);
    out->batches = 2 * dt_global_batch_bytes(&plan, rank, &bound) +
                   dt_global_batch_bytes(&plan, rank, &eo.bound);
    return DT_OK;
}

static size_t needs(const struct dt_estimate *e)
{
    return e->state + e->activations + e->batches;
}

/* The worker that needs most: shares of home differ by blocks, shares of a batch by the rates.
 * *all: what all of them need. */
static int estimate_worst(const struct dt_arch *arch, const struct dt_run_config *c,
                          const bool *trainable, struct dt_batch_bound bound,
                          struct dt_estimate *out, size_t *all)
{
    int32_t ranks = c->rate ? (int32_t)c->workers : 1;
    *all = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        struct dt_estimate e = *out;
        DT_TRY(estimate_rank(arch, c, trainable, bound, rank, &e));
        *all += max_size(needs(&e), e.preparation) * (size_t)(c->workers / ranks);
        if (rank == 0 || needs(&e) > needs(out))
            *out = e;
    }
    return DT_OK;
}

int dt_estimate_run(const struct dt_arch *arch, const struct dt_run_config *c,
                    const bool *trainable, struct dt_batch_bound bound, size_t preparation,
                    int32_t rank, struct dt_estimate *out)
{
    static size_t
        process; /* the program before it opened anything big: the first estimate sees that */
    size_t all = 0;
    *out = (struct dt_estimate){.preparation = preparation};
    DT_TRY(rank < 0 ? estimate_worst(arch, c, trainable, bound, out, &all)
                    : estimate_rank(arch, c, trainable, bound, rank, out));
    if (!process)
        process = resident_now();
    out->process = process + PROCESS_EXTRA + (c->workers > 1 ? COMM_EXTRA : 0);
    out->total = out->process + max_size(needs(out), preparation);
    out->all_workers = c->workers > 1
                           ? (size_t)c->workers * out->process + all + process + PROCESS_EXTRA
                           : out->total;
    out->parameters = dt_arch_parameters(arch);
    for (int64_t i = 0; i < arch->tensor_count; i++)
        out->trainable += trainable[i] ? arch->tensors[i].rows * arch->tensors[i].cols : 0;
    int64_t length = min64(c->data.max_length, bound.tokens);
    out->step_flops =
        3 * dt_arch_forward_flops(arch, length) * ((double)bound.tokens / (double)length);
    return DT_OK;
}

size_t dt_memory_allowed(const struct dt_run_config *c, const char **what)
{
    struct dt_machine_memory m;
    dt_machine_memory(&m);
    int64_t free_now = dt_machine_memory_free();
    size_t limit = free_now > 0 ? (size_t)free_now : (size_t)-1;
    *what = m.limit > 0 && m.limit - m.used <= free_now ? "the control group's limit"
                                                        : "what the machine has free";
    if (c->memory.limit > 0 && (size_t)c->memory.limit << 20 < limit) {
        limit = (size_t)c->memory.limit << 20;
        *what = "memory.limit";
    }
    return limit;
}

/* The smallest change that fits: recomputation, smaller micro-batches, both. */
static void advise(const struct dt_arch *arch, const struct dt_run_config *c, const bool *trainable,
                   struct dt_batch_bound bound, const struct dt_estimate *e, size_t limit,
                   char *out, size_t size)
{
    struct dt_run_config other = *c;
    struct dt_estimate smaller;
    for (int recompute = c->train.recompute; recompute <= DT_RECOMPUTE_BLOCK; recompute++) {
        other.train.recompute = recompute;
        for (int64_t tokens = c->microbatch.tokens; tokens >= c->data.max_length; tokens /= 2) {
            other.microbatch.tokens = tokens;
            if (dt_estimate_run(arch, &other, trainable, bound, e->preparation, -1, &smaller) < 0 ||
                smaller.all_workers > limit)
                continue;
            char microbatch[64] = "";
            if (tokens != c->microbatch.tokens)
                snprintf(microbatch, sizeof microbatch, "microbatch.tokens: %lld",
                         (long long)tokens);
            snprintf(out, size, "%s%s%s brings it to %.2f GiB", microbatch,
                     microbatch[0] && recompute != c->train.recompute ? " with " : "",
                     recompute != c->train.recompute ? "train.recompute: block" : "",
                     (double)smaller.all_workers / 0x1p30);
            return;
        }
    }
    other.microbatch.tokens = c->data.max_length;
    other.train.recompute = DT_RECOMPUTE_BLOCK;
    snprintf(out, size,
             "no setting of microbatch.tokens and train.recompute is enough (at data.max_length = "
             "%lld); "
             "lower data.max_length, freeze tensors or take a smaller model",
             (long long)c->data.max_length);
    if (dt_estimate_run(arch, &other, trainable, bound, e->preparation, -1, &smaller) >= 0) {
        size_t used = strlen(out);
        snprintf(out + used, size - used, " (%.2f GiB is the least)",
                 (double)smaller.all_workers / 0x1p30);
    }
}

int dt_estimate_check(const struct dt_arch *arch, const struct dt_run_config *c,
                      const bool *trainable, struct dt_batch_bound bound,
                      const struct dt_estimate *e)
{
    const char *what;
    char advice[512];
    size_t limit = dt_memory_allowed(c, &what);
    if (e->all_workers <= limit)
        return DT_OK;
    advise(arch, c, trainable, bound, e, limit, advice, sizeof advice);
    return DT_FAIL(DT_E_CONFIG, "this run needs %.2f GiB, but %s allows %.2f GiB; %s",
                   (double)e->all_workers / 0x1p30, what, (double)limit / 0x1p30, advice);
}
