/* Posting requests and waiting for them, from any thread.
 *
 * A post appends to the list and wakes the communication thread if it sleeps; a wait sleeps on a
 * condition of its own, which that thread signals when exactly this wait is over, so hundreds of
 * finished messages wake a computing thread once. A wait that lasts too long ends the epoch: its
 * request may stand on the caller's stack, so it must be over before the wait returns. */
#include "base/clock.h"
#include "comm/internal.h"

#include <errno.h>
#include <math.h>

static void post(struct dt_comm *c, struct dt_comm_request *r)
{
    r->comm = c;
    r->handle = NULL;
    r->moved = 0;
    r->started = dt_clock_seconds();
    r->next = NULL;
    atomic_store(&r->state, DT_COMM_PENDING);
    pthread_mutex_lock(&c->lock);
    r->previous = c->last;
    *(c->last ? &c->last->next : &c->first) = r;
    c->last = r;
    if (!c->fresh)
        c->fresh = r;
    comm__wake_thread(c);
    pthread_mutex_unlock(&c->lock);
}

void dt_comm_send(struct dt_comm *c, struct dt_comm_request *r, int32_t peer,
                  enum dt_comm_kind kind, uint64_t key, const void *data, size_t bytes)
{
    r->send = true;
    r->peer = peer;
    r->kind = kind;
    r->key = key;
    r->data = (void *)(uintptr_t)data; /* only read from */
    r->bytes = bytes;
    post(c, r);
}

void dt_comm_recv(struct dt_comm *c, struct dt_comm_request *r, int32_t peer,
                  enum dt_comm_kind kind, uint64_t key, void *data, size_t bytes)
{
    r->send = false;
    r->peer = peer;
    r->kind = kind;
    r->key = key;
    r->data = data;
    r->bytes = bytes;
    post(c, r);
}

bool comm__ready(const struct dt_comm *c, const struct comm__waiter *w)
{
    if (c->ended) /* then everybody waits for the same: that nothing is in use any more */
        return c->gone && !c->first && !c->finishing;
    if (w->request)
        return c->finishing != w->request && atomic_load(&w->request->state) != DT_COMM_PENDING;
    return atomic_load(w->flag) != w->while_value;
}

void comm__notify(struct dt_comm *c)
{
    for (struct comm__waiter *w = c->waiters; w; w = w->next)
        if (comm__ready(c, w))
            pthread_cond_signal(&w->news);
}

void dt_comm_wake(struct dt_comm *c)
{
    pthread_mutex_lock(&c->lock);
    comm__notify(c);
    pthread_mutex_unlock(&c->lock);
}

static struct timespec deadline_after(double seconds)
{
    double at = dt_clock_seconds() + fmin(seconds, 1e9);
    return (struct timespec){.tv_sec = (time_t)at, .tv_nsec = (long)((at - floor(at)) * 1e9)};
}

static void end_too_late(struct dt_comm *c, const struct comm__waiter *w)
{
    char words[160] = "nothing of ours is pending";
    const struct dt_comm_request *r = w->request ? w->request : c->first;
    if (r)
        comm__describe(r, words, sizeof words);
    comm__end(c, DT_FAIL(DT_E_TIMEOUT, "%s: not over after %g s", words, c->timeout));
}

static int wait_for(struct dt_comm *c, struct comm__waiter *w, const char *what)
{
    if (pthread_equal(pthread_self(), c->thread))
        return DT_FAIL(DT_E_INTERNAL, "%s: the communication thread may not wait", what);
    struct timespec deadline = deadline_after(c->timeout);
    pthread_cond_init(&w->news, NULL);
    pthread_mutex_lock(&c->lock);
    w->next = c->waiters;
    c->waiters = w;
    while (!comm__ready(c, w)) {
        if (c->ended)
            pthread_cond_wait(&w->news, &c->lock);
        else if (pthread_cond_clockwait(&w->news, &c->lock, CLOCK_MONOTONIC, &deadline) ==
                     ETIMEDOUT &&
                 !c->ended && !comm__ready(c, w))
            end_too_late(c, w);
    }
    struct comm__waiter **at = &c->waiters;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    bool ended = c->ended;
    pthread_mutex_unlock(&c->lock);
    pthread_cond_destroy(&w->news);
    return ended ? dt_error_context(dt_error_restore(&c->end), "%s", what) : DT_OK;
}

int dt_comm_wait(struct dt_comm *c, struct dt_comm_request *r, const char *what)
{
    struct comm__waiter w = {.request = r};
    return wait_for(c, &w, what);
}

int dt_comm_wait_all(struct dt_comm *c, struct dt_comm_request *r, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        DT_TRY(dt_comm_wait(c, &r[i], what));
    return DT_OK;
}

int dt_comm_wait_flag(struct dt_comm *c, _Atomic int64_t *flag, int64_t while_value,
                      const char *what)
{
    struct comm__waiter w = {.flag = flag, .while_value = while_value};
    return wait_for(c, &w, what);
}
