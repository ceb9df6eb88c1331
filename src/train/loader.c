#include "train/loader.h"

#include "base/arena.h"
#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_SECONDS 120

struct dt_loader {
    const struct dt_dataset *dataset;
    struct dt_sampler *sampler;
    int64_t next, end; /* steps the thread still has to read */
    struct dt_global_batch buffer[2];
    int64_t *samples;
    pthread_t thread;
    bool started, quit;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t filled, taken; /* batches; at most one of the two buffers is with the loop */
    int rc;
    struct dt_error_state error;
};

static int64_t own_tokens(const struct dt_plan *plan, int32_t rank,
                          const struct dt_batch_bound *bound)
{
    return dt_dispatch_most_tokens(plan, rank, bound->tokens, bound->longest);
}

size_t dt_global_batch_bytes(const struct dt_plan *plan, int32_t rank,
                             const struct dt_batch_bound *bound)
{
    int64_t tokens = own_tokens(plan, rank, bound);
    return (size_t)bound->sequences * 2 * sizeof(int64_t) + (size_t)tokens * 3 * sizeof(int32_t) +
           dt_dispatch_bytes(plan, bound->sequences, tokens);
}

int dt_global_batch_new(const struct dt_plan *plan, int32_t rank,
                        const struct dt_batch_bound *bound, struct dt_global_batch *out)
{
    int rc;
    int64_t tokens = own_tokens(plan, rank, bound);
    *out = (struct dt_global_batch){.plan = plan, .rank = rank};
    DT_CHECK(fail, rc, DT_NEW(&out->length, bound->sequences));
    DT_CHECK(fail, rc, DT_NEW(&out->sample, bound->sequences));
    DT_CHECK(fail, rc, DT_NEW(&out->ids, tokens));
    DT_CHECK(fail, rc, DT_NEW(&out->targets, tokens));
    DT_CHECK(fail, rc, DT_NEW(&out->position, tokens));
    DT_CHECK(fail, rc, dt_dispatch_new(plan, bound->sequences, tokens, &out->dispatch));
    return DT_OK;
fail:
    dt_global_batch_free(out);
    return rc;
}

void dt_global_batch_free(struct dt_global_batch *b)
{
    free(b->length);
    free(b->sample);
    free(b->ids);
    free(b->targets);
    free(b->position);
    dt_dispatch_free(&b->dispatch);
    *b = (struct dt_global_batch){0};
}

int dt_global_batch_dispatch(struct dt_global_batch *b)
{
    const struct dt_dispatch *d = &b->dispatch;
    DT_TRY(dt_dispatch_fill(&b->dispatch, b->plan, b->rank, b->length, b->sequences));
    b->tokens = 0;
    for (int64_t i = 0; i < b->sequences; i++)
        b->tokens += b->length[i];
    int32_t *position = b->position;
    for (int64_t i = 0; i < d->sequences; i++)
        for (int64_t t = 0; t < b->length[d->sequence[i]]; t++)
            *position++ = (int32_t)t;
    return DT_OK;
}

int dt_global_batch_read(struct dt_global_batch *b, const struct dt_dataset *d,
                         const int64_t *samples, int64_t count)
{
    b->sequences = count;
    for (int64_t i = 0; i < count; i++) {
        b->sample[i] = samples[i];
        b->length[i] = dt_dataset_length(d, samples[i]);
    }
    DT_TRY(dt_global_batch_dispatch(b));
    b->loss_tokens = 0;
    for (int64_t i = 0, at = 0; i < b->dispatch.sequences; i++) {
        int64_t sequence = b->dispatch.sequence[i], end = at + b->length[sequence];
        dt_dataset_read(d, samples[sequence], b->ids + at, b->targets + at);
        for (; at < end; at++)
            b->loss_tokens += b->targets[at] >= 0;
    }
    return DT_OK;
}

static int fill(struct dt_loader *l, struct dt_global_batch *b, int64_t step)
{
    int64_t count, epoch;
    DT_TRY(dt_sampler_batch(l->sampler, step, l->samples, &count, &epoch));
    DT_TRY(dt_global_batch_read(b, l->dataset, l->samples, count));
    dt_dataset_forget(l->dataset);
    b->step = step;
    b->epoch = epoch;
    return DT_OK;
}

static void *run(void *self)
{
    struct dt_loader *l = self;
    pthread_mutex_lock(&l->lock);
    while (!l->quit && l->rc >= 0 && l->next < l->end) {
        if (l->filled > l->taken) { /* the other buffer is with the loop */
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        struct dt_global_batch *b = &l->buffer[l->filled % 2];
        int64_t step = l->next;
        pthread_mutex_unlock(&l->lock);
        int rc = fill(l, b, step);
        pthread_mutex_lock(&l->lock);
        if (rc < 0)
            dt_error_save(rc, &l->error);
        l->rc = rc;
        l->next++;
        l->filled++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

int dt_loader_new(const struct dt_dataset *d, struct dt_sampler *s, const struct dt_plan *plan,
                  int32_t rank, const struct dt_batch_bound *bound, int64_t first, int64_t end,
                  struct dt_loader **out)
{
    struct dt_loader *l;
    int rc;
    DT_TRY(DT_NEW(&l, 1));
    l->dataset = d;
    l->sampler = s;
    l->next = first;
    l->end = end;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_t monotonic; /* a clock that is set must not look like a lost disk */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < 2; i++)
        DT_CHECK(fail, rc, dt_global_batch_new(plan, rank, bound, &l->buffer[i]));
    DT_CHECK(fail, rc, DT_NEW(&l->samples, bound->sequences));
    if (pthread_create(&l->thread, NULL, run, l) != 0) {
        rc = DT_FAIL(DT_E_MEMORY, "cannot start the data thread: %s", strerror(errno));
        goto fail;
    }
    l->started = true;
    *out = l;
    return DT_OK;
fail:
    dt_loader_free(l);
    return rc;
}

void dt_loader_free(struct dt_loader *l)
{
    if (!l)
        return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->quit = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    dt_global_batch_free(&l->buffer[0]);
    dt_global_batch_free(&l->buffer[1]);
    free(l->samples);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l);
}

int dt_loader_next(struct dt_loader *l, struct dt_global_batch **out)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += WAIT_SECONDS;
    int waited = 0, rc = DT_OK;
    pthread_mutex_lock(&l->lock);
    while (l->rc >= 0 && l->filled == l->taken && waited == 0)
        waited = pthread_cond_timedwait(&l->changed, &l->lock, &deadline);
    if (l->rc < 0)
        rc = dt_error_restore(&l->error);
    else if (l->filled == l->taken)
        rc = DT_FAIL(
            DT_E_TIMEOUT,
            "the data of step %lld did not arrive within %d s: is the disk of the corpus well?",
            (long long)l->next + 1, WAIT_SECONDS);
    else
        *out = &l->buffer[l->taken++ % 2];
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return rc;
}
