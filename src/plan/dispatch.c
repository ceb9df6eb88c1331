/* Which sequence goes to which worker, and there into which micro-batch.
 *
 * Workers: longest first, each to the worker that would be done with it first. With one worker that
 * is the whole batch. Micro-batches: in the order of the batch, while they fit: sums over a batch
 * then have one order, and two neighbouring micro-batches always hold more than one limit of tokens
 * between them, which bounds their number. Integers only. */
#include "plan/plan.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>

#define HEALTHY 1000000 /* a rate of 1 */

void dt_plan_data_parallel(const struct dt_arch *arch, const bool *trainable, bool recompute,
                           int64_t microbatch_tokens, int32_t workers, const int64_t *rates,
                           struct dt_plan *out)
{
    *out = (struct dt_plan){.layers = arch->L,
                            .recompute = recompute,
                            .microbatch_tokens = microbatch_tokens,
                            .lowest_trainable = arch->L,
                            .workers = workers,
                            .rates = rates};
    for (int64_t i = arch->tensor_count - 1; i >= 0; i--)
        if (trainable[i] && arch->tensors[i].segment != DT_SEG_HEAD)
            out->lowest_trainable = arch->tensors[i].layer; /* -1: the embedding */
}

static int64_t rate(const struct dt_plan *p, int32_t worker)
{
    return p->rates ? p->rates[worker] : HEALTHY;
}

uint64_t dt_plan_hash(const struct dt_plan *p)
{
    uint64_t hash = 0;
    for (int32_t w = 0; w < p->workers; w++) {
        int64_t values[] = {(int64_t)hash, rate(p, w)};
        hash = dt_hash(values, sizeof values);
    }
    int64_t values[] = {
        2,          p->layers,    p->recompute, p->microbatch_tokens, p->lowest_trainable,
        p->workers, (int64_t)hash};
    return dt_hash(values, sizeof values);
}

/* Where LPT puts sequence j: (load + len) x <= (load_v + len) x_v for all v, so (load + len) x
 * Σ 1/x_v <= Σ (load_v + len), which is at most the batch and (N - 1) times the longest. */
int64_t dt_dispatch_most_tokens(const struct dt_plan *p, int32_t rank, int64_t tokens,
                                int64_t longest)
{
    double speed = 0;
    for (int32_t w = 0; w < p->workers; w++)
        speed += 1 / (double)rate(p, w);
    double most = ((double)tokens + (double)(p->workers - 1) * (double)longest) /
                      ((double)rate(p, rank) * speed) +
                  1;
    return most < (double)tokens ? (int64_t)most : tokens;
}

int64_t dt_dispatch_most_microbatches(const struct dt_plan *p, int64_t tokens)
{
    return 2 * (tokens / p->microbatch_tokens) + 2;
}

int dt_dispatch_new(const struct dt_plan *p, int64_t sequences, int64_t tokens,
                    struct dt_dispatch *out)
{
    int rc;
    *out = (struct dt_dispatch){.batch_sequences = sequences,
                                .microbatch_room = dt_dispatch_most_microbatches(p, tokens)};
    DT_CHECK(fail, rc, DT_NEW(&out->sequence, sequences));
    DT_CHECK(fail, rc, DT_NEW(&out->order, sequences));
    DT_CHECK(fail, rc, DT_NEW(&out->worker, sequences));
    DT_CHECK(fail, rc, DT_NEW(&out->load, p->workers));
    DT_CHECK(fail, rc, DT_NEW(&out->first, out->microbatch_room + 1));
    DT_CHECK(fail, rc, DT_NEW(&out->microbatch_tokens, out->microbatch_room));
    return DT_OK;
fail:
    dt_dispatch_free(out);
    return rc;
}

size_t dt_dispatch_bytes(const struct dt_plan *p, int64_t sequences, int64_t tokens)
{
    return (size_t)sequences * (2 * sizeof(int64_t) + sizeof(int32_t)) +
           (size_t)dt_dispatch_most_microbatches(p, tokens) * 2 * sizeof(int64_t);
}

void dt_dispatch_free(struct dt_dispatch *d)
{
    free(d->sequence);
    free(d->order);
    free(d->worker);
    free(d->load);
    free(d->first);
    free(d->microbatch_tokens);
    *d = (struct dt_dispatch){0};
}

/* order[0..n): longest first, equal ones in the order of the batch. Heap sort: in place, and never
 * slow. */
static bool before(const int64_t *length, int64_t a, int64_t b)
{
    return length[a] != length[b] ? length[a] > length[b] : a < b;
}

static void sift(int64_t *order, const int64_t *length, int64_t i, int64_t n)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(length, order[child], order[child + 1]))
            child++;
        if (!before(length, order[i], order[child]))
            return;
        int64_t moved = order[i];
        order[i] = order[child];
        order[child] = moved;
    }
}

static void sort_longest_first(int64_t *order, const int64_t *length, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n / 2; i-- > 0;)
        sift(order, length, i, n);
    for (int64_t end = n; end-- > 1;) {
        int64_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sift(order, length, 0, end);
    }
}

static void assign(struct dt_dispatch *d, const struct dt_plan *p, const int64_t *length, int64_t n)
{
    for (int32_t w = 0; w < p->workers; w++)
        d->load[w] = 0;
    sort_longest_first(d->order, length, n);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = d->order[k];
        int32_t best = 0;
        for (int32_t w = 1; w < p->workers; w++)
            if ((d->load[w] + length[i]) * rate(p, w) < (d->load[best] + length[i]) * rate(p, best))
                best = w;
        d->worker[i] = best;
        d->load[best] += length[i];
    }
}

/* Sequence i of the batch joins the worker's part. */
static int pack(struct dt_dispatch *d, const struct dt_plan *p, int64_t i, int64_t length)
{
    int64_t m = d->microbatches - 1;
    if (m < 0 || d->microbatch_tokens[m] + length > p->microbatch_tokens) {
        if (d->microbatches == d->microbatch_room)
            return DT_FAIL(DT_E_INTERNAL, "a part of more than %lld micro-batches",
                           (long long)d->microbatch_room);
        m = d->microbatches++;
        d->first[m] = d->sequences;
        d->microbatch_tokens[m] = 0;
    }
    d->microbatch_tokens[m] += length;
    d->tokens += length;
    d->sequence[d->sequences++] = i;
    return DT_OK;
}

int dt_dispatch_fill(struct dt_dispatch *d, const struct dt_plan *p, int32_t rank,
                     const int64_t *length, int64_t n)
{
    if (n > d->batch_sequences)
        return DT_FAIL(DT_E_INTERNAL, "a batch of %lld sequences, sized for %lld", (long long)n,
                       (long long)d->batch_sequences);
    for (int64_t i = 0; i < n; i++)
        if (length[i] > p->microbatch_tokens)
            return DT_FAIL(DT_E_CONFIG,
                           "a sequence of %lld tokens does not fit microbatch.tokens = %lld; raise "
                           "microbatch.tokens or lower data.max_length",
                           (long long)length[i], (long long)p->microbatch_tokens);
    assign(d, p, length, n);
    d->sequences = d->tokens = d->microbatches = 0;
    for (int64_t i = 0; i < n; i++)
        if (d->worker[i] == rank)
            DT_TRY(pack(d, p, i, length[i]));
    d->first[d->microbatches] = d->sequences;
    uint64_t parts[] = {dt_hash(d->worker, (size_t)n * sizeof *d->worker),
                        dt_hash(length, (size_t)n * sizeof *length)};
    d->hash = dt_hash(parts, sizeof parts);
    return DT_OK;
}
