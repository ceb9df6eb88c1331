/* What exchange.c and exchange_plan.c share. */
#ifndef DT_STATE_EXCHANGE_PRIVATE_H
#define DT_STATE_EXCHANGE_PRIVATE_H

#include "state/exchange.h"

/* What goes between this worker and one peer in one bucket, in one direction. */
struct exchange__transfer {
    int32_t peer;
    const struct dt_piece *pieces; /* [piece_count], in the order of both sides */
    int64_t piece_count;
    size_t bytes;
    bool in_place; /* one run of this side's memory, beginning at element `at` */
    int64_t at;
    size_t slot_at; /* else: where it stands in the slot */
    struct dt_comm_request *requests;
    int64_t request_count;
};

/* Whom a bucket's home elements come from, in rank order; transfer NULL: this worker itself. */
struct exchange__source {
    int32_t rank;
    const struct exchange__transfer *transfer;
    const struct dt_piece *pieces;
    int64_t piece_count;
    int64_t at; /* own contribution, when dense: first element of `from` */
};

struct exchange__bucket {
    struct dt_exchange *exchange;
    struct exchange__transfer *sends, *receives;
    int64_t send_count, receive_count;
    struct exchange__source *sources;
    int64_t source_count;
    bool dense; /* every source covers [dense_at, dense_at + dense_count) of `to`, in order */
    int64_t dense_at, dense_count;
    int64_t message_count, receive_messages;
    size_t staging;                      /* bytes of a slot */
    struct exchange__bucket *next;       /* waiting for a slot */
    int slot;                            /* -1: none */
    bool own_copied;                     /* copies: what needs no message is in place */
    _Atomic int64_t receives_left, left; /* messages */
    _Atomic int64_t received;            /* 1: what comes is in place */
};

struct dt_exchange {
    enum dt_exchange_kind kind;
    size_t element_bytes;
    int32_t rank;
    struct dt_comm *comm;
    enum dt_comm_kind traffic;
    uint64_t key_base;
    const void *from;
    void *to;
    struct dt_staging *staging;
    struct exchange__bucket *buckets;
    int64_t bucket_count;
    struct dt_piece *pieces; /* sorted by bucket, direction, peer */
    struct exchange__transfer *transfers;
    struct exchange__source *sources;
    struct dt_comm_request *requests;
    _Atomic int64_t open;                   /* buckets started and not over */
    struct dt_comm_request *_Atomic failed; /* the first message that did */
};

#endif
