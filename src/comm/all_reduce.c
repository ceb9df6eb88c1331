/* All-reduce of short vectors: everybody sends its own to all, and everybody adds all of them in
 * member order. So all members come to the same bits, in one step instead of two; for long vectors
 * there is reduce-scatter and all-gather. */
#include "comm/internal.h"

#include <string.h>

struct reduce {
    const double *x;
    double *scratch;
    int64_t n;
};

static void pair(const void *arg, int32_t i, struct comm__pair *out)
{
    const struct reduce *a = arg;
    out->send = a->x;
    out->recv = a->scratch + i * a->n;
    out->send_bytes = out->recv_bytes = (size_t)a->n * sizeof *a->x;
}

int dt_all_reduce_small(struct dt_comm *c, const struct dt_group *g, uint64_t key, double *x,
                        int64_t n, double *scratch)
{
    DT_TRY(comm__group_check(c, g, key));
    if (n < 0 || n > INT64_C(1) << 24)
        return DT_FAIL(DT_E_INTERNAL, "all-reduce of %lld numbers; expected a short vector",
                       (long long)n);
    struct reduce a = {x, scratch, n};
    DT_TRY(comm__pairwise(c, g, key, pair, &a, "all-reduce"));
    if (n > 0)
        memcpy(scratch + g->me * n, x, (size_t)n * sizeof *x);
    for (int64_t k = 0; k < n; k++) {
        double sum = scratch[k];
        for (int32_t i = 1; i < g->count; i++)
            sum += scratch[i * n + k];
        x[k] = sum;
    }
    return DT_OK;
}
