/* See exchange.h. Building the tables is in exchange_plan.c; here they run.
 *
 * Who runs what: a bucket begins on the compute thread, or on the communication thread when it had
 * to wait for a slot; arrivals are put in place and summed on the communication thread. Counters
 * are atomic, the queue of waiting buckets has a lock. */
#include "state/exchange_private.h"

#include "base/error.h"
#include "ops/ops.h"

/* Elements that stay in the first-level cache while all senders are added. */
#define SUM_CHUNK 8192

static unsigned char *at(const void *base, int64_t element, const struct dt_exchange *x)
{
    return (unsigned char *)(uintptr_t)base + (size_t)element * x->element_bytes;
}

/* A box of the kind's elements; int64 travel as pairs of floats. */
static void put(const struct dt_exchange *x, void *to, int64_t ldt, const void *from, int64_t ldf,
                int64_t rows, int64_t cols)
{
    int64_t w = (int64_t)(x->element_bytes / sizeof(float));
    dt_k->copy(to, DT_F32, ldt * w, from, DT_F32, ldf * w, rows, cols * w);
}

static void accumulate(const struct dt_exchange *x, void *to, int64_t ldt, const void *from,
                       int64_t ldf, int64_t rows, int64_t cols)
{
    if (x->kind == DT_EXCHANGE_SUM) {
        dt_k->add(to, ldt, from, ldf, rows, cols);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        dt_k->fixed_sum((int64_t *)to + r * ldt, (const int64_t *)from + r * ldf, cols);
}

static void *slot_of(const struct dt_exchange *x, const struct exchange__bucket *b)
{
    return x->staging->slot[b->slot];
}

/* ---- Summing what has arrived ---- */

/* Every source covers the same run of home: one pass, cache by cache. */
static void sum_dense(struct dt_exchange *x, struct exchange__bucket *b)
{
    const unsigned char *slot = slot_of(x, b);
    for (int64_t i = 0; i < b->dense_count; i += SUM_CHUNK) {
        int64_t n = b->dense_count - i < SUM_CHUNK ? b->dense_count - i : SUM_CHUNK;
        unsigned char *to = at(x->to, b->dense_at + i, x);
        for (int64_t s = 0; s < b->source_count; s++) {
            const struct exchange__source *src = &b->sources[s];
            const unsigned char *from =
                src->transfer ? slot + src->transfer->slot_at + (size_t)i * x->element_bytes
                              : at(x->from, src->at + i, x);
            if (s == 0)
                put(x, to, n, from, n, 1, n);
            else
                accumulate(x, to, n, from, n, 1, n);
        }
    }
}

static void zero_homes(struct dt_exchange *x, const struct dt_piece *p, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t r = 0; r < p[i].rows; r++)
            dt_k->zero(at(x->to, p[i].to_at + r * p[i].to_ld, x),
                       (size_t)p[i].cols * x->element_bytes);
}

/* Boxes of any shape: zero, then every source in rank order. */
static void sum_boxes(struct dt_exchange *x, struct exchange__bucket *b)
{
    for (int64_t s = 0; s < b->source_count; s++)
        zero_homes(x, b->sources[s].pieces, b->sources[s].piece_count);
    for (int64_t s = 0; s < b->source_count; s++) {
        const struct exchange__source *src = &b->sources[s];
        const unsigned char *packed =
            src->transfer ? (unsigned char *)slot_of(x, b) + src->transfer->slot_at : NULL;
        for (int64_t i = 0; i < src->piece_count; i++) {
            const struct dt_piece *p = &src->pieces[i];
            const void *from = packed ? packed : at(x->from, p->from_at, x);
            accumulate(x, at(x->to, p->to_at, x), p->to_ld, from, packed ? p->cols : p->from_ld,
                       p->rows, p->cols);
            if (packed)
                packed += (size_t)(p->rows * p->cols) * x->element_bytes;
        }
    }
}

/* What came packed, to its places. */
static void unpack(struct dt_exchange *x, struct exchange__bucket *b)
{
    for (int64_t s = 0; s < b->source_count; s++) {
        const struct exchange__source *src = &b->sources[s];
        const struct exchange__transfer *t = src->transfer;
        if (!t || t->in_place)
            continue;
        const unsigned char *packed = (unsigned char *)slot_of(x, b) + t->slot_at;
        for (int64_t i = 0; i < src->piece_count; i++) {
            const struct dt_piece *p = &src->pieces[i];
            put(x, at(x->to, p->to_at, x), p->to_ld, packed, p->cols, p->rows, p->cols);
            packed += (size_t)(p->rows * p->cols) * x->element_bytes;
        }
    }
}

/* A copy's pieces that need no message: by the thread that waits, while the others travel. */
static void copy_own(struct dt_exchange *x, struct exchange__bucket *b)
{
    if (x->kind != DT_EXCHANGE_COPY || b->own_copied)
        return;
    b->own_copied = true;
    for (int64_t s = 0; s < b->source_count; s++)
        for (int64_t i = 0; !b->sources[s].transfer && i < b->sources[s].piece_count; i++) {
            const struct dt_piece *p = &b->sources[s].pieces[i];
            put(x, at(x->to, p->to_at, x), p->to_ld, at(x->from, p->from_at, x), p->from_ld,
                p->rows, p->cols);
        }
}

static void take_in(struct dt_exchange *x, struct exchange__bucket *b)
{
    if (x->kind == DT_EXCHANGE_COPY)
        unpack(x, b);
    else if (b->dense)
        sum_dense(x, b);
    else
        sum_boxes(x, b);
}

/* ---- One bucket's life ---- */

static void begin(struct dt_exchange *x, struct exchange__bucket *b);

/* The next one in the queue for which a slot is free. */
static void let_next_begin(struct dt_staging *s)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct exchange__bucket *b = s->first;
        int slot = 0;
        while (slot < DT_EXCHANGE_SLOTS && s->used[slot])
            slot++;
        if (!b || slot == DT_EXCHANGE_SLOTS) {
            pthread_mutex_unlock(&s->lock);
            return;
        }
        s->first = b->next;
        s->used[slot] = true;
        b->slot = slot;
        pthread_mutex_unlock(&s->lock);
        begin(b->exchange, b);
    }
}

static void over(struct dt_exchange *x, struct exchange__bucket *b)
{
    struct dt_staging *s = x->staging;
    pthread_mutex_lock(&s->lock);
    s->used[b->slot] = false;
    b->slot = -1;
    pthread_mutex_unlock(&s->lock);
    let_next_begin(s);
    /* The last touch: who waits for it may free exchange and staging at once. */
    atomic_fetch_sub(&x->open, 1);
}

/* On the communication thread: one message of the bucket is over. */
static void message_over(struct dt_comm_request *r, void *arg)
{
    struct exchange__bucket *b = arg;
    struct dt_exchange *x = b->exchange;
    struct dt_comm_request *none = NULL;
    if (atomic_load(&r->state) < 0)
        atomic_compare_exchange_strong(&x->failed, &none, r);
    dt_ops_serial(true); /* the team is the compute thread's */
    if (!r->send && atomic_fetch_sub(&b->receives_left, 1) == 1) {
        if (!atomic_load(&x->failed))
            take_in(x, b);
        atomic_store(&b->received, 1);
    }
    if (atomic_fetch_sub(&b->left, 1) == 1)
        over(x, b);
    dt_ops_serial(false);
}

static void pack(struct dt_exchange *x, const struct exchange__transfer *t, unsigned char *to)
{
    for (int64_t i = 0; i < t->piece_count; i++) {
        const struct dt_piece *p = &t->pieces[i];
        put(x, to, p->cols, at(x->from, p->from_at, x), p->from_ld, p->rows, p->cols);
        to += (size_t)(p->rows * p->cols) * x->element_bytes;
    }
}

static uint64_t key_of(const struct dt_exchange *x, const struct exchange__bucket *b, int64_t part)
{
    return x->key_base << 28 | (uint64_t)(b - x->buckets) << 12 | (uint64_t)part;
}

static void post(struct dt_exchange *x, struct exchange__bucket *b, struct exchange__transfer *t,
                 bool send, unsigned char *data)
{
    for (int64_t i = 0; i < t->request_count; i++) {
        size_t done = (size_t)i * DT_COMM_MESSAGE;
        size_t n = t->bytes - done < DT_COMM_MESSAGE ? t->bytes - done : DT_COMM_MESSAGE;
        struct dt_comm_request *r = &t->requests[i];
        r->finished = message_over;
        r->arg = b;
        if (send)
            dt_comm_send(x->comm, r, t->peer, x->traffic, key_of(x, b, i), data + done, n);
        else
            dt_comm_recv(x->comm, r, t->peer, x->traffic, key_of(x, b, i), data + done, n);
    }
}

static void begin(struct dt_exchange *x, struct exchange__bucket *b)
{
    unsigned char *slot = slot_of(x, b);
    /* One more than there are messages, so that none of them ends the bucket before all are posted.
     */
    atomic_store(&b->left, b->message_count + 1);
    atomic_store(&b->receives_left, b->receive_messages);
    for (int64_t i = 0; i < b->receive_count; i++) {
        struct exchange__transfer *t = &b->receives[i];
        post(x, b, t, false, t->in_place ? at(x->to, t->at, x) : slot + t->slot_at);
    }
    for (int64_t i = 0; i < b->send_count; i++) {
        struct exchange__transfer *t = &b->sends[i];
        if (!t->in_place)
            pack(x, t, slot + t->slot_at);
        post(x, b, t, true, t->in_place ? at(x->from, t->at, x) : slot + t->slot_at);
    }
    if (b->receive_messages == 0) {
        take_in(x, b);
        atomic_store(&b->received, 1);
    }
    if (atomic_fetch_sub(&b->left, 1) == 1)
        over(x, b);
}

int dt_exchange_start(struct dt_exchange *x, int64_t bucket)
{
    struct exchange__bucket *b = &x->buckets[bucket];
    atomic_store(&b->received, 0);
    b->own_copied = false;
    atomic_fetch_add(&x->open, 1);
    struct dt_staging *s = x->staging;
    pthread_mutex_lock(&s->lock);
    b->slot = -1;
    b->next = NULL;
    if (s->first)
        s->last->next = b;
    else
        s->first = b;
    s->last = b;
    pthread_mutex_unlock(&s->lock);
    let_next_begin(s);
    return DT_OK;
}

/* The words of a failed message are the transport's. */
static int failure(struct dt_exchange *x, const char *what)
{
    struct dt_comm_request *r = atomic_load(&x->failed);
    return r ? dt_comm_wait(x->comm, r, what) : DT_OK;
}

static int wait_flag(struct dt_exchange *x, _Atomic int64_t *flag, int64_t while_value,
                     const char *what)
{
    if (x->comm && atomic_load(flag) == while_value)
        DT_TRY(dt_comm_wait_flag(x->comm, flag, while_value, what));
    return failure(x, what);
}

static const char *words(const struct dt_exchange *x)
{
    return x->traffic == DT_COMM_GATHER   ? "weights from their homes"
           : x->traffic == DT_COMM_REDUCE ? "gradients to their homes"
                                          : "state that moves";
}

int dt_exchange_wait(struct dt_exchange *x, int64_t bucket)
{
    copy_own(x, &x->buckets[bucket]);
    return wait_flag(x, &x->buckets[bucket].received, 0, words(x));
}

int dt_exchange_wait_all(struct dt_exchange *x)
{
    for (int64_t i = 0; i < x->bucket_count; i++)
        copy_own(x, &x->buckets[i]);
    for (int64_t n; (n = atomic_load(&x->open)) > 0;)
        DT_TRY(wait_flag(x, &x->open, n, words(x)));
    return failure(x, words(x));
}
