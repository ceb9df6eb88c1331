/* Barrier by dissemination: in round k every member tells the one 2^k places on, and hears from the
 * one 2^k places back; after log2 rounds each has heard, at second hand, from all. */
#include "comm/internal.h"

#include <string.h>

#define ROUND_BITS 6

int dt_barrier(struct dt_comm *c, const struct dt_group *g, uint64_t key)
{
    bool all = !g || !g->members;
    int32_t n = all ? dt_comm_size(c) : g->count, me = all ? dt_comm_rank(c) : g->me;
    for (int32_t distance = 1, round = 0; distance < n; distance *= 2, round++) {
        struct dt_comm_request r[2] = {{0}};
        int32_t to = (me + distance) % n, from = (me - distance % n + n) % n;
        uint64_t name = key << ROUND_BITS | (uint64_t)round;
        dt_comm_recv(c, &r[0], all ? from : g->members[from], DT_COMM_COLLECTIVE, name, NULL, 0);
        dt_comm_send(c, &r[1], all ? to : g->members[to], DT_COMM_COLLECTIVE, name, NULL, 0);
        DT_TRY(dt_comm_wait_all(c, r, 2, "a barrier"));
    }
    return DT_OK;
}
