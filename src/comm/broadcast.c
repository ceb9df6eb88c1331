/* Broadcast along a binomial tree: who has the data passes it on, so after k rounds 2^k members
 * have it. Counted from the root, member v gets it from v without its lowest bit, and passes it to
 * v + b for all powers of two b below that bit, the farthest first (it has most to pass on). */
#include "comm/internal.h"

static int pass(struct dt_comm *c, const struct dt_group *g, uint64_t key, int32_t root,
                unsigned char *data, size_t bytes)
{
    struct dt_comm_request parent = {0}, children[COMM__RANK_BITS] = {0};
    int32_t v = (g->me - root + g->count) % g->count, bit = 1;
    while (bit < g->count && !(v & bit))
        bit <<= 1;
    if (v) {
        dt_comm_recv(c, &parent, comm__group_rank(g, (v - bit + root) % g->count),
                     DT_COMM_COLLECTIVE, key, data, bytes);
        DT_TRY(dt_comm_wait(c, &parent, "broadcast"));
    }
    int count = 0;
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (v + bit < g->count)
            dt_comm_send(c, &children[count++], comm__group_rank(g, (v + bit + root) % g->count),
                         DT_COMM_COLLECTIVE, key, data, bytes);
    return dt_comm_wait_all(c, children, count, "broadcast");
}

int dt_broadcast(struct dt_comm *c, const struct dt_group *g, uint64_t key, int32_t root,
                 void *data, size_t bytes)
{
    DT_TRY(comm__group_check(c, g, key));
    if (root < 0 || root >= g->count)
        return DT_FAIL(DT_E_INTERNAL, "broadcast from member %d of %d", (int)root, (int)g->count);
    if (bytes > COMM__LONGEST)
        return DT_FAIL(DT_E_INTERNAL, "broadcast of %zu bytes; expected at most %zu", bytes,
                       COMM__LONGEST);
    for (size_t done = 0; done < bytes; done += DT_COMM_MESSAGE)
        DT_TRY(pass(c, g, key << COMM__CHUNK_BITS | done / DT_COMM_MESSAGE, root,
                    (unsigned char *)data + done, comm__chunk(bytes, done)));
    return DT_OK;
}
