/* One move over comm, bucket by bucket, overlapped with computing. Private to state/.
 *
 * Problem: every layer's weights must arrive before its forward and every layer's gradients leave
 * after its backward, while the compute thread is in a GEMM; a sum has one order although messages
 * arrive in any; memory beside the state is two buckets. Idea: what one worker sends and receives
 * of a bucket is known before the first step, as one message a peer (cut at DT_COMM_MESSAGE).
 * Pieces that are one run of memory on this side are sent or received in place; others are packed
 * in a staging slot. What must be summed is received in staging, one place a sender, and added in
 * sender order when all of a bucket is there, on the communication thread. Every bucket has one of
 * two slots while it travels, in the order in which they were started: so what is needed first also
 * arrives first, instead of sharing the link with all others; and as the order is the same on every
 * worker, the oldest unfinished bucket can always go on. */
#ifndef DT_STATE_EXCHANGE_H
#define DT_STATE_EXCHANGE_H

#include "comm/comm.h"
#include "layout/layout.h"

#include <pthread.h>

enum { DT_EXCHANGE_SLOTS = 2 };

/* The two staging slots, shared by the exchanges of one state. */
struct exchange__bucket;
struct dt_staging {
    void *slot[DT_EXCHANGE_SLOTS];
    bool used[DT_EXCHANGE_SLOTS];
    struct exchange__bucket *first, *last; /* waiting for one, in order of their start */
    pthread_mutex_t lock;
};

enum dt_exchange_kind {
    DT_EXCHANGE_COPY,      /* floats: what arrives is put in its place */
    DT_EXCHANGE_SUM,       /* floats: `to` becomes the sum over senders, in rank order */
    DT_EXCHANGE_SUM_FIXED, /* int64, modulo 2^64 */
};

struct dt_exchange;

/* move: of this rank (dt_move_*(..., rank)), kept until close. Buckets are element ranges of the
 * space. key_base keeps exchanges apart (< 2^8). comm may be NULL with one worker. */
int dt_exchange_new(const struct dt_bucket *buckets, int64_t count, const struct dt_move *move,
                    int32_t rank, enum dt_exchange_kind kind, struct dt_comm *comm,
                    enum dt_comm_kind traffic, uint64_t key_base, struct dt_exchange **out);
void dt_exchange_free(struct dt_exchange *x);
/* Bytes of one staging slot. */
size_t dt_exchange_staging(const struct dt_exchange *x);
/* Before the first start. Elements of `from` and `to` are of the kind's type. */
void dt_exchange_attach(struct dt_exchange *x, const void *from, void *to,
                        struct dt_staging *staging);

int dt_exchange_start(struct dt_exchange *x, int64_t bucket);
/* Until what this worker receives of the bucket is in place. */
int dt_exchange_wait(struct dt_exchange *x, int64_t bucket);
/* Until everything started is over, sends included. */
int dt_exchange_wait_all(struct dt_exchange *x);

#endif
