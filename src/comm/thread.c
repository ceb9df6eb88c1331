/* The communication thread: takes what was posted, moves the transport on, ends requests, sleeps.
 *
 * It is the only one that touches the transport. A turn: calls for other threads, posted requests
 * and the end of the epoch first, then progress; when nothing moved it sleeps on the transport's
 * descriptor and its own eventfd. A transport may refuse to let it sleep for as long as a send is
 * pending (UCX does while a peer's queue is full); then it yields a few times and afterwards polls
 * once a millisecond: it never spins, and it always looks at its queue in between.
 *
 * Before changing it: after `finished` was called, or the lock released where there is none, a
 * request may already be gone or in use again. */
#include "comm/internal.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

enum {
    YIELDS = 16, /* turns before a transport that keeps us awake is only polled */
    AWAKE_MILLISECONDS = 1,
    SLEEP_MILLISECONDS = 1000, /* nothing needs it; it bounds the harm of a lost wake-up */
};

void comm__wake_thread(struct dt_comm *c)
{
    if (!c->asleep)
        return;
    c->asleep = false;
    eventfd_write(c->wake, 1); /* can fail only when it is full: then the thread wakes anyway */
}

void comm__end(struct dt_comm *c, int rc)
{
    if (c->ended)
        return;
    dt_error_save(rc, &c->end);
    c->ended = true;
    comm__wake_thread(c);
}

static void unlink_request(struct dt_comm *c, struct dt_comm_request *r)
{
    if (c->fresh == r)
        c->fresh = r->next;
    *(r->previous ? &r->previous->next : &c->first) = r->next;
    *(r->next ? &r->next->previous : &c->last) = r->previous;
}

static void count(struct dt_comm *c, const struct dt_comm_request *r)
{
    if (r->peer == c->rank)
        return;
    c->counts.messages_sent += r->send;
    c->counts.messages_received += !r->send;
    *(r->send ? &c->counts.bytes_sent : &c->counts.bytes_received) += (int64_t)r->bytes;
}

static void finish(struct dt_comm *c, struct dt_comm_request *r, int state)
{
    pthread_mutex_lock(&c->lock);
    unlink_request(c, r);
    if (state == DT_OK)
        count(c, r);
    void (*finished)(struct dt_comm_request *, void *) = r->finished;
    void *arg = r->arg;
    c->finishing = finished ? r : NULL;
    atomic_store(&r->state, state);
    if (finished) {
        pthread_mutex_unlock(&c->lock);
        finished(r, arg);
        pthread_mutex_lock(&c->lock);
        c->finishing = NULL;
    }
    comm__notify(c);
    pthread_mutex_unlock(&c->lock);
}

/* All requests of an epoch end with its first failure; `end` does not change once it is set. */
static int end_because(struct dt_comm *c, int rc)
{
    pthread_mutex_lock(&c->lock);
    comm__end(c, rc);
    pthread_mutex_unlock(&c->lock);
    return c->end.code;
}

void dt_comm_over(struct dt_comm_request *r, int rc)
{
    if (rc == DT_OK && !r->send && r->moved != r->bytes) {
        char words[160];
        comm__describe(r, words, sizeof words);
        rc = DT_FAIL(DT_E_INTERNAL, "%s: %zu bytes came; the workers disagree about what is sent",
                     words, r->moved);
    }
    finish(r->comm, r, rc < 0 ? end_because(r->comm, rc) : rc);
}

static int check(const struct dt_comm *c, const struct dt_comm_request *r)
{
    bool fine = r->peer >= 0 && r->peer < c->size && (unsigned)r->kind < 1u << COMM__KIND_BITS &&
                r->key >> DT_COMM_KEY_BITS == 0 && r->bytes <= DT_COMM_MESSAGE &&
                (r->data || !r->bytes);
    if (fine)
        return DT_OK;
    char words[160];
    comm__describe(r, words, sizeof words);
    return DT_FAIL(DT_E_INTERNAL,
                   "%s: no such message; expected a worker below %d, a key below 2^%d and at most "
                   "%zu bytes",
                   words, (int)c->size, DT_COMM_KEY_BITS, DT_COMM_MESSAGE);
}

static void start(struct dt_comm *c, struct dt_comm_request *r)
{
    int rc = c->transport ? check(c, r) : DT_OK;
    if (!c->transport) {
        finish(c, r, c->end.code);
    } else if (rc < 0) {
        dt_comm_over(r, rc);
    } else if (r->peer == c->rank) {
        struct dt_comm_request *other = comm__mailbox_meet(&c->own, r);
        if (!other)
            return;
        comm__mailbox_deliver(r, other);
        dt_comm_over(other, DT_OK);
        dt_comm_over(r, DT_OK);
    } else if (r->send) {
        c->transport->send(c->transport->self, r, comm__tag(r));
    } else {
        c->transport->recv(c->transport->self, r, comm__tag(r));
    }
}

/* Everything still pending becomes fresh again, for `start` to end it. */
static void throw_away(struct dt_comm *c)
{
    c->transport->close(c->transport->self, c->orderly);
    c->transport = NULL;
    c->own.first = NULL;
    pthread_mutex_lock(&c->lock);
    c->gone = true;
    c->fresh = c->first;
    comm__notify(c);
    pthread_mutex_unlock(&c->lock);
}

static bool may_start(const struct dt_comm *c)
{
    return c->fresh && (c->connected || c->gone);
}

/* Does what other threads asked for; false when the thread shall return. */
static bool serve(struct dt_comm *c)
{
    pthread_mutex_lock(&c->lock);
    for (;;) {
        struct comm__job *job = c->jobs;
        struct dt_comm_request *r = may_start(c) ? c->fresh : NULL;
        bool over = c->ended && !c->gone;
        if (job)
            c->jobs = job->next;
        else if (!over && r)
            c->fresh = r->next;
        else if (!over)
            break;
        pthread_mutex_unlock(&c->lock);
        if (job)
            job->run(c, job->arg);
        else if (over)
            throw_away(c);
        else
            start(c, r);
        pthread_mutex_lock(&c->lock);
        if (job) {
            job->done = true;
            pthread_cond_broadcast(&c->job_done);
        }
    }
    bool go_on = !c->stop;
    pthread_mutex_unlock(&c->lock);
    return go_on;
}

static bool progress(struct dt_comm *c)
{
    int n = c->transport ? c->transport->progress(c->transport->self) : 0;
    if (n < 0)
        end_because(c, n);
    return n != 0;
}

/* `refused` counts how often in a row the transport had more to do although nothing moved. */
static void sleep_until_news(struct dt_comm *c, int *refused)
{
    struct pollfd fds[2] = {{.fd = c->wake, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    int timeout = SLEEP_MILLISECONDS;
    if (c->transport && c->transport->arm(c->transport->self)) {
        fds[1].fd = c->transport->descriptor(c->transport->self);
        *refused = 0;
    } else if (c->transport) {
        if (++*refused <= YIELDS) {
            sched_yield();
            return;
        }
        timeout = AWAKE_MILLISECONDS;
    }
    pthread_mutex_lock(&c->lock);
    bool news = c->jobs || may_start(c) || (c->ended && !c->gone) || c->stop;
    c->asleep = !news;
    pthread_mutex_unlock(&c->lock);
    if (news)
        return;
    poll(fds, 2, timeout);
    pthread_mutex_lock(&c->lock);
    c->asleep = false;
    pthread_mutex_unlock(&c->lock);
    eventfd_t ignored;
    if (fds[0].revents)
        eventfd_read(c->wake, &ignored);
}

void *comm__thread(void *comm)
{
    struct dt_comm *c = comm;
    int refused = 0;
    while (serve(c))
        if (progress(c))
            refused = 0;
        else
            sleep_until_news(c, &refused);
    return NULL;
}
