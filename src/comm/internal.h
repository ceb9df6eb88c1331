/* The communication thread's insides: what thread.c, wait.c, comm.c and the collectives share.
 *
 * One mutex guards everything that more than one thread touches; it is held for a few instructions
 * at a time, never during a transfer or a callback. Pending requests stand in one list in the order
 * of posting; `fresh` is the first of them that the thread has not yet given to the transport. */
#ifndef DT_COMM_INTERNAL_H
#define DT_COMM_INTERNAL_H

#include "base/error.h"
#include "comm/comm.h"
#include "comm/transport.h"

#include <pthread.h>

#define COMM__EPOCH_BITS 12
#define COMM__KIND_BITS 4
#define COMM__RANK_BITS 12
#define COMM__WORKERS_MOST (1 << COMM__RANK_BITS)

/* Somebody in a wait: for a request, or for a flag. */
struct comm__waiter {
    struct comm__waiter *next;
    struct dt_comm_request *request; /* NULL: the flag */
    _Atomic int64_t *flag;
    int64_t while_value;
    pthread_cond_t news;
};

/* A call that the communication thread makes for another one. */
struct comm__job {
    struct comm__job *next;
    void (*run)(struct dt_comm *c, void *arg);
    void *arg;
    bool done;
};

/* Sends and receives that wait for their counterpart, for transports inside one process. Linked by
 * `handle`, in the order of posting. */
struct comm__mailbox {
    struct dt_comm_request *first;
};

struct dt_comm {
    int32_t rank, size;
    int64_t epoch;
    double timeout;
    void *address; /* a copy */
    size_t address_bytes;
    pthread_t thread;
    int wake; /* eventfd */

    /* Of the communication thread alone. */
    struct dt_comm_transport *transport; /* NULL: thrown away */
    struct comm__mailbox own;            /* messages to oneself */

    pthread_mutex_t lock; /* for all that follows */
    pthread_cond_t job_done;
    struct comm__job *jobs;
    struct dt_comm_request *first, *last, *fresh;
    struct dt_comm_request *finishing; /* its callback runs */
    struct comm__waiter *waiters;
    struct dt_comm_counts counts;
    bool asleep;    /* the thread polls: write to `wake` */
    bool connected; /* fresh requests may start */
    bool ended;     /* the epoch is over; `end` says why and does not change any more */
    bool gone;      /* and the transport has been thrown away: no transfer touches memory */
    bool orderly;   /* it ended by dt_comm_close with nothing pending */
    bool stop;      /* the thread shall return */
    struct dt_error_state end;
};

/* ---- thread.c ---- */
void *comm__thread(void *comm);
/* The functions below need the lock held. */
void comm__wake_thread(struct dt_comm *c);
/* The epoch is over because of the failure `rc` whose words are in this thread's trail; the first
 * one counts. */
void comm__end(struct dt_comm *c, int rc);

/* ---- wait.c ---- */
bool comm__ready(const struct dt_comm *c, const struct comm__waiter *w);
void comm__notify(struct dt_comm *c); /* wakes those whose wait is over */

/* ---- mailbox.c ---- */
uint64_t comm__tag(const struct dt_comm_request *r);
/* Takes the counterpart of r out of the box, or puts r into it and returns NULL. */
struct dt_comm_request *comm__mailbox_meet(struct comm__mailbox *m, struct dt_comm_request *r);
/* Copies one message from a send to its receive. */
void comm__mailbox_deliver(struct dt_comm_request *a, struct dt_comm_request *b);

/* ---- comm.c ---- */
const char *comm__kind_name(enum dt_comm_kind kind);
/* "receive of 16 bytes from worker 3 (gradients, key 0x10)" */
void comm__describe(const struct dt_comm_request *r, char *out, size_t size);

/* ---- pairwise.c: what the collectives have in common ---- */

/* Keys of a collective: the caller's, then the chunk of a message longer than DT_COMM_MESSAGE. */
#define COMM__CHUNK_BITS 12
#define COMM__LONGEST (DT_COMM_MESSAGE << COMM__CHUNK_BITS) /* bytes, as the chunks are counted */
int comm__group_check(const struct dt_comm *c, const struct dt_group *g, uint64_t key);
int32_t comm__group_rank(const struct dt_group *g, int32_t member);
/* Bytes of the chunk that begins at `done` of `bytes`. */
size_t comm__chunk(size_t bytes, size_t done);

/* What this member sends to member i, and gets from it; no bytes: nothing is sent. */
struct comm__pair {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
};
typedef void comm__pair_fn(const void *arg, int32_t i, struct comm__pair *out);
/* Every member with every other. */
int comm__pairwise(struct dt_comm *c, const struct dt_group *g, uint64_t key, comm__pair_fn *pair,
                   const void *arg, const char *what);
/* part[i] and at[i] of all members make sense. */
int comm__parts_check(const struct dt_group *g, const int64_t *at, const int64_t *part,
                      const char *what);

#endif
