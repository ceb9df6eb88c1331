/* What the collectives have in common: checks, chunks, and the exchange of every member with every
 * other.
 *
 * In round s member m sends to m+s and receives from m-s, so in every round each member sends once
 * and receives once; some rounds are under way at a time, to hide the latency of one behind the
 * transfer of another. No cycle of waits can arise although sends are rendezvous: a round waits
 * only for others to post the same round, and they post it once their round `UNDER_WAY` before is
 * over. */
#include "comm/internal.h"

enum { UNDER_WAY = 4 };

int comm__group_check(const struct dt_comm *c, const struct dt_group *g, uint64_t key)
{
    int32_t most = dt_comm_size(c);
    if (g->count < 1 || g->count > most || g->me < 0 || g->me >= g->count ||
        (!g->members && g->count != most))
        return DT_FAIL(DT_E_INTERNAL, "member %d of a group of %d among %d workers", (int)g->me,
                       (int)g->count, (int)most);
    if (comm__group_rank(g, g->me) != dt_comm_rank(c))
        return DT_FAIL(DT_E_INTERNAL, "member %d of the group is worker %d, but this is worker %d",
                       (int)g->me, (int)comm__group_rank(g, g->me), (int)dt_comm_rank(c));
    if (key >> (DT_COMM_KEY_BITS - COMM__CHUNK_BITS))
        return DT_FAIL(DT_E_INTERNAL, "a collective's key is 0x%llx; expected less than 2^%d",
                       (unsigned long long)key, DT_COMM_KEY_BITS - COMM__CHUNK_BITS);
    return DT_OK;
}

int comm__parts_check(const struct dt_group *g, const int64_t *at, const int64_t *part,
                      const char *what)
{
    const int64_t most = (int64_t)(COMM__LONGEST / sizeof(float));
    for (int32_t i = 0; i < g->count; i++)
        if (at[i] < 0 || part[i] < 0 || part[i] > most)
            return DT_FAIL(DT_E_INTERNAL, "%s: part %d has %lld elements at %lld", what, (int)i,
                           (long long)part[i], (long long)at[i]);
    return DT_OK;
}

int32_t comm__group_rank(const struct dt_group *g, int32_t member)
{
    return g->members ? g->members[member] : member;
}

size_t comm__chunk(size_t bytes, size_t done)
{
    return bytes - done < DT_COMM_MESSAGE ? bytes - done : DT_COMM_MESSAGE;
}

struct exchange {
    struct dt_comm *comm;
    const struct dt_group *group;
    uint64_t key;
    comm__pair_fn *pair;
    const void *arg;
};

/* A chunk in each direction with the members of one round: the unit that is posted and waited for.
 */
struct turn {
    int32_t round;
    size_t done; /* bytes of the round before this chunk */
    struct dt_comm_request requests[2];
    int count;
};

static int32_t after(const struct dt_group *g, int32_t steps)
{
    return (g->me + steps) % g->count;
}

/* The turn after `t`; false: that was the last one. */
static bool advance(const struct exchange *x, int32_t *round, size_t *done)
{
    const struct dt_group *g = x->group;
    struct comm__pair to, from;
    x->pair(x->arg, after(g, *round), &to);
    x->pair(x->arg, after(g, g->count - *round), &from);
    *done += DT_COMM_MESSAGE;
    if (*done >= to.send_bytes && *done >= from.recv_bytes) {
        *done = 0;
        ++*round;
    }
    return *round < g->count;
}

static void post(const struct exchange *x, struct turn *t)
{
    const struct dt_group *g = x->group;
    int32_t next = after(g, t->round), last = after(g, g->count - t->round);
    uint64_t key = x->key << COMM__CHUNK_BITS | t->done / DT_COMM_MESSAGE;
    struct comm__pair to, from;
    x->pair(x->arg, next, &to);
    x->pair(x->arg, last, &from);
    t->count = 0;
    if (t->done < from.recv_bytes)
        dt_comm_recv(x->comm, &t->requests[t->count++], comm__group_rank(g, last),
                     DT_COMM_COLLECTIVE, key, (unsigned char *)from.recv + t->done,
                     comm__chunk(from.recv_bytes, t->done));
    if (t->done < to.send_bytes)
        dt_comm_send(x->comm, &t->requests[t->count++], comm__group_rank(g, next),
                     DT_COMM_COLLECTIVE, key, (const unsigned char *)to.send + t->done,
                     comm__chunk(to.send_bytes, t->done));
}

int comm__pairwise(struct dt_comm *c, const struct dt_group *g, uint64_t key, comm__pair_fn *pair,
                   const void *arg, const char *what)
{
    struct exchange x = {c, g, key, pair, arg};
    struct turn turns[UNDER_WAY] = {0};
    int32_t round = 1;
    size_t done = 0;
    int64_t posted = 0, waited = 0;
    bool more = g->count > 1;
    while (more || waited < posted) {
        while (more && posted - waited < UNDER_WAY) {
            struct turn *t = &turns[posted++ % UNDER_WAY];
            t->round = round;
            t->done = done;
            post(&x, t);
            more = advance(&x, &round, &done);
        }
        struct turn *t = &turns[waited++ % UNDER_WAY];
        DT_TRY(dt_comm_wait_all(c, t->requests, t->count, what));
    }
    return DT_OK;
}
