/* Which samples make the batch of step s.
 *
 * Epoch e stands in the order of a Fisher-Yates shuffle whose draws are keyed by (seed, e); batches
 * are cut from that order greedily. Both follow from (seed, e) alone, so a step can be found from
 * nothing but its number: the epochs before it are walked once for their number of steps, and the
 * cuts of the current epoch are kept. */
#include "base/arena.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct dt_sampler {
    const struct dt_dataset *d;
    struct dt_sampler_options o;
    int64_t n, most_samples, most_tokens;
    int64_t epoch;  /* whose order is held; -1: none */
    int64_t *order; /* [n] */
    int64_t *cuts;  /* first place in the order of each step; cut_count + 1 */
    int64_t cut_count, cut_room;
    int64_t *first_steps;      /* first step of each epoch known so far */
    int64_t known, known_room; /* first_steps[0..known] */
};

static void shuffle(struct dt_sampler *s, int64_t epoch)
{
    struct dt_rng_key key = {s->o.seed, DT_RNG_SHUFFLE, (uint32_t)epoch, (uint64_t)epoch >> 32};
    for (int64_t i = 0; i < s->n; i++)
        s->order[i] = i;
    for (int64_t i = s->n - 1; s->o.shuffle && i > 0; i--) {
        int64_t k = (int64_t)dt_rng_below(key, (uint64_t)i, (uint64_t)i + 1);
        int64_t other = s->order[k];
        s->order[k] = s->order[i];
        s->order[i] = other;
    }
}

static int push(int64_t **array, int64_t *room, int64_t at, int64_t value)
{
    if (at >= *room) {
        int64_t more = 2 * *room + 64;
        int64_t *bigger = realloc(*array, (size_t)more * sizeof **array);
        if (!bigger)
            return DT_FAIL(DT_E_MEMORY, "cannot hold the steps of an epoch (%" PRId64 ")", more);
        *array = bigger;
        *room = more;
    }
    (*array)[at] = value;
    return DT_OK;
}

static int cut(struct dt_sampler *s)
{
    int64_t tokens = 0, count = 0;
    s->cut_count = 0;
    DT_TRY(push(&s->cuts, &s->cut_room, 0, 0));
    for (int64_t i = 0; i < s->n; i++) {
        int64_t length = dt_dataset_length(s->d, s->order[i]);
        bool full = s->o.batch_tokens > 0 ? length > s->o.batch_tokens - tokens
                                          : count == s->o.batch_sequences;
        if (full && count > 0) {
            DT_TRY(push(&s->cuts, &s->cut_room, ++s->cut_count, i));
            tokens = count = 0;
        }
        tokens += length;
        count++;
    }
    return push(&s->cuts, &s->cut_room, ++s->cut_count, s->n);
}

static int load_epoch(struct dt_sampler *s, int64_t epoch)
{
    if (s->epoch == epoch)
        return DT_OK;
    s->epoch = -1;
    shuffle(s, epoch);
    DT_TRY(cut(s));
    s->epoch = epoch;
    return DT_OK;
}

/* Extends first_steps by one epoch. The number of steps needs the order only if lengths matter. */
static int know_next(struct dt_sampler *s)
{
    int64_t steps;
    if (s->o.batch_tokens > 0) {
        DT_TRY(load_epoch(s, s->o.shuffle ? s->known : 0));
        steps = s->cut_count;
    } else {
        steps = (s->n - 1) / s->o.batch_sequences + 1;
    }
    int64_t before = s->first_steps[s->known];
    if (before > INT64_MAX - steps)
        return DT_FAIL(DT_E_USAGE, "more steps than can be counted");
    DT_TRY(push(&s->first_steps, &s->known_room, s->known + 1, before + steps));
    s->known++;
    return DT_OK;
}

/* The most samples and tokens that a batch can have: the shortest, or the longest, ones together.
 */
static int find_limits(struct dt_sampler *s)
{
    int64_t longest = 0, total = 0, *histogram;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t length = dt_dataset_length(s->d, i);
        longest = length > longest ? length : longest;
        total += length;
    }
    DT_TRY(DT_NEW(&histogram, longest + 1));
    for (int64_t i = 0; i < s->n; i++)
        histogram[dt_dataset_length(s->d, i)]++;
    if (s->o.batch_tokens > 0) {
        int64_t room = s->o.batch_tokens;
        for (int64_t k = 1; k <= longest; k++) {
            int64_t fit = room / k < histogram[k] ? room / k : histogram[k];
            s->most_samples += fit;
            room -= fit * k;
        }
        s->most_samples = s->most_samples > 1 ? s->most_samples : 1;
        int64_t most = s->o.batch_tokens < total ? s->o.batch_tokens : total;
        s->most_tokens = most > longest ? most : longest;
    } else {
        int64_t left = s->o.batch_sequences < s->n ? s->o.batch_sequences : s->n;
        s->most_samples = left;
        for (int64_t k = longest; k > 0 && left > 0; k--) {
            int64_t take = left < histogram[k] ? left : histogram[k];
            s->most_tokens += take * k;
            left -= take;
        }
    }
    free(histogram);
    return DT_OK;
}

int dt_sampler_new(const struct dt_dataset *d, const struct dt_sampler_options *o,
                   struct dt_sampler **out)
{
    *out = NULL;
    if ((o->batch_tokens > 0) == (o->batch_sequences > 0))
        return DT_FAIL(DT_E_CONFIG,
                       "exactly one of batch.tokens and batch.sequences must be given "
                       "(here %" PRId64 " and %" PRId64 ")",
                       o->batch_tokens, o->batch_sequences);
    struct dt_sampler *s;
    int rc;
    DT_TRY(DT_NEW(&s, 1));
    s->d = d;
    s->o = *o;
    s->n = dt_dataset_samples(d);
    s->epoch = -1;
    DT_CHECK(failed, rc, DT_NEW(&s->order, s->n));
    DT_CHECK(failed, rc, push(&s->first_steps, &s->known_room, 0, 0));
    DT_CHECK(failed, rc, find_limits(s));
    *out = s;
    return DT_OK;
failed:
    dt_sampler_free(s);
    return rc;
}

void dt_sampler_free(struct dt_sampler *s)
{
    if (!s)
        return;
    free(s->order);
    free(s->cuts);
    free(s->first_steps);
    free(s);
}

int dt_sampler_steps(struct dt_sampler *s, int64_t epochs, int64_t *steps)
{
    if (epochs < 0)
        return DT_FAIL(DT_E_USAGE, "%" PRId64 " epochs", epochs);
    while (s->known < epochs)
        DT_TRY(know_next(s));
    *steps = s->first_steps[epochs];
    return DT_OK;
}

int64_t dt_sampler_max_samples(const struct dt_sampler *s)
{
    return s->most_samples;
}

int64_t dt_sampler_max_tokens(const struct dt_sampler *s)
{
    return s->most_tokens;
}

int dt_sampler_batch(struct dt_sampler *s, int64_t step, int64_t *samples, int64_t *count,
                     int64_t *epoch)
{
    if (step < 0)
        return DT_FAIL(DT_E_USAGE, "step %" PRId64, step);
    while (s->first_steps[s->known] <= step)
        DT_TRY(know_next(s));
    int64_t low = 0, high = s->known; /* first_steps[low] <= step < first_steps[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->first_steps[middle] <= step)
            low = middle;
        else
            high = middle;
    }
    DT_TRY(load_epoch(s, low));
    int64_t k = step - s->first_steps[low];
    *count = s->cuts[k + 1] - s->cuts[k];
    *epoch = low;
    memcpy(samples, s->order + s->cuts[k], (size_t)*count * sizeof *samples);
    return DT_OK;
}
