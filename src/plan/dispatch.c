/* Which sequence goes into which micro-batch: in the order of the batch, while they fit. The order
 * is kept so that sums over a batch have one order; in-order filling leaves two neighbouring
 * micro-batches with more than one limit of tokens between them, which bounds their number. */
#include "plan/plan.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>

void dt_plan_single(const struct dt_arch *arch, const bool *trainable, bool recompute,
                    int64_t microbatch_tokens, struct dt_plan *out)
{
    *out = (struct dt_plan){.layers = arch->L,
                            .recompute = recompute,
                            .microbatch_tokens = microbatch_tokens,
                            .lowest_trainable = arch->L};
    for (int64_t i = arch->tensor_count - 1; i >= 0; i--)
        if (trainable[i] && arch->tensors[i].segment != DT_SEG_HEAD)
            out->lowest_trainable = arch->tensors[i].layer; /* -1: the embedding */
}

uint64_t dt_plan_hash(const struct dt_plan *p)
{
    int64_t values[] = {1, p->layers, p->recompute, p->microbatch_tokens, p->lowest_trainable};
    return dt_hash(values, sizeof values);
}

int dt_dispatch_new(const struct dt_plan *p, int64_t tokens, struct dt_dispatch *out)
{
    *out = (struct dt_dispatch){.capacity = 2 * (tokens / p->microbatch_tokens) + 2};
    DT_TRY(DT_NEW(&out->first, out->capacity + 1));
    int rc = DT_NEW(&out->tokens, out->capacity);
    if (rc < 0)
        dt_dispatch_free(out);
    return rc;
}

void dt_dispatch_free(struct dt_dispatch *d)
{
    free(d->first);
    free(d->tokens);
    *d = (struct dt_dispatch){0};
}

int dt_dispatch_fill(struct dt_dispatch *d, const struct dt_plan *p, const int64_t *length,
                     int64_t n)
{
    d->microbatches = 0;
    for (int64_t i = 0; i < n; i++) {
        if (length[i] > p->microbatch_tokens)
            return DT_FAIL(DT_E_CONFIG,
                           "a sequence of %lld tokens does not fit microbatch.tokens = %lld; raise "
                           "microbatch.tokens or lower data.max_length",
                           (long long)length[i], (long long)p->microbatch_tokens);
        int64_t m = d->microbatches - 1;
        if (m >= 0 && d->tokens[m] + length[i] <= p->microbatch_tokens) {
            d->tokens[m] += length[i];
            continue;
        }
        if (d->microbatches == d->capacity)
            return DT_FAIL(DT_E_INTERNAL, "a batch of more than %lld micro-batches",
                           (long long)d->capacity);
        d->first[d->microbatches] = i;
        d->tokens[d->microbatches++] = length[i];
    }
    d->first[d->microbatches] = n;
    uint64_t parts[] = {dt_hash(d->first, (size_t)(d->microbatches + 1) * sizeof *d->first),
                        dt_hash(length, (size_t)n * sizeof *length)};
    d->hash = dt_hash(parts, sizeof parts);
    return DT_OK;
}
