/* The loop: batch, step, words, evaluation, save, again. */
#include "train/run.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <unistd.h>

static int evaluate(struct dt_run *r, int64_t step)
{
    struct dt_evaluation e;
    double started = dt_clock_seconds();
    DT_TRY(dt_evaluate(&r->executor, r->eval, r->config->eval.sequences, &r->control, true, &e));
    dt_run_metric_eval(r, step, &e, dt_clock_seconds() - started);
    return DT_OK;
}

/* Evaluation that is interrupted ends the run like any other interruption; every other failure is
 * one. */
static int evaluate_due(struct dt_run *r, int64_t step, bool *stop)
{
    int64_t every = r->config->eval.every;
    bool due = r->eval && (step == r->steps || (every > 0 && step % every == 0));
    int rc = due ? evaluate(r, step) : DT_OK;
    if (rc == DT_E_STOPPED) {
        *stop = true;
        return DT_OK;
    }
    return rc;
}

static bool save_due(const struct dt_run *r, int64_t step, bool stop)
{
    int64_t every = r->config->checkpoint.every;
    return stop || step == r->steps || (every > 0 && step % every == 0);
}

static int one_step(struct dt_run *r, int64_t step, struct dt_decision *d)
{
    struct dt_global_batch *batch;
    double started = dt_clock_seconds();
    DT_TRY(dt_loader_next(r->loader, &batch));
    DT_TRY(dt_executor_step(&r->executor, batch, step, &r->control, d));
    r->samples += batch->sequences;
    r->tokens += batch->tokens;
    dt_run_metric_step(r, d, batch, dt_clock_seconds() - started);
    return DT_OK;
}

static int take_steps(struct dt_run *r, struct dt_progress *progress, bool *stop)
{
    struct dt_space_decision space[1] = {0};
    struct dt_decision d = {.space = space};
    for (int64_t step = r->first + 1; step <= r->steps && !*stop; step++) {
        DT_TRY(one_step(r, step, &d));
        if (isatty(STDERR_FILENO))
            dt_progress_update(progress, (double)(step - r->first), NULL);
        *stop = d.stop;
        if (!*stop)
            DT_TRY(evaluate_due(r, step, stop));
        *stop = *stop || r->control.stop_asked(r->control.self);
        if (save_due(r, step, *stop)) {
            dt_run_save(r, step);
            /* Asked for while saving: this save will do, if it worked. */
            *stop = *stop || (!r->save_failed && r->control.stop_asked(r->control.self));
        }
        if (step == r->steps)
            *stop = false; /* nothing remains */
    }
    if (!*stop && space[0].action == DT_SKIP && space[0].denominator > 0)
        return DT_FAIL(
            DT_E_NUMERIC,
            "the run ended on a loss or gradient that is not finite; lower optimizer.lr or go back "
            "to an earlier checkpoint");
    return DT_OK;
}

/* One short measurement of what the machine can do, for the share of peak in the log. */
static void measure_peak(struct dt_run *r)
{
    r->peak_gflops =
        dt_ops_peak_gflops(r->config->train.dtype == DT_RUN_FLOAT32 ? DT_F32 : DT_BF16, 0.1);
    dt_info("kernels: %s (%s), %d threads, %s, peak %.0f GFLOP/s", dt_k->name, dt_k->gemm_name,
            dt_ops_threads(), r->config->train.dtype == DT_RUN_FLOAT32 ? "float32" : "bfloat16",
            r->peak_gflops);
}

static int finish(struct dt_run *r, bool stop)
{
    if (stop) {
        int rc =
            r->save_failed
                ? DT_FAIL(DT_E_SAVE, "stopped by %s, and the last save failed", dt_signals_name())
                : DT_FAIL(DT_E_STOPPED,
                          "stopped by %s after step %lld, saved; the same command goes on",
                          dt_signals_name(), (long long)r->saved);
        dt_run_metric_event(r, "stopped", r->saved, dt_signals_name());
        return rc;
    }
    dt_run_metric_event(r, "done", r->steps, NULL);
    if (r->save_failed)
        return DT_FAIL(
            DT_E_SAVE,
            "all %lld steps are done, but the last save failed; free space and start again",
            (long long)r->steps);
    dt_info("done: %lld steps, %lld tokens; the model is %s/step-%08lld", (long long)r->steps,
            (long long)r->tokens, r->checkpoints, (long long)r->saved);
    return DT_OK;
}

static int train(struct dt_run *r)
{
    bool stop = false;
    if (r->options->dry_run) {
        dt_info("dry run: configuration, model, data and memory are in order; nothing was trained");
        return DT_OK;
    }
    if (r->first >= r->steps) {
        dt_run_forget_starts(r);
        dt_info("nothing to do: step %lld of %lld is already saved; raise train.steps to go on",
                (long long)r->first, (long long)r->steps);
        return DT_OK;
    }
    measure_peak(r);
    dt_run_metric_event(r, r->first > 0 ? "resumed" : "started", r->first, NULL);
    dt_signals_steps_begin();
    struct dt_progress progress;
    dt_progress_begin(&progress, "training", "steps", (double)(r->steps - r->first));
    int rc = take_steps(r, &progress, &stop);
    dt_progress_end(&progress);
    return rc < 0 ? rc : finish(r, stop);
}

int dt_train_run(const struct dt_run_config *config, const struct dt_train_options *options)
{
    struct dt_run run;
    dt_signals_install();
    int rc = dt_run_open(&run, config, options);
    if (rc >= 0)
        rc = train(&run);
    dt_run_close(&run);
    return rc;
}
