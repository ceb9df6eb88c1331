/* A worker's communication: opening, connecting, ending, and what can be asked about it. The thread
 * itself is in thread.c, posting and waiting in wait.c. */
#include "base/arena.h"
#include "base/clock.h"
#include "comm/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

const char *comm__kind_name(enum dt_comm_kind kind)
{
    switch (kind) {
    case DT_COMM_GATHER:
        return "weights";
    case DT_COMM_REDUCE:
        return "gradients";
    case DT_COMM_MOVE:
        return "state";
    case DT_COMM_ACTIVATION:
        return "activations";
    case DT_COMM_COLLECTIVE:
        return "a collective";
    case DT_COMM_TEST:
        return "a test";
    }
    return "an unknown kind";
}

void comm__describe(const struct dt_comm_request *r, char *out, size_t size)
{
    snprintf(out, size, "%s of %zu bytes %s worker %d (%s, key 0x%llx)",
             r->send ? "send" : "receive", r->bytes, r->send ? "to" : "from", (int)r->peer,
             comm__kind_name(r->kind), (unsigned long long)r->key);
}

static int take_address(struct dt_comm *c)
{
    const void *data;
    DT_TRY(c->transport->address(c->transport->self, &data, &c->address_bytes));
    unsigned char *copy;
    DT_TRY(DT_NEW(&copy, c->address_bytes));
    memcpy(copy, data, c->address_bytes);
    c->address = copy;
    return DT_OK;
}

static int begin(struct dt_comm *c)
{
    if (c->size < 1 || c->size > COMM__WORKERS_MOST || c->rank < 0 || c->rank >= c->size)
        return DT_FAIL(DT_E_INTERNAL, "worker %d of %d: expected at most %d workers", (int)c->rank,
                       (int)c->size, COMM__WORKERS_MOST);
    DT_TRY(take_address(c));
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake < 0)
        return DT_FAIL(DT_E_IO, "cannot make an eventfd: %s", strerror(errno));
    int failed = pthread_create(&c->thread, NULL, comm__thread, c);
    if (failed)
        return DT_FAIL(DT_E_IO, "cannot start the communication thread: %s", strerror(failed));
    return DT_OK;
}

static void release(struct dt_comm *c)
{
    if (c->wake >= 0)
        close(c->wake);
    pthread_cond_destroy(&c->job_done);
    pthread_mutex_destroy(&c->lock);
    free(c->address);
    free(c);
}

int dt_comm_open(const struct dt_comm_options *o, struct dt_comm **out)
{
    struct dt_comm *c;
    int rc = DT_NEW(&c, 1);
    if (rc < 0) {
        o->transport->close(o->transport->self, false);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    c->rank = o->rank;
    c->size = o->size;
    c->epoch = o->epoch;
    c->timeout = o->timeout;
    c->transport = o->transport;
    c->wake = -1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->job_done, NULL);
    rc = begin(c);
    if (rc < 0) {
        c->transport->close(c->transport->self, false);
        release(c);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    *out = c;
    return DT_OK;
}

int dt_comm_address(const struct dt_comm *c, const void **data, size_t *bytes)
{
    *data = c->address;
    *bytes = c->address_bytes;
    return DT_OK;
}

/* Has the thread call run(c, arg); returns when it has. */
static void on_thread(struct dt_comm *c, void (*run)(struct dt_comm *, void *), void *arg)
{
    struct comm__job job = {.run = run, .arg = arg};
    pthread_mutex_lock(&c->lock);
    struct comm__job **at = &c->jobs;
    while (*at)
        at = &(*at)->next;
    *at = &job;
    comm__wake_thread(c);
    while (!job.done)
        pthread_cond_wait(&c->job_done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void connect_all(struct dt_comm *c, void *table)
{
    if (!c->transport)
        return;
    int rc = c->transport->connect(c->transport->self, table, c->size);
    pthread_mutex_lock(&c->lock);
    if (rc < 0)
        comm__end(c, rc);
    c->connected = rc == DT_OK;
    pthread_mutex_unlock(&c->lock);
}

int dt_comm_connect(struct dt_comm *c, const struct dt_comm_address *table)
{
    on_thread(c, connect_all, (void *)(uintptr_t)table); /* only read from */
    pthread_mutex_lock(&c->lock);
    bool ended = c->ended;
    pthread_mutex_unlock(&c->lock);
    return ended ? dt_error_context(dt_error_restore(&c->end), "connecting the workers") : DT_OK;
}

void dt_comm_close(struct dt_comm *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->ended) {
        c->orderly = !c->first;
        comm__end(c, DT_FAIL(DT_E_EPOCH, "this worker left epoch %lld", (long long)c->epoch));
        dt_error_clear();
    }
    c->stop = true;
    comm__wake_thread(c);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    release(c);
}

void dt_comm_abort(struct dt_comm *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    if (!c->ended) {
        comm__end(c, DT_FAIL(DT_E_EPOCH, "%s", why));
        dt_error_clear();
    }
    pthread_mutex_unlock(&c->lock);
}

int32_t dt_comm_rank(const struct dt_comm *c)
{
    return c->rank;
}

int32_t dt_comm_size(const struct dt_comm *c)
{
    return c->size;
}

bool dt_comm_oldest(struct dt_comm *c, struct dt_comm_pending *out)
{
    pthread_mutex_lock(&c->lock);
    const struct dt_comm_request *r = c->first;
    if (r)
        *out = (struct dt_comm_pending){.send = r->send,
                                        .peer = r->peer,
                                        .kind = r->kind,
                                        .key = r->key,
                                        .seconds = dt_clock_seconds() - r->started};
    pthread_mutex_unlock(&c->lock);
    return r != NULL;
}

void dt_comm_counts(struct dt_comm *c, struct dt_comm_counts *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->counts;
    pthread_mutex_unlock(&c->lock);
}

struct path_question {
    int32_t peer;
    char *out;
    size_t size;
};

static void ask_path(struct dt_comm *c, void *arg)
{
    struct path_question *q = arg;
    if (c->transport && c->connected)
        c->transport->path(c->transport->self, q->peer, q->out, q->size);
}

void dt_comm_path(struct dt_comm *c, int32_t peer, char *out, size_t size)
{
    struct path_question q = {peer, out, size};
    snprintf(out, size, "%s", peer == c->rank ? "self" : "");
    if (peer >= 0 && peer < c->size && peer != c->rank)
        on_thread(c, ask_path, &q);
}
