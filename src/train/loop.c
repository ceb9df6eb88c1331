/* The loop: batch, step, evaluation, save, again. What it does next follows from the control's
 * answers alone, so every worker's loop takes the same turns. */
#include "train/run.h"

#include "base/error.h"

struct loop {
    struct dt_run *run;
    struct dt_engine *engine;
    struct dt_control *control;
    bool stop;
};

static void phase(const struct loop *l, enum dt_phase now)
{
    l->control->phase(l->control->self, now);
}

/* Evaluation that is interrupted ends the run like any other interruption. */
static int evaluate(struct loop *l, int64_t step)
{
    struct dt_evaluation e;
    bool stop;
    phase(l, DT_PHASE_EVALUATE);
    DT_TRY(dt_evaluate(&l->engine->executor, l->run->eval, l->run->config->eval.sequences,
                       l->control, !l->run->options->follow, &e));
    phase(l, DT_PHASE_DECIDE); /* from here on it waits for the others */
    DT_TRY(l->control->evaluated(l->control->self, step, &e, &stop));
    l->stop = l->stop || stop;
    return DT_OK;
}

static int save(struct loop *l, int64_t step)
{
    struct dt_saved saved;
    phase(l, DT_PHASE_SAVE);
    DT_TRY(l->control->save(l->control->self, step, &saved));
    /* Asked for while saving: this save will do, if it worked. */
    l->stop = l->stop || (saved.done && saved.stop);
    return DT_OK;
}

static int one_step(struct loop *l, int64_t step)
{
    struct dt_space_decision space[1] = {0};
    struct dt_decision d = {.space = space};
    struct dt_global_batch *batch;
    phase(l, DT_PHASE_STEP);
    DT_TRY(dt_loader_next(l->engine->loader, &batch));
    DT_TRY(dt_executor_step(&l->engine->executor, batch, step, l->control, &d));
    l->stop = d.stop;
    return DT_OK;
}

static bool due(int64_t step, int64_t every, int64_t last)
{
    return step == last || (every > 0 && step % every == 0);
}

int dt_run_loop(struct dt_run *r, struct dt_engine *e, struct dt_control *control, bool *stopped)
{
    struct loop l = {.run = r, .engine = e, .control = control};
    for (int64_t step = r->first + 1; step <= r->steps && !l.stop; step++) {
        DT_TRY(one_step(&l, step));
        if (!l.stop && r->eval && due(step, r->config->eval.every, r->steps))
            DT_TRY(evaluate(&l, step));
        if (l.stop || due(step, r->config->checkpoint.every, r->steps))
            DT_TRY(save(&l, step));
        if (step == r->steps)
            l.stop = false; /* nothing remains */
    }
    phase(&l, DT_PHASE_END);
    *stopped = l.stop;
    return DT_OK;
}

static int train(struct dt_run *r, struct dt_book *book, struct dt_engine *engine,
                 struct dt_control *control)
{
    bool stopped;
    char words[256];
    DT_TRY(dt_engine_open(engine, r));
    DT_TRY(dt_control_books(book, &engine->state, control));
    double peak = dt_engine_peak(r, words, sizeof words);
    dt_info("%s, peak %.0f GFLOP/s", words, peak);
    dt_signals_steps_begin();
    dt_book_begin(book, peak);
    DT_TRY(dt_run_loop(r, engine, control, &stopped));
    return dt_book_finish(book, stopped);
}

int dt_train_run(const struct dt_run_config *config, const struct dt_train_options *options)
{
    struct dt_run run;
    struct dt_book book = {.statm = -1};
    struct dt_engine engine = {0};
    struct dt_control control = {0};
    dt_signals_install();
    int rc = dt_run_open(&run, config, options);
    if (rc >= 0 && dt_run_has_work(&run)) {
        rc = dt_book_open(&book, &run);
        if (rc >= 0)
            rc = train(&run, &book, &engine, &control);
    }
    if (control.close)
        control.close(control.self);
    dt_engine_close(&engine);
    dt_book_close(&book);
    dt_run_close(&run);
    return rc;
}
