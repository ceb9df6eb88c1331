/* Who keeps an element, who uses it. */
#include "layout/layout.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

int dt_home_even(const struct dt_space *s, int32_t workers, const double *share,
                 struct dt_home *out)
{
    *out = (struct dt_home){0};
    DT_TRY(DT_NEW(&out->intervals, workers));
    double total = 0, upto = 0;
    for (int32_t w = 0; w < workers; w++)
        total += share ? share[w] : 1;
    int64_t begin = 0;
    for (int32_t w = 0; w < workers; w++) {
        upto += share ? share[w] : 1;
        int64_t end = w + 1 == workers
                          ? s->elements
                          : dt_space_block_edge(s, (int64_t)((double)s->elements * (upto / total)));
        if (end > begin)
            out->intervals[out->count++] =
                (struct dt_interval){.begin = begin, .end = end, .owner = w};
        begin = end > begin ? end : begin;
    }
    return DT_OK;
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

void dt_compute_free(struct dt_compute *c)
{
    free(c->boxes);
    *c = (struct dt_compute){0};
}
