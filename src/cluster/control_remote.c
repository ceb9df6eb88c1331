/* train/control.h of one worker of several: every question goes to the coordinator. */
#include "cluster/remote_private.h"

#include "base/arena.h"
#include "base/error.h"
#include "state/state.h"

#include <stdlib.h>
#include <string.h>

/* The coordinator judges who is lost and ends the run; these bounds only keep a wait from being
 * endless. */
#define DECIDE_SECONDS 86400.0
#define SAVE_SECONDS 86400.0

struct side {
    struct dt_remote *remote;
    struct dt_state *state;
};

/* Send one frame and wait for the answer that raises *flag, which is lowered first. */
static int ask(struct dt_remote *r, const unsigned char *frame, int64_t bytes, bool *flag,
               double seconds, const char *what)
{
    pthread_mutex_lock(&r->lock);
    *flag = false;
    pthread_mutex_unlock(&r->lock);
    DT_TRY(dt_remote_send(r, frame, bytes));
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, flag, seconds, what);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

static int vote(void *self, const struct dt_vote *v)
{
    struct dt_remote *r = ((struct side *)self)->remote;
    unsigned char frame[8192];
    struct dt_msg_vote m = {.vote = *v, .workers = 1};
    if (v->spaces > DT_MSG_SPACES)
        return DT_FAIL(DT_E_INTERNAL, "a vote of %lld spaces", (long long)v->spaces);
    memcpy(m.space, v->space, (size_t)v->spaces * sizeof *m.space);
    m.vote.space = m.space;
    m.vote.epoch = r->epoch;
    pthread_mutex_lock(&r->lock);
    r->inbox.has_decide = false;
    pthread_mutex_unlock(&r->lock);
    return dt_remote_send(r, frame, dt_pack_vote(frame, sizeof frame, r->rank, &m));
}

static int decide(void *self, struct dt_decision *out)
{
    struct dt_remote *r = ((struct side *)self)->remote;
    pthread_mutex_lock(&r->lock);
    int rc = remote__wait(r, &r->inbox.has_decide, DECIDE_SECONDS, "a decision");
    if (rc >= 0) {
        struct dt_space_decision *space = out->space;
        *out = r->inbox.decide.decision;
        out->space = space;
        memcpy(space, r->inbox.decide.space, (size_t)out->spaces * sizeof *space);
        if (out->stop)
            atomic_store(&r->stop_asked, true);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

static bool stop_asked(void *self)
{
    return atomic_load(&((struct side *)self)->remote->stop_asked);
}

static int evaluated(void *self, int64_t step, struct dt_evaluation *e, bool *stop)
{
    struct dt_remote *r = ((struct side *)self)->remote;
    unsigned char frame[512];
    struct dt_msg_evaluated m = {.step = step,
                                 .loss = e->loss,
                                 .finite = e->finite,
                                 .tokens = e->tokens,
                                 .sequences = e->sequences,
                                 .bytes = e->bytes,
                                 .complete = e->complete,
                                 .workers = 1};
    DT_TRY(ask(r, frame, dt_pack_evaluated(frame, sizeof frame, r->rank, &m),
               &r->inbox.has_evaluated, DECIDE_SECONDS, "the evaluation of all workers"));
    const struct dt_msg_evaluated *all = &r->inbox.evaluated;
    *e = (struct dt_evaluation){.loss = all->loss,
                                .finite = all->finite,
                                .tokens = all->tokens,
                                .sequences = all->sequences,
                                .bytes = all->bytes,
                                .complete = all->complete};
    *stop = all->stop;
    return DT_OK;
}

/* ---- Saving: ask where to, write this worker's ranges, tell which, hear how it ended ---- */

static int write_part(struct side *s, const char *directory, struct dt_checkpoint_part **part)
{
    struct dt_error_state why = {0};
    int rc = dt_state_part_open(directory, part);
    dt_error_save(rc, &why);
    int saved = dt_state_save(s->state, *part); /* the others wait for what it sends */
    if (rc < 0 && saved >= 0)
        return dt_error_restore(&why);
    return saved < 0 ? saved : dt_checkpoint_part_sync(*part);
}

/* A failure is told like a success: the coordinator throws the save away, training goes on. */
static int tell(struct dt_remote *r, int64_t step, int rc, const struct dt_checkpoint_part *part)
{
    size_t count = 0;
    const struct dt_checkpoint_range *ranges =
        rc >= 0 ? dt_checkpoint_part_ranges(part, &count) : NULL;
    size_t packed = dt_msg_ranges_bytes((uint32_t)count), size = packed + 4096;
    unsigned char *list = NULL, *frame = NULL;
    struct dt_msg_saved m = {.step = step, .code = rc, .count = (uint32_t)count};
    snprintf(m.words, sizeof m.words, "%s", rc < 0 ? dt_error_message() : "");
    int sent = DT_NEW(&list, packed + 1);
    if (sent >= 0)
        sent = DT_NEW(&frame, size);
    if (sent >= 0) {
        for (size_t i = 0; i < count; i++) {
            struct dt_msg_range range = {(uint32_t)ranges[i].file, ranges[i].offset,
                                         ranges[i].length, ranges[i].hash};
            dt_msg_range_put(list, (uint32_t)i, &range);
        }
        m.ranges = list;
        sent = ask(r, frame, dt_pack_saved(frame, size, r->rank, &m), &r->inbox.has_saved,
                   SAVE_SECONDS, "the outcome of a save");
    }
    free(list);
    free(frame);
    return sent;
}

static int save(void *self, int64_t step, struct dt_saved *out)
{
    struct side *s = self;
    struct dt_remote *r = s->remote;
    struct dt_checkpoint_part *part = NULL;
    unsigned char frame[8192];
    struct dt_msg_save m = {.step = step, .go = true};
    *out = (struct dt_saved){0};
    DT_TRY(ask(r, frame, dt_pack_save(frame, sizeof frame, r->rank, &m), &r->inbox.has_save,
               SAVE_SECONDS, "a place to save to"));
    if (!r->inbox.save.go) /* nobody can: told by the coordinator */
        return DT_OK;
    int rc = write_part(s, r->inbox.save.directory, &part);
    if (rc == DT_E_PEER || rc == DT_E_EPOCH) {
        dt_checkpoint_part_close(part);
        return rc;
    }
    rc = tell(r, step, rc, part);
    dt_checkpoint_part_close(part);
    if (rc < 0)
        return rc;
    out->done = r->inbox.saved.code >= 0;
    out->stop = r->inbox.saved.stop;
    return DT_OK;
}

static void phase(void *self, enum dt_phase now)
{
    atomic_store(&((struct side *)self)->remote->phase, (int)now);
}

static void close_side(void *self)
{
    free(self);
}

int dt_control_remote(struct dt_remote *r, struct dt_state *state, struct dt_control *out)
{
    struct side *s;
    DT_TRY(DT_NEW(&s, 1));
    *s = (struct side){r, state};
    *out = (struct dt_control){.self = s,
                               .vote = vote,
                               .decide = decide,
                               .stop_asked = stop_asked,
                               .evaluated = evaluated,
                               .save = save,
                               .phase = phase,
                               .close = close_side};
    return DT_OK;
}
