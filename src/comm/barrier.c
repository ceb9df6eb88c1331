/* Barrier by dissemination: in round k every member tells the one 2^k further, so after log2(count)
 * rounds everybody knows of everybody. */
#include "comm/internal.h"

int dt_barrier(struct dt_comm *c, const struct dt_group *g, uint64_t key)
{
    DT_TRY(comm__group_check(c, g, key));
    for (int32_t step = 1; step < g->count; step <<= 1) {
        struct dt_comm_request r[2] = {0};
        dt_comm_recv(c, &r[0], comm__group_rank(g, (g->me + g->count - step) % g->count),
                     DT_COMM_COLLECTIVE, key << COMM__CHUNK_BITS, NULL, 0);
        dt_comm_send(c, &r[1], comm__group_rank(g, (g->me + step) % g->count), DT_COMM_COLLECTIVE,
                     key << COMM__CHUNK_BITS, NULL, 0);
        DT_TRY(dt_comm_wait_all(c, r, 2, "barrier"));
    }
    return DT_OK;
}
