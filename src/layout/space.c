/* A space: which tensors train, and where each element of them stands in one long row. */
#include "layout/layout.h"

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

int64_t dt_space_block_edge(const struct dt_space *s, int64_t i)
{
    if (i >= s->elements)
        return s->elements;
    int64_t begin = s->offset[dt_space_at(s, i)];
    return begin + (i - begin) / BLOCK * BLOCK;
}
