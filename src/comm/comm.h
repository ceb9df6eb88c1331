/* Point-to-point messages between the workers of one epoch, and the collectives made of them.
 *
 * Problem: transfers must go on while the compute thread is inside a GEMM, a peer may die at any
 * time, and nothing of an earlier membership may ever arrive late. Idea: one communication thread a
 * worker owns the transport and takes a queue of requests; every epoch (membership) has a
 * transport of its own, thrown away whole with everything pending; a request names (peer, key), so
 * matching never depends on order. The thread sleeps on the transport's descriptor and an eventfd,
 * it never spins.
 *
 * Before changing it: a send completes only after its receive was posted (rendezvous), so a caller
 * that waits for a send before it posts the receive that the peer waits for, hangs. Nothing
 * allocates after dt_comm_connect; a request's memory is the caller's until it is done.
 *
 * The epoch ends once and for all requests at the same time: by dt_comm_abort, by the first
 * transfer that fails, or by the first wait that lasts too long. The thread then throws the
 * transport away, ends every request with the code of that first cause, and only then lets waiters
 * go. So a caller who gets a failure from any wait may free all its requests and buffers at once.
 */
#ifndef DT_COMM_COMM_H
#define DT_COMM_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_COMM_MESSAGE ((size_t)64 << 20) /* the most bytes of one message */

struct dt_comm;

/* What a message is. (kind, key) from one sender to one receiver names one message at a time. */
enum dt_comm_kind {
    DT_COMM_GATHER, /* weights, home -> compute */
    DT_COMM_REDUCE, /* gradients, compute -> home */
    DT_COMM_MOVE,   /* any other move */
    DT_COMM_ACTIVATION,
    DT_COMM_COLLECTIVE,
    DT_COMM_TEST, /* doctor */
};
#define DT_COMM_KEY_BITS 36 /* key < 2^36: bucket and chunk, or pipeline, micro-batch, segment */

struct dt_comm_request {
    struct dt_comm_request *next, *previous; /* in the order of posting */
    struct dt_comm *comm;
    void *handle; /* the transport's */
    size_t moved; /* a receive: bytes that came */
    bool send;
    int32_t peer;
    enum dt_comm_kind kind;
    uint64_t key;
    void *data;
    size_t bytes;
    double started;
    /* Called on the communication thread as soon as the transfer is over (also when it failed: see
     * state), before waiters of this request wake; may post further requests, must not wait. It is
     * the last use of the request, so whoever it tells may use it anew. NULL: nothing. */
    void (*finished)(struct dt_comm_request *r, void *arg);
    void *arg;
    _Atomic int state; /* DT_COMM_PENDING, DT_OK or an error */
};
#define DT_COMM_PENDING 1

struct dt_comm_transport; /* comm/transport.h */

struct dt_comm_options {
    int32_t rank, size;
    int64_t epoch;
    double timeout; /* seconds that one wait may last; its message names the peer */
    struct dt_comm_transport *transport; /* owned by the comm from here on, also after a failure */
};

/* Starts the thread. */
int dt_comm_open(const struct dt_comm_options *o, struct dt_comm **out);
/* This worker's address, for the coordinator's table; valid until dt_comm_close. */
int dt_comm_address(const struct dt_comm *c, const void **data, size_t *bytes);
/* Everybody's addresses, [size] in rank order, copied. Endpoints are made on first use beyond 64
 * workers. Requests posted before wait for it. */
struct dt_comm_address {
    const void *data;
    size_t bytes;
};
int dt_comm_connect(struct dt_comm *c, const struct dt_comm_address *table);
/* Throws the epoch away with everything pending; NULL is fine. No thread may be in a call on it any
 * more. When nothing is pending, what was sent reaches its peers. */
void dt_comm_close(struct dt_comm *c);

int32_t dt_comm_rank(const struct dt_comm *c);
int32_t dt_comm_size(const struct dt_comm *c);

/* Post; never blocks, callable from any thread. bytes <= DT_COMM_MESSAGE; a receive of another size
 * than was sent fails. peer may be this worker itself. r->finished and r->arg are set by the caller
 * before. After the end of the epoch the request fails soon, with `finished` called. */
void dt_comm_send(struct dt_comm *c, struct dt_comm_request *r, int32_t peer,
                  enum dt_comm_kind kind, uint64_t key, const void *data, size_t bytes);
void dt_comm_recv(struct dt_comm *c, struct dt_comm_request *r, int32_t peer,
                  enum dt_comm_kind kind, uint64_t key, void *data, size_t bytes);
/* Waits until the request is over. DT_OK; DT_E_EPOCH (dt_comm_abort), DT_E_PEER (a transfer failed:
 * the worker in the message is lost or unreachable), DT_E_TIMEOUT (names operation, kind and peer),
 * DT_E_INTERNAL (sizes that differ, a request that makes no sense): each the first cause of the
 * epoch's end. `what` says for messages what is being waited for. */
int dt_comm_wait(struct dt_comm *c, struct dt_comm_request *r, const char *what);
int dt_comm_wait_all(struct dt_comm *c, struct dt_comm_request *r, int64_t count, const char *what);
/* Waits until *flag differs from `while_value`, with the same ends; whoever changes *flag on the
 * communication thread (in `finished`) needs no further signal, others call dt_comm_wake. */
int dt_comm_wait_flag(struct dt_comm *c, _Atomic int64_t *flag, int64_t while_value,
                      const char *what);
void dt_comm_wake(struct dt_comm *c);
/* The epoch is over: every pending and later wait returns DT_E_EPOCH with `why` (or the cause that
 * came before). From any thread. */
void dt_comm_abort(struct dt_comm *c, const char *why);

/* The operation that has waited longest, for status and messages: false when nothing is pending. */
struct dt_comm_pending {
    bool send;
    int32_t peer;
    enum dt_comm_kind kind;
    uint64_t key;
    double seconds;
};
bool dt_comm_oldest(struct dt_comm *c, struct dt_comm_pending *out);
/* Bytes sent and received since the start, own messages to oneself not counted. */
struct dt_comm_counts {
    int64_t bytes_sent, bytes_received, messages_sent, messages_received;
};
void dt_comm_counts(struct dt_comm *c, struct dt_comm_counts *out);
/* How messages to a peer travel, in words ("sysv cma", "tcp/eth0"), best asked after the first
 * message; "" when unknown. */
void dt_comm_path(struct dt_comm *c, int32_t peer, char *out, size_t size);

/* ---- Collectives, each in a file of its own. Blocking; all members call with equal arguments.
 * `members` [count] are ranks in share order (NULL: all, in rank order); sums are taken in that
 * order, so they do not depend on who is fast. `key` separates concurrent ones (< 2^24). Scratch is
 * the caller's. ---- */
struct dt_group {
    const int32_t *members;
    int32_t count;
    int32_t me; /* position of this worker */
};

/* y[i] += x[i], n elements: an op (ops/), handed in because this room sees none. */
typedef void dt_comm_add_fn(float *y, const float *x, int64_t n);

/* dst: this member's rows [part[me]], apart from src; src: all members' parts, of which part i,
 * [part[i]] elements at offset at[i], goes to member i, who adds what it gets in member order.
 * scratch: [count * part[me]] */
int dt_reduce_scatter(struct dt_comm *c, const struct dt_group *g, uint64_t key, const float *src,
                      const int64_t *at, const int64_t *part, float *dst, float *scratch,
                      dt_comm_add_fn *add);
/* buffer: part i at at[i], [part[i]] elements; on return all parts are there. */
int dt_all_gather(struct dt_comm *c, const struct dt_group *g, uint64_t key, float *buffer,
                  const int64_t *at, const int64_t *part);
/* Sum of short vectors [n] in member order, in double. scratch: [count * n] */
int dt_all_reduce_small(struct dt_comm *c, const struct dt_group *g, uint64_t key, double *x,
                        int64_t n, double *scratch);
/* Binomial tree from member `root`. */
int dt_broadcast(struct dt_comm *c, const struct dt_group *g, uint64_t key, int32_t root,
                 void *data, size_t bytes);
int dt_barrier(struct dt_comm *c, const struct dt_group *g, uint64_t key);

#endif
