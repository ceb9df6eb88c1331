/* Questions that all workers ask together, and the coordinator's answers. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/coordinator_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t resident(const struct dt_coordinator *c)
{
    int64_t bytes = dt_book_resident(c->o.book);
    for (int32_t i = 0; i < c->o.job.workers; i++)
        bytes += c->workers[i].pulse.resident;
    return bytes;
}

/* ---- Votes ---- */

static void disagree(struct dt_coordinator *c, const struct dt_msg_vote *m, int32_t rank)
{
    const struct dt_vote *a = &c->sum.vote, *b = &m->vote;
    const struct {
        const char *name;
        uint64_t first, second;
    } values[] = {{"step", (uint64_t)a->step, (uint64_t)b->step},
                  {"attempt", (uint64_t)a->attempt, (uint64_t)b->attempt},
                  {"plan hash", a->plan, b->plan},
                  {"dispatch hash", a->dispatch, b->dispatch},
                  {"kernel set", a->kernels, b->kernels},
                  {"number of spaces", (uint64_t)a->spaces, (uint64_t)b->spaces}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].first != values[i].second) {
            coordinator__end(
                c, DT_FAIL(DT_E_INTERNAL,
                           "workers disagree about step %" PRId64 ": %s is %016" PRIx64
                           " for worker %d (%s) and %016" PRIx64
                           " for those before it; nothing was committed. Are program, data and "
                           "configuration the same on all machines?",
                           b->step, values[i].name, values[i].second, rank,
                           coordinator__host(c, rank), values[i].first));
            return;
        }
    coordinator__end(
        c, DT_FAIL(DT_E_INTERNAL, "the votes of step %" PRId64 " cannot be added up", b->step));
}

static void decide(struct dt_coordinator *c)
{
    struct dt_msg_decide m = {.epoch = c->o.job.epoch};
    double now = dt_clock_seconds();
    m.decision.space = m.space;
    int rc = dt_book_decide(c->o.book, &c->sum.vote, c->stop_asked, resident(c), &m.decision);
    c->votes = 0;
    if (rc < 0) {
        coordinator__end(c, rc);
        return;
    }
    if (c->last_decision > 0 && now - c->last_decision > c->longest_step)
        c->longest_step = now - c->last_decision;
    c->last_decision = now;
    c->stopped = c->stopped || m.decision.stop;
    coordinator__broadcast(c, dt_pack_decide(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, &m));
}

void coordinator__vote(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_vote m;
    if (c->stage != STAGE_RUNNING || !c->o.book)
        return;
    if (dt_unpack_vote(f, &m) < 0) {
        coordinator__end(c, DT_E_INTERNAL);
        return;
    }
    if (m.vote.epoch != c->o.job.epoch)
        return; /* of a membership that is over */
    m.vote.space = m.space;
    if (c->votes == 0) {
        c->sum = m;
        c->sum.vote.space = c->sum.space;
    } else if (!dt_msg_vote_merge(&c->sum, &m)) {
        disagree(c, &m, f->rank);
        return;
    }
    c->votes += m.workers;
    if (c->votes == c->o.job.workers)
        decide(c);
}

/* ---- Evaluation ---- */

void coordinator__evaluated(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_evaluated m, *sum = &c->evaluated;
    if (!c->o.book || dt_unpack_evaluated(f, &m) < 0)
        return;
    if (sum->workers == 0) {
        *sum = m;
    } else {
        dt_u128_add(&sum->loss, &m.loss);
        sum->finite = sum->finite && m.finite;
        sum->complete = sum->complete && m.complete;
        sum->tokens += m.tokens;
        sum->sequences += m.sequences;
        sum->bytes += m.bytes;
        sum->workers += m.workers;
    }
    if (sum->workers < c->o.job.workers)
        return;
    struct dt_evaluation e = {.loss = sum->loss,
                              .finite = sum->finite,
                              .tokens = sum->tokens,
                              .sequences = sum->sequences,
                              .bytes = sum->bytes,
                              .complete = sum->complete};
    if (e.complete)
        dt_book_evaluated(c->o.book, sum->step, &e);
    sum->stop = c->stop_asked && sum->step < c->o.book->steps;
    c->stopped = c->stopped || sum->stop;
    c->last_decision = dt_clock_seconds();
    coordinator__broadcast(c, dt_pack_evaluated(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, sum));
    sum->workers = 0;
}

/* ---- Saving: all ask, the clerk makes room, all write, the clerk commits ---- */

void coordinator__save(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_save m;
    if (!c->o.book || dt_unpack_save(f, &m) < 0)
        return;
    c->saving_step = m.step;
    if (++c->wants_save < c->o.job.workers)
        return;
    c->wants_save = c->parts_in = 0;
    c->save_error = (struct dt_error_state){0};
    struct clerk__job job = {.kind = CLERK_BEGIN, .book = c->o.book, .step = m.step};
    clerk__give(c->clerk, &job);
}

static void place_is_made(struct dt_coordinator *c, const struct clerk__job *job)
{
    struct dt_msg_save m = {.step = job->step, .go = job->error.code >= 0};
    c->writer = job->writer;
    if (m.go)
        snprintf(m.directory, sizeof m.directory, "%s", dt_checkpoint_temp(job->writer));
    else
        snprintf(m.words, sizeof m.words, "%.1000s", job->error.message);
    coordinator__broadcast(c, dt_pack_save(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, &m));
    if (m.go)
        return;
    dt_error_restore(&job->error);
    dt_book_save_end(c->o.book, job->step, job->writer, job->error.code);
    c->writer = NULL;
}

static int claim(struct dt_coordinator *c, const struct dt_msg_saved *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        struct dt_msg_range r;
        dt_msg_range_at(m->ranges, i, &r);
        if (r.file >= DT_STATE_FILES)
            return DT_FAIL(DT_E_DATA, "a worker wrote to file %u of %d", r.file, DT_STATE_FILES);
        DT_TRY(dt_checkpoint_claim(c->writer, c->o.book->first_file + (int)r.file, (size_t)r.offset,
                                   (size_t)r.length, r.hash));
    }
    return DT_OK;
}

void coordinator__saved(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_saved m;
    if (!c->writer || dt_unpack_saved(f, &m) < 0 || m.step != c->saving_step)
        return;
    int rc = m.code < 0 ? DT_FAIL(m.code, "worker %d (%s): %s", f->rank,
                                  coordinator__host(c, f->rank), m.words)
                        : claim(c, &m);
    if (rc < 0 && c->save_error.code >= 0)
        dt_error_save(rc, &c->save_error);
    if (++c->parts_in < c->o.job.workers)
        return;
    struct clerk__job job = {.kind = CLERK_END,
                             .book = c->o.book,
                             .step = m.step,
                             .writer = c->writer,
                             .error = c->save_error};
    c->writer = NULL;
    clerk__give(c->clerk, &job);
}

static void save_is_over(struct dt_coordinator *c, const struct clerk__job *job)
{
    struct dt_msg_saved m = {.step = job->step,
                             .code = job->done ? DT_OK : DT_E_SAVE,
                             .stop = c->stop_asked && job->step < c->o.book->steps};
    c->stopped = c->stopped || (m.stop && job->done);
    c->last_decision = dt_clock_seconds();
    coordinator__broadcast(c, dt_pack_saved(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, &m));
}

void coordinator__clerk_done(struct dt_coordinator *c)
{
    struct clerk__job job;
    if (!clerk__take(c->clerk, &job))
        return;
    if (job.kind == CLERK_BEGIN)
        place_is_made(c, &job);
    else
        save_is_over(c, &job);
}

void coordinator__finish(struct dt_coordinator *c)
{
    int rc = c->o.book ? dt_book_finish(c->o.book, c->stopped) : DT_OK;
    coordinator__end(c, rc);
}
