/* A space: which tensors train, and where each element of them stands in one long row. */
#include "layout/private.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

#define BLOCK                                                                                      \
    1024 /* DESIGN 1.2; ops/ops.h repeats it as DT_BLOCK, a test of state/ compares the two */

int dt_space_new(const struct dt_arch *arch, const bool *trainable, struct dt_space *out)
{
    int rc;
    *out = (struct dt_space){.arch = arch};
    DT_CHECK(fail, rc, DT_NEW(&out->tensor, arch->tensor_count));
    DT_CHECK(fail, rc, DT_NEW(&out->offset, arch->tensor_count + 1));
    DT_CHECK(fail, rc, DT_NEW(&out->of_arch, arch->tensor_count));
    for (int64_t i = 0; i < arch->tensor_count; i++) {
        out->of_arch[i] = -1;
        if (!trainable[i])
            continue;
        out->of_arch[i] = out->count;
        out->tensor[out->count] = i;
        out->offset[out->count++] = out->elements;
        out->elements += arch->tensors[i].rows * arch->tensors[i].cols;
    }
    out->offset[out->count] = out->elements;
    if (out->count)
        return DT_OK;
    rc = DT_FAIL(DT_E_CONFIG,
                 "every tensor is frozen: there is nothing to train; shorten train.freeze");
fail:
    dt_space_free(out);
    return rc;
}

void dt_space_free(struct dt_space *s)
{
    free(s->tensor);
    free(s->offset);
    free(s->of_arch);
    *s = (struct dt_space){0};
}

int64_t dt_space_at(const struct dt_space *s, int64_t i)
{
    int64_t lo = 0, hi = s->count; /* offset[lo] <= i < offset[hi] */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (s->offset[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static bool same_bucket(const struct dt_space *s, int64_t a, int64_t b)
{
    const struct dt_tensor *x = &s->arch->tensors[s->tensor[a]];
    const struct dt_tensor *y = &s->arch->tensors[s->tensor[b]];
    return x->segment == y->segment && x->layer == y->layer;
}

int dt_space_buckets(const struct dt_space *s, struct dt_bucket **out, int64_t *count)
{
    *count = 0;
    DT_TRY(DT_NEW(out, s->count));
    for (int64_t i = 0; i < s->count; i++) {
        const struct dt_tensor *t = &s->arch->tensors[s->tensor[i]];
        if (i == 0 || !same_bucket(s, i - 1, i))
            (*out)[(*count)++] = (struct dt_bucket){
                .segment = t->segment, .layer = t->layer, .first = i, .begin = s->offset[i]};
        struct dt_bucket *b = &(*out)[*count - 1];
        b->count++;
        b->end = s->offset[i + 1];
    }
    return DT_OK;
}

int64_t dt_space_block_edge(const struct dt_space *s, int64_t i)
{
    if (i >= s->elements)
        return s->elements;
    int64_t begin = s->offset[dt_space_at(s, i)];
    return begin + (i - begin) / BLOCK * BLOCK;
}

int64_t layout__nearest_edge(const struct dt_space *s, int64_t i)
{
    int64_t below = dt_space_block_edge(s, i);
    if (below == i)
        return i;
    int64_t above = layout__min(below + BLOCK, s->offset[dt_space_at(s, i) + 1]);
    return i - below <= above - i ? below : above;
}
