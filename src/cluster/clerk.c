/* What may wait on a disk (making room for a checkpoint, committing it, deleting old ones) happens
 * in a thread of its own: the coordinator goes on answering pulses meanwhile. */
#include "base/arena.h"
#include "base/error.h"
#include "cluster/coordinator_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct clerk {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool started, quit, has_job, is_done;
    struct clerk__job job;
    int done_fd;
};

static void work(struct clerk__job *j)
{
    if (j->kind == CLERK_BEGIN) {
        dt_error_save(dt_book_save_begin(j->book, j->step, &j->writer), &j->error);
        return;
    }
    int rc = j->error.code < 0 ? dt_error_restore(&j->error) : DT_OK;
    j->done = dt_book_save_end(j->book, j->step, j->writer, rc);
}

static void *run(void *self)
{
    struct clerk *k = self;
    pthread_mutex_lock(&k->lock);
    for (;;) {
        while (!k->quit && !k->has_job)
            pthread_cond_wait(&k->news, &k->lock);
        if (!k->has_job)
            break;
        struct clerk__job job = k->job;
        pthread_mutex_unlock(&k->lock);
        work(&job);
        pthread_mutex_lock(&k->lock);
        k->job = job;
        k->has_job = false;
        k->is_done = true;
        eventfd_write(k->done_fd, 1);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

int clerk__open(struct clerk **out)
{
    struct clerk *k;
    DT_TRY(DT_NEW(&k, 1));
    *out = k;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->news, NULL);
    k->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (k->done_fd < 0 || pthread_create(&k->thread, NULL, run, k) != 0)
        return DT_FAIL(DT_E_MEMORY, "cannot start the clerk thread: %s", strerror(errno));
    k->started = true;
    return DT_OK;
}

void clerk__close(struct clerk *k)
{
    if (!k)
        return;
    if (k->started) {
        pthread_mutex_lock(&k->lock);
        k->quit = true;
        pthread_cond_signal(&k->news);
        pthread_mutex_unlock(&k->lock);
        pthread_join(k->thread, NULL);
    }
    if (k->done_fd >= 0)
        close(k->done_fd);
    pthread_cond_destroy(&k->news);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

int clerk__descriptor(const struct clerk *k)
{
    return k->done_fd;
}

void clerk__give(struct clerk *k, const struct clerk__job *job)
{
    pthread_mutex_lock(&k->lock);
    k->job = *job;
    k->has_job = true;
    pthread_cond_signal(&k->news);
    pthread_mutex_unlock(&k->lock);
}

bool clerk__take(struct clerk *k, struct clerk__job *job)
{
    eventfd_t ignored;
    pthread_mutex_lock(&k->lock);
    bool done = k->is_done;
    if (done)
        *job = k->job;
    k->is_done = false;
    eventfd_read(k->done_fd, &ignored);
    pthread_mutex_unlock(&k->lock);
    return done;
}

bool clerk__busy(const struct clerk *k)
{
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&k->lock);
    bool busy = k->has_job || k->is_done;
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&k->lock);
    return busy;
}
