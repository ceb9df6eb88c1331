/* The tables of an exchange: one worker's pieces sorted into buckets, directions and peers, and
 * what follows from that: messages, staging, sources in rank order. */
#include "state/exchange_private.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum direction { LOCAL, SEND, RECEIVE };

/* A piece with what it is sorted by; `order` keeps the move's own order, which both sides share. */
struct sorted {
    struct dt_piece piece;
    int64_t bucket, order;
    enum direction direction;
    int32_t peer;
};

static int by_place(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    if (x->bucket != y->bucket)
        return x->bucket < y->bucket ? -1 : 1;
    if (x->direction != y->direction)
        return x->direction < y->direction ? -1 : 1;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static int64_t bucket_of(const struct dt_bucket *buckets, int64_t count, int64_t tensor)
{
    int64_t lo = 0, hi = count - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (buckets[mid].first <= tensor)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static int sort_pieces(const struct dt_bucket *buckets, int64_t count, const struct dt_move *move,
                       int32_t rank, struct sorted **out)
{
    struct sorted *list;
    DT_TRY(DT_NEW(&list, move->count));
    for (int64_t i = 0; i < move->count; i++) {
        const struct dt_piece *p = &move->pieces[i];
        bool from = p->from == rank, to = p->to == rank;
        list[i] = (struct sorted){.piece = *p,
                                  .bucket = bucket_of(buckets, count, p->tensor),
                                  .order = i,
                                  .direction = from && to ? LOCAL
                                               : from     ? SEND
                                                          : RECEIVE,
                                  .peer = from ? p->to : p->from};
    }
    if (move->count > 0)
        qsort(list, (size_t)move->count, sizeof *list, by_place);
    *out = list;
    return DT_OK;
}

/* Are the pieces one run of memory on the side that `send` says? */
static bool is_run(const struct dt_piece *p, int64_t count, bool from_side, int64_t *at)
{
    *at = from_side ? p[0].from_at : p[0].to_at;
    int64_t next = *at;
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = from_side ? p[i].from_at : p[i].to_at;
        int64_t ld = from_side ? p[i].from_ld : p[i].to_ld;
        if (begin != next || (p[i].rows > 1 && ld != p[i].cols))
            return false;
        next = begin + p[i].rows * p[i].cols;
    }
    return true;
}

static int64_t elements_of(const struct dt_piece *p, int64_t count)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        n += p[i].rows * p[i].cols;
    return n;
}

static struct exchange__transfer transfer_of(const struct dt_exchange *x, const struct sorted *s,
                                             const struct dt_piece *pieces, int64_t count)
{
    bool send = s->direction == SEND;
    struct exchange__transfer t = {.peer = s->peer, .pieces = pieces, .piece_count = count};
    t.bytes = (size_t)elements_of(pieces, count) * x->element_bytes;
    t.request_count = (int64_t)((t.bytes + DT_COMM_MESSAGE - 1) / DT_COMM_MESSAGE);
    t.in_place = is_run(pieces, count, send, &t.at) && (send || x->kind == DT_EXCHANGE_COPY);
    return t;
}

static struct exchange__source source_of(const struct dt_exchange *x, const struct sorted *s,
                                         const struct dt_piece *pieces, int64_t count,
                                         const struct exchange__transfer *t)
{
    return (struct exchange__source){
        .rank = t ? s->peer : x->rank, .transfer = t, .pieces = pieces, .piece_count = count};
}

static size_t up(size_t n)
{
    return (n + DT_ARENA_ALIGN - 1) / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
}

static int by_rank(const void *a, const void *b)
{
    const struct exchange__source *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Does every source cover the same run of home? Then one pass sums it. */
static void find_dense(struct dt_exchange *x, struct exchange__bucket *b)
{
    b->dense = x->kind != DT_EXCHANGE_COPY && b->source_count > 0;
    for (int64_t s = 0; s < b->source_count && b->dense; s++) {
        struct exchange__source *src = &b->sources[s];
        int64_t to, n = elements_of(src->pieces, src->piece_count);
        b->dense = is_run(src->pieces, src->piece_count, false, &to) &&
                   (src->transfer || is_run(src->pieces, src->piece_count, true, &src->at));
        if (s == 0)
            b->dense_at = to, b->dense_count = n;
        b->dense = b->dense && to == b->dense_at && n == b->dense_count;
    }
}

static void finish_bucket(struct dt_exchange *x, struct exchange__bucket *b)
{
    for (int64_t i = 0; i < b->receive_count + b->send_count; i++) {
        bool send = i >= b->receive_count;
        struct exchange__transfer *t = send ? &b->sends[i - b->receive_count] : &b->receives[i];
        b->message_count += t->request_count;
        b->receive_messages += send ? 0 : t->request_count;
        if (t->in_place)
            continue;
        t->slot_at = b->staging;
        b->staging += up(t->bytes);
    }
    if (b->source_count > 0)
        qsort(b->sources, (size_t)b->source_count, sizeof *b->sources, by_rank);
    find_dense(x, b);
    b->slot = -1;
    b->own_copied = true;
    b->exchange = x;
    atomic_store(&b->received, 1);
}

/* Groups of equal (bucket, direction, peer) become transfers and sources. Sends to a peer begin
 * with the one after this worker, so that not all begin with the same. */
static void make_groups(struct dt_exchange *x, const struct sorted *list, int64_t n)
{
    struct exchange__transfer *next = x->transfers;
    struct exchange__source *source = x->sources;
    for (int64_t i = 0, j; i < n; i = j) {
        for (j = i; j < n && list[j].bucket == list[i].bucket &&
                    list[j].direction == list[i].direction && list[j].peer == list[i].peer;)
            j++;
        struct exchange__bucket *b = &x->buckets[list[i].bucket];
        const struct dt_piece *pieces = &x->pieces[i];
        struct exchange__transfer *t = list[i].direction == LOCAL ? NULL : next++;
        if (t)
            *t = transfer_of(x, &list[i], pieces, j - i);
        if (list[i].direction == SEND) {
            b->sends = b->send_count++ ? b->sends : t;
            continue;
        }
        if (t)
            b->receives = b->receive_count++ ? b->receives : t;
        b->sources = b->source_count++ ? b->sources : source;
        *source++ = source_of(x, &list[i], pieces, j - i, t);
    }
}

static void rotate(struct exchange__transfer *t, int64_t count, int32_t rank)
{
    int64_t k = 0;
    while (k < count && t[k].peer < rank)
        k++;
    for (int64_t i = 0; i < k; i++) { /* few: one a peer */
        struct exchange__transfer first = t[0];
        memmove(t, t + 1, (size_t)(count - 1) * sizeof *t);
        t[count - 1] = first;
    }
}

static int give_requests(struct dt_exchange *x, int64_t transfers)
{
    int64_t n = 0;
    for (int64_t i = 0; i < transfers; i++)
        n += x->transfers[i].request_count;
    DT_TRY(DT_NEW(&x->requests, n));
    n = 0;
    for (int64_t i = 0; i < transfers; i++) {
        x->transfers[i].requests = x->requests + n;
        n += x->transfers[i].request_count;
    }
    return DT_OK;
}

static int build(struct dt_exchange *x, const struct sorted *list, int64_t n)
{
    DT_TRY(DT_NEW(&x->pieces, n));
    DT_TRY(DT_NEW(&x->transfers, n));
    DT_TRY(DT_NEW(&x->sources, n));
    for (int64_t i = 0; i < n; i++)
        x->pieces[i] = list[i].piece;
    make_groups(x, list, n);
    int64_t transfers = 0;
    for (int64_t i = 0; i < x->bucket_count; i++) {
        struct exchange__bucket *b = &x->buckets[i];
        rotate(b->sends, b->send_count, x->rank);
        transfers += b->send_count + b->receive_count;
        finish_bucket(x, b);
    }
    return give_requests(x, transfers);
}

int dt_exchange_new(const struct dt_bucket *buckets, int64_t count, const struct dt_move *move,
                    int32_t rank, enum dt_exchange_kind kind, struct dt_comm *comm,
                    enum dt_comm_kind traffic, uint64_t key_base, struct dt_exchange **out)
{
    struct dt_exchange *x;
    struct sorted *list = NULL;
    int rc;

    DT_TRY(DT_NEW(&x, 1));
    x->kind = kind;
    x->element_bytes = kind == DT_EXCHANGE_SUM_FIXED ? sizeof(int64_t) : sizeof(float);
    x->rank = rank;
    x->comm = comm;
    x->traffic = traffic;
    x->key_base = key_base;
    x->bucket_count = count;
    DT_CHECK(fail, rc, DT_NEW(&x->buckets, count));
    DT_CHECK(fail, rc, sort_pieces(buckets, count, move, rank, &list));
    DT_CHECK(fail, rc, build(x, list, move->count));
    free(list);
    *out = x;
    return DT_OK;
fail:
    free(list);
    dt_exchange_free(x);
    return rc;
}

void dt_exchange_free(struct dt_exchange *x)
{
    if (!x)
        return;
    free(x->requests);
    free(x->sources);
    free(x->transfers);
    free(x->pieces);
    free(x->buckets);
    free(x);
}

size_t dt_exchange_staging(const struct dt_exchange *x)
{
    size_t most = 0;
    for (int64_t i = 0; i < x->bucket_count; i++)
        most = x->buckets[i].staging > most ? x->buckets[i].staging : most;
    return most;
}

void dt_exchange_attach(struct dt_exchange *x, const void *from, void *to,
                        struct dt_staging *staging)
{
    x->from = from;
    x->to = to;
    x->staging = staging;
}
