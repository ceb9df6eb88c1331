/* The coordinator of one worker: the same votes and decisions, no message. With books it is what a
 * run on one worker has; without it only decides. */
#include "train/book.h"
#include "train/decide.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

struct local {
    struct dt_book *book;   /* NULL: only decide */
    struct dt_state *state; /* that saves write; with a book */
    struct dt_optimizer optimizer;
    int64_t spaces;
    struct dt_vote vote;
    struct dt_space_vote *space; /* [spaces] */
};

static int vote(void *self, const struct dt_vote *v)
{
    struct local *l = self;
    l->vote = *v;
    for (int64_t i = 0; i < l->spaces; i++)
        l->space[i] = v->space[i];
    l->vote.space = l->space;
    return DT_OK;
}

static int decide(void *self, struct dt_decision *out)
{
    struct local *l = self;
    if (l->book)
        return dt_book_decide(l->book, &l->vote, dt_signals_stop_asked(), dt_book_resident(l->book),
                              out);
    out->step = l->vote.step;
    out->attempt = l->vote.attempt;
    out->spaces = l->spaces;
    out->stop = false;
    for (int64_t i = 0; i < l->spaces; i++)
        out->space[i] = dt_decide_space(&l->optimizer, &l->space[i], l->vote.step, l->vote.attempt);
    return DT_OK;
}

static bool stop_asked(void *self)
{
    (void)self;
    return dt_signals_stop_asked();
}

static int evaluated(void *self, int64_t step, struct dt_evaluation *e, bool *stop)
{
    struct local *l = self;
    if (l->book && e->complete)
        dt_book_evaluated(l->book, step, e);
    *stop = dt_signals_stop_asked();
    return DT_OK;
}

static int write_part(struct local *l, struct dt_checkpoint_writer *w)
{
    struct dt_checkpoint_part *part;
    DT_TRY(dt_state_part_open(dt_checkpoint_temp(w), &part));
    int rc = dt_state_save(l->state, part);
    if (rc >= 0)
        rc = dt_checkpoint_part_sync(part);
    if (rc >= 0)
        rc = dt_book_save_claim(l->book, w, part);
    dt_checkpoint_part_close(part);
    return rc;
}

static int save(void *self, int64_t step, struct dt_saved *out)
{
    struct local *l = self;
    struct dt_checkpoint_writer *w = NULL;
    *out = (struct dt_saved){0};
    if (!l->book)
        return DT_OK;
    int rc = dt_book_save_begin(l->book, step, &w);
    if (rc >= 0)
        rc = write_part(l, w);
    out->done = dt_book_save_end(l->book, step, w, rc);
    out->stop = dt_signals_stop_asked();
    return DT_OK;
}

static void phase(void *self, enum dt_phase now)
{
    (void)self, (void)now;
}

static void close_local(void *self)
{
    struct local *l = self;
    free(l->space);
    free(l);
}

static int open_local(int64_t spaces, struct local **out, struct dt_control *control)
{
    struct local *l;
    DT_TRY(DT_NEW(&l, 1));
    int rc = DT_NEW(&l->space, spaces);
    if (rc < 0) {
        free(l);
        return rc;
    }
    l->spaces = spaces;
    *out = l;
    *control = (struct dt_control){.self = l,
                                   .vote = vote,
                                   .decide = decide,
                                   .stop_asked = stop_asked,
                                   .evaluated = evaluated,
                                   .save = save,
                                   .phase = phase,
                                   .close = close_local};
    return DT_OK;
}

int dt_control_local(const struct dt_optimizer *optimizer, int64_t spaces, struct dt_control *out)
{
    struct local *l;
    DT_TRY(open_local(spaces, &l, out));
    l->optimizer = *optimizer;
    return DT_OK;
}

int dt_control_books(struct dt_book *book, struct dt_state *state, struct dt_control *out)
{
    struct local *l;
    DT_TRY(open_local(state->part_count, &l, out));
    l->book = book;
    l->state = state;
    return DT_OK;
}
