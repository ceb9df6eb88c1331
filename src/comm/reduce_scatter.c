/* Reduce-scatter: every member gets the sum of one part of everybody's vector.
 *
 * The owner of a part receives all pieces of it and adds them in member order, its own at its
 * place: the result does not depend on who is fast, as it would with a ring, which begins the sum
 * at another member for every part. A member receives what it would in a ring, (count - 1) parts of
 * its size, and needs room for all of them. */
#include "comm/internal.h"

#include <string.h>

struct reduce {
    const struct dt_group *group;
    const float *src;
    float *scratch;
    const int64_t *at, *part;
};

static void pair(const void *arg, int32_t i, struct comm__pair *out)
{
    const struct reduce *a = arg;
    int64_t mine = a->part[a->group->me];
    out->send = a->src + a->at[i];
    out->send_bytes = (size_t)a->part[i] * sizeof *a->src;
    out->recv = a->scratch + i * mine;
    out->recv_bytes = (size_t)mine * sizeof *a->src;
}

int dt_reduce_scatter(struct dt_comm *c, const struct dt_group *g, uint64_t key, const float *src,
                      const int64_t *at, const int64_t *part, float *dst, float *scratch,
                      dt_comm_add_fn *add)
{
    DT_TRY(comm__group_check(c, g, key));
    DT_TRY(comm__parts_check(g, at, part, "reduce-scatter"));
    struct reduce a = {g, src, scratch, at, part};
    DT_TRY(comm__pairwise(c, g, key, pair, &a, "reduce-scatter"));
    int64_t n = part[g->me];
    for (int32_t i = 0; n > 0 && i < g->count; i++) {
        const float *x = i == g->me ? src + at[i] : scratch + i * n;
        if (i == 0)
            memcpy(dst, x, (size_t)n * sizeof *x);
        else
            add(dst, x, n);
    }
    return DT_OK;
}
