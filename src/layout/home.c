/* Who keeps an element, who uses it. */
#include "layout/private.h"

#include "base/arena.h"
#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* What a home is being made from. A worker's claim on a bucket is its share of it plus what it is
 * owed from the buckets before; claims add up to the bucket's elements, but may be negative. */
struct deal {
    const struct dt_space *space;
    int32_t workers;
    double *part;  /* [workers] share / sum of shares */
    double *claim; /* [workers] */
    int64_t *held; /* [workers] elements dealt so far */
    struct dt_home *home;
};

/* The level for which sum of max(0, claim - level) is `elements`: cutting all claims down by it
 * serves first who is owed most. Claims add up to `elements`, so the level is between 0 and the
 * largest. Halving ends a little below it, where the sum is surely not 0. */
static double level_of(const struct deal *d, double elements)
{
    double low = 0, high = 0;
    for (int32_t w = 0; w < d->workers; w++)
        high = d->claim[w] > high ? d->claim[w] : high;
    for (int i = 0; i < 64 && high - low > 1e-3; i++) {
        double middle = low + (high - low) / 2, sum = 0;
        for (int32_t w = 0; w < d->workers; w++)
            sum += d->claim[w] > middle ? d->claim[w] - middle : 0;
        if (sum > elements)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void keep(struct deal *d, int32_t owner, int64_t begin, int64_t end)
{
    struct dt_home *h = d->home;
    if (begin == end)
        return;
    if (h->count && h->intervals[h->count - 1].owner == owner)
        h->intervals[h->count - 1].end = end;
    else
        h->intervals[h->count++] =
            (struct dt_interval){.begin = begin, .end = end, .owner = owner, .at = d->held[owner]};
    d->held[owner] += end - begin;
}

static void deal_bucket(struct deal *d, const struct dt_bucket *b)
{
    double sum = 0, upto = 0, elements = (double)(b->end - b->begin);
    for (int32_t w = 0; w < d->workers; w++)
        d->claim[w] = d->part[w] * (double)b->end - (double)d->held[w];
    double level = level_of(d, elements);
    for (int32_t w = 0; w < d->workers; w++)
        sum += d->claim[w] > level ? d->claim[w] - level : 0;
    int64_t begin = b->begin;
    for (int32_t w = 0; w < d->workers; w++) {
        upto += d->claim[w] > level ? d->claim[w] - level : 0;
        int64_t cut = b->begin + llround(elements * (upto / sum));
        int64_t end = layout__max(begin, layout__nearest_edge(d->space, cut));
        keep(d, w, begin, end);
        begin = end;
    }
}

int dt_home_buckets(const struct dt_space *s, int32_t workers, const double *share,
                    struct dt_home *out)
{
    int rc;
    double total = 0;
    struct dt_bucket *buckets = NULL;
    int64_t count = 0;
    struct deal d = {.space = s, .workers = workers, .home = out};
    *out = (struct dt_home){0};
    for (int32_t w = 0; w < workers; w++)
        total += share ? share[w] : 1;
    if (!(total > 0) || !isfinite(total))
        return DT_FAIL(DT_E_INTERNAL, "shares of %d workers add up to %g", (int)workers, total);
    DT_CHECK(done, rc, dt_space_buckets(s, &buckets, &count));
    DT_CHECK(done, rc, DT_NEW(&d.part, workers));
    DT_CHECK(done, rc, DT_NEW(&d.claim, workers));
    DT_CHECK(done, rc, DT_NEW(&d.held, workers));
    DT_CHECK(done, rc, DT_NEW(&out->intervals, count * workers));
    for (int32_t w = 0; w < workers; w++)
        d.part[w] = (share ? share[w] : 1) / total;
    for (int64_t b = 0; b < count; b++)
        deal_bucket(&d, &buckets[b]);
done:
    free(buckets);
    free(d.part);
    free(d.claim);
    free(d.held);
    if (rc < 0)
        dt_home_free(out);
    return rc;
}

int64_t dt_home_elements(const struct dt_home *h, int32_t owner)
{
    int64_t n = 0;
    for (int64_t i = 0; i < h->count; i++)
        n += h->intervals[i].owner == owner ? h->intervals[i].end - h->intervals[i].begin : 0;
    return n;
}

void dt_home_free(struct dt_home *h)
{
    free(h->intervals);
    *h = (struct dt_home){0};
}

int dt_compute_whole(const struct dt_space *s, int32_t workers, struct dt_compute *out)
{
    *out = (struct dt_compute){0};
    DT_TRY(DT_NEW(&out->boxes, s->count * workers));
    for (int64_t i = 0; i < s->count; i++) {
        const struct dt_tensor *t = &s->arch->tensors[s->tensor[i]];
        for (int32_t w = 0; w < workers; w++)
            out->boxes[out->count++] = (struct dt_box){
                .owner = w,
                .tensor = i,
                .row1 = t->rows,
                .col1 = t->cols,
                .gradient = DT_GRAD_PARTIAL,
                .at = s->offset[i],
                .ld = t->cols,
            };
    }
    return DT_OK;
}

int dt_compute_home(const struct dt_space *s, const struct dt_home *home, struct dt_compute *out)
{
    *out = (struct dt_compute){0};
    /* an interval meets one tensor more than there are tensor edges inside it */
    DT_TRY(DT_NEW(&out->boxes, 3 * (home->count + s->count)));
    for (int64_t i = 0; i < home->count; i++) {
        const struct dt_interval *in = &home->intervals[i];
        for (int64_t t = dt_space_at(s, in->begin); t < s->count && s->offset[t] < in->end; t++) {
            struct layout__rect part[3];
            int n = layout__rectangles(s, in, t, part);
            int64_t cols = s->arch->tensors[s->tensor[t]].cols;
            for (int k = 0; k < n; k++)
                out->boxes[out->count++] = (struct dt_box){
                    .owner = in->owner,
                    .tensor = t,
                    .row0 = part[k].row0,
                    .row1 = part[k].row1,
                    .col0 = part[k].col0,
                    .col1 = part[k].col1,
                    .gradient = DT_GRAD_NONE,
                    .at = in->at + s->offset[t] + part[k].row0 * cols + part[k].col0 - in->begin,
                    .ld = cols,
                };
        }
    }
    return DT_OK;
}

void dt_compute_free(struct dt_compute *c)
{
    free(c->boxes);
    *c = (struct dt_compute){0};
}
