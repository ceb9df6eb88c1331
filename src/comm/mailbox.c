/* Matching inside one process: messages to oneself, and workers that are threads (local.c).
 *
 * A message names itself by its tag, so a send and a receive belong together when their tags are
 * equal; whichever comes second finds the first. Lists are short (what is in flight), so they are
 * searched from the front, which also keeps equal tags in order. */
#include "comm/internal.h"

#include <string.h>

/* epoch | kind | sender | key. The epoch counts on although a worker of an older one is thrown away
 * before: what cannot arrive is still checked. */
uint64_t comm__tag(const struct dt_comm_request *r)
{
    const struct dt_comm *c = r->comm;
    uint64_t epoch = (uint64_t)c->epoch & ((1u << COMM__EPOCH_BITS) - 1);
    uint64_t sender = (uint64_t)(r->send ? c->rank : r->peer);
    return ((epoch << COMM__KIND_BITS | (uint64_t)r->kind) << COMM__RANK_BITS | sender)
               << DT_COMM_KEY_BITS |
           r->key;
}

struct dt_comm_request *comm__mailbox_meet(struct comm__mailbox *m, struct dt_comm_request *r)
{
    uint64_t tag = comm__tag(r);
    struct dt_comm_request *before = NULL, *other = m->first;
    while (other && !(other->send != r->send && comm__tag(other) == tag)) {
        before = other;
        other = other->handle;
    }
    struct dt_comm_request *after = other ? other->handle : r;
    if (before)
        before->handle = after;
    else
        m->first = after;
    if (!other)
        r->handle = NULL;
    return other;
}

void comm__mailbox_deliver(struct dt_comm_request *a, struct dt_comm_request *b)
{
    struct dt_comm_request *from = a->send ? a : b, *to = a->send ? b : a;
    to->moved = from->bytes;
    if (from->bytes == to->bytes && to->bytes)
        memcpy(to->data, from->data, to->bytes);
}
