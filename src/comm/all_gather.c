/* All-gather: every member's part to all others, straight into place. */
#include "comm/internal.h"

struct gather {
    const struct dt_group *group;
    float *buffer;
    const int64_t *at, *part;
};

static void pair(const void *arg, int32_t i, struct comm__pair *out)
{
    const struct gather *a = arg;
    int32_t me = a->group->me;
    out->send = a->buffer + a->at[me];
    out->send_bytes = (size_t)a->part[me] * sizeof *a->buffer;
    out->recv = a->buffer + a->at[i];
    out->recv_bytes = (size_t)a->part[i] * sizeof *a->buffer;
}

int dt_all_gather(struct dt_comm *c, const struct dt_group *g, uint64_t key, float *buffer,
                  const int64_t *at, const int64_t *part)
{
    DT_TRY(comm__group_check(c, g, key));
    DT_TRY(comm__parts_check(g, at, part, "all-gather"));
    struct gather a = {g, buffer, at, part};
    DT_TRY(comm__pairwise(c, g, key, pair, &a, "all-gather"));
    return DT_OK;
}
