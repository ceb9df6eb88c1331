#include "cluster/remote.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cluster/remote_private.h"
#include "train/execute.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PULSES_PER_TIMEOUT 8
#define PULSE_MOST 1.0 /* seconds */

/* ---- The end of this process ---- */

static void last_words(const struct dt_remote *r, const char *words)
{
    char line[DT_MSG_WORDS + 256];
    int n = snprintf(line, sizeof line,
                     "ductile worker %d: %s; last decided step %lld; the newest checkpoint in %s "
                     "stands; the same command goes on\n",
                     r->rank, words, (long long)r->step, r->checkpoints);
    if (r->last_words >= 0) {
        ssize_t ignored =
            write(r->last_words, line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1));
        (void)ignored;
    }
}

/* State is on disk or lost, peers are being told: there is nothing to clean up that the kernel does
 * not. */
static void leave_now(int code)
{
    _exit(dt_error_exit_code(code));
}

static void on_end(struct dt_remote *r, const struct dt_msg_failed *m)
{
    if (m->code < 0)
        leave_now(m->code);
    r->ended = true;
}

/* ---- Reading ---- */

static void keep(struct dt_remote *r, const struct dt_frame *f)
{
    struct remote__inbox *in = &r->inbox;
    struct dt_msg_failed end;
    struct dt_msg_pulse pulse;
    bool good = true;
    switch (f->type) {
    case DT_MSG_JOB:
        free(r->job);
        r->job = malloc(f->bytes + 1);
        if ((good = r->has_job = r->job != NULL)) {
            memcpy(r->job, f->payload, f->bytes);
            r->job[f->bytes] = '\0';
            r->job_bytes = f->bytes;
        }
        break;
    case DT_MSG_TABLE: /* points into the frame: keep that */
        free(r->table_frame);
        r->table_frame = malloc(f->bytes);
        if ((good = r->has_table = r->table_frame != NULL))
            memcpy(r->table_frame, f->payload, r->table_bytes = f->bytes);
        break;
    case DT_MSG_GO:
        r->go = true;
        break;
    case DT_MSG_DECIDE:
        good = dt_unpack_decide(f, &in->decide) >= 0;
        in->has_decide = good;
        r->step = good ? in->decide.decision.step : r->step;
        break;
    case DT_MSG_EVALUATED:
        good = in->has_evaluated = dt_unpack_evaluated(f, &in->evaluated) >= 0;
        break;
    case DT_MSG_SAVE:
        good = in->has_save = dt_unpack_save(f, &in->save) >= 0;
        break;
    case DT_MSG_SAVED:
        good = in->has_saved = dt_unpack_saved(f, &in->saved) >= 0;
        break;
    case DT_MSG_STOP:
        atomic_store(&r->stop_asked, true);
        break;
    case DT_MSG_PULSE:
        good = dt_unpack_pulse(f, &pulse) >= 0;
        break;
    case DT_MSG_END:
        if ((good = dt_unpack_failed(f, &end) >= 0))
            on_end(r, &end);
        break;
    default:
        break;
    }
    if (!good) {
        last_words(r, dt_error_message());
        leave_now(DT_E_INTERNAL);
    }
}

static void read_all(struct dt_remote *r, short revents)
{
    struct dt_frame f;
    pthread_mutex_lock(&r->lock);
    int rc = dt_link_ready(r->link, revents);
    while (dt_link_next(r->link, &f))
        keep(r, &f);
    if (rc < 0 && !r->ended && !r->closing) {
        last_words(r, "its agent is gone");
        leave_now(DT_E_PEER);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Pulses ---- */

static int64_t resident(struct dt_remote *r)
{
    char text[128] = "";
    long long pages = 0;
    if (r->statm >= 0 && pread(r->statm, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%*s %lld", &pages);
    return pages * sysconf(_SC_PAGESIZE);
}

static void pulse(struct dt_remote *r)
{
    unsigned char frame[256];
    struct dt_comm_pending pending;
    struct dt_msg_pulse m = {
        .step = r->step, .resident = resident(r), .phase = atomic_load(&r->phase), .waits_for = -1};
    pthread_mutex_lock(&r->lock);
    if (r->instructions)
        m.progress = atomic_load_explicit(r->instructions, memory_order_relaxed);
    if (r->comm && dt_comm_oldest(r->comm, &pending)) {
        m.waits_for = pending.peer;
        m.waiting = pending.seconds;
    }
    dt_link_send(r->link, frame, dt_pack_pulse(frame, sizeof frame, r->rank, &m));
    bool silent =
        r->timeout > 0 && dt_clock_seconds() - dt_link_heard(r->link) > r->timeout + PULSE_MOST;
    pthread_mutex_unlock(&r->lock);
    if (silent) {
        char words[128];
        snprintf(words, sizeof words, "no word from its agent for %.1f s", r->timeout);
        last_words(r, words);
        leave_now(DT_E_PEER);
    }
}

static double interval(const struct dt_remote *r)
{
    double seconds = r->timeout / PULSES_PER_TIMEOUT;
    return r->timeout <= 0 || seconds > PULSE_MOST ? PULSE_MOST : seconds;
}

static void *run(void *self)
{
    struct dt_remote *r = self;
    double next = dt_clock_seconds();
    eventfd_t ignored;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        struct pollfd fds[2] = {{.fd = dt_link_fd(r->link), .events = dt_link_events(r->link)},
                                {.fd = r->wake, .events = POLLIN}};
        bool closing = r->closing;
        if (r->ended)
            fds[0].fd = -1;
        pthread_mutex_unlock(&r->lock);
        if (closing)
            return NULL;
        double left = next - dt_clock_seconds();
        int n = poll(fds, 2, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (n > 0 && fds[0].revents)
            read_all(r, fds[0].revents);
        if (n > 0 && fds[1].revents)
            eventfd_read(r->wake, &ignored);
        if (dt_clock_seconds() >= next && !r->ended) {
            pulse(r);
            next = dt_clock_seconds() + interval(r);
        }
    }
}

/* ---- Opening ---- */

int dt_remote_open(const struct dt_remote_options *o, struct dt_remote **out)
{
    struct dt_remote *r;
    int rc;
    DT_TRY(DT_NEW(&r, 1));
    r->rank = o->rank;
    r->last_words = o->last_words;
    snprintf(r->checkpoints, sizeof r->checkpoints, "the run's directory");
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DT_CHECK(fail, rc, dt_link_new(o->fd, DT_LINK_PLAIN, NULL, 0, &r->link));
    if (r->wake < 0 || pthread_create(&r->thread, NULL, run, r) != 0) {
        rc = DT_FAIL(DT_E_MEMORY, "cannot start the control thread: %s", strerror(errno));
        goto fail;
    }
    r->started = true;
    *out = r;
    return DT_OK;
fail:
    dt_remote_close(r);
    return rc;
}

void dt_remote_close(struct dt_remote *r)
{
    if (!r)
        return;
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        r->closing = true;
        pthread_mutex_unlock(&r->lock);
        eventfd_write(r->wake, 1);
        pthread_join(r->thread, NULL);
    }
    if (r->link)
        dt_link_free(r->link);
    if (r->wake >= 0)
        close(r->wake);
    if (r->statm >= 0)
        close(r->statm);
    free(r->job);
    free(r->table_frame);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void dt_remote_begin(struct dt_remote *r, int32_t rank, int64_t epoch, double timeout,
                     const char *checkpoints)
{
    pthread_mutex_lock(&r->lock);
    r->rank = rank;
    r->epoch = epoch;
    r->timeout = timeout;
    snprintf(r->checkpoints, sizeof r->checkpoints, "%s", checkpoints);
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->wake, 1);
}

void dt_remote_watch(struct dt_remote *r, struct dt_comm *comm)
{
    pthread_mutex_lock(&r->lock);
    r->comm = comm;
    pthread_mutex_unlock(&r->lock);
}

void dt_remote_progress(struct dt_remote *r, const _Atomic int64_t *instructions)
{
    pthread_mutex_lock(&r->lock);
    r->instructions = instructions;
    pthread_mutex_unlock(&r->lock);
}

/* ---- For the loop's thread ---- */

int dt_remote_send(struct dt_remote *r, const unsigned char *frame, int64_t bytes)
{
    pthread_mutex_lock(&r->lock);
    int rc = dt_link_send(r->link, frame, bytes);
    bool waits = rc >= 0 && (dt_link_events(r->link) & POLLOUT);
    pthread_mutex_unlock(&r->lock);
    if (waits)
        eventfd_write(r->wake, 1);
    return rc;
}

int dt_remote_text(struct dt_remote *r, int type, const char *text)
{
    size_t n = strlen(text), size = n + DT_MESSAGE_HEADER;
    unsigned char *frame = malloc(size);
    if (!frame)
        return DT_FAIL(DT_E_MEMORY, "no memory for a message of %zu bytes", size);
    int rc = dt_remote_send(r, frame, dt_pack_text(frame, size, type, r->rank, text, n));
    free(frame);
    return rc;
}

int remote__wait(struct dt_remote *r, const bool *flag, double seconds, const char *what)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 1;
    int waited = 0;
    while (!*flag && !r->ended && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&r->changed, &r->lock, &until);
    if (*flag)
        return DT_OK;
    if (r->ended)
        return DT_FAIL(DT_E_EPOCH, "the run ended while this worker waited for %s", what);
    return DT_FAIL(DT_E_TIMEOUT, "the coordinator did not send %s within %.0f s", what, seconds);
}

int dt_remote_job(struct dt_remote *r, double seconds, const char **text, size_t *bytes)
{
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, &r->has_job, seconds, "a job");
    *text = r->job;
    *bytes = r->job_bytes;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int dt_remote_table(struct dt_remote *r, double seconds, struct dt_msg_table *out)
{
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, &r->has_table, seconds, "the addresses of all workers");
    struct dt_frame f = {DT_MSG_TABLE, r->rank, r->table_frame, r->table_bytes};
    if (rc >= 0)
        rc = dt_unpack_table(&f, out);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int dt_remote_go(struct dt_remote *r, double seconds)
{
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, &r->go, seconds, "the word to begin");
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int dt_remote_ended(struct dt_remote *r, double seconds)
{
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, &r->ended, seconds, "the word to end");
    pthread_mutex_unlock(&r->lock);
    return rc;
}
