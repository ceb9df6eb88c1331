#include "train/book.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "train/decide.h"
#include "train/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SKIPS_IN_A_ROW 20

static struct dt_optimizer optimizer_of(const struct dt_run_config *c, int64_t steps)
{
    static const enum dt_lr_shape shape[] = {[DT_LR_CONSTANT] = DT_SHAPE_CONSTANT,
                                             [DT_LR_LINEAR] = DT_SHAPE_LINEAR,
                                             [DT_LR_COSINE] = DT_SHAPE_COSINE,
                                             [DT_LR_WSD] = DT_SHAPE_WSD};
    return (struct dt_optimizer){
        .lr = c->optimizer.lr,
        .min_lr_ratio = c->optimizer.min_lr_ratio,
        .shape = shape[c->optimizer.schedule],
        .steps = steps,
        .warmup = dt_run_config_warmup(c, steps),
        .decay = dt_run_config_decay(c, steps),
        .beta1 = c->optimizer.betas[0],
        .beta2 = c->optimizer.betas[1],
        .eps = c->optimizer.eps,
        .weight_decay = c->optimizer.weight_decay,
        .clip = c->optimizer.clip,
        .exact = c->reduction == DT_REDUCTION_EXACT,
    };
}

/* The types that frozen tensors have on disk, where the weights come from. */
static int find_frozen_types(struct dt_book *b, const struct dt_run *run)
{
    struct dt_tensor_set set;
    const char *from = run->checkpoint[0] ? run->checkpoint : run->model_dir;
    for (int64_t i = 0; i < b->arch->tensor_count; i++)
        b->frozen_dtype[i] = DT_F32;
    if (!run->checkpoint[0] && b->config->init == DT_INIT_RANDOM)
        return DT_OK;
    DT_TRY(dt_tensors_open(from, &set));
    dt_state_types(b->arch, &set, b->frozen_dtype);
    dt_tensors_close(&set);
    return DT_OK;
}

int dt_book_open(struct dt_book *b, const struct dt_run *run)
{
    struct dt_plan plan;
    struct dt_executor_options eo;
    *b = (struct dt_book){.config = run->config,
                          .arch = run->arch,
                          .model_dir = run->model_dir,
                          .checkpoints = run->checkpoints,
                          .data_hash = dt_dataset_hash(run->train),
                          .optimizer = optimizer_of(run->config, run->steps),
                          .spaces = 1,
                          .workers = (int32_t)run->config->workers,
                          .statm = -1,
                          .first = run->first,
                          .steps = run->steps,
                          .decided = run->first,
                          .samples = run->samples,
                          .tokens = run->tokens,
                          .saved = run->saved};
    eo = dt_executor_options_of(run->config, run->bound, 0);
    dt_executor_plan(run->arch, run->trainable, &eo, &plan);
    b->plan_hash = dt_plan_hash(&plan);
    DT_TRY(DT_NEW(&b->skipped, b->spaces));
    DT_TRY(DT_NEW(&b->trainable, b->arch->tensor_count));
    DT_TRY(DT_NEW(&b->frozen_dtype, b->arch->tensor_count));
    memcpy(b->trainable, run->trainable, (size_t)b->arch->tensor_count * sizeof *b->trainable);
    DT_TRY(find_frozen_types(b, run));
    return book__metrics_open(b);
}

void dt_book_close(struct dt_book *b)
{
    if (b->shown)
        dt_progress_end(&b->progress);
    if (b->metrics)
        fclose(b->metrics);
    if (b->statm > 0)
        close(b->statm);
    free(b->skipped);
    free(b->trainable);
    free(b->frozen_dtype);
    *b = (struct dt_book){.statm = -1};
}

void dt_book_begin(struct dt_book *b, double peak_gflops)
{
    b->peak_gflops = peak_gflops;
    dt_book_event(b, b->first > 0 ? "resumed" : "started", b->first, NULL);
    dt_progress_begin(&b->progress, "training", "steps", (double)(b->steps - b->first));
    b->shown = true;
    b->mark = dt_clock_seconds();
}

static int count_skips(struct dt_book *b, const struct dt_decision *d)
{
    for (int64_t i = 0; i < b->spaces; i++) {
        b->last_skipped = d->space[i].action == DT_SKIP && d->space[i].denominator > 0;
        b->skipped[i] = d->space[i].action == DT_SKIP ? b->skipped[i] + 1 : 0;
        if (b->skipped[i] >= SKIPS_IN_A_ROW)
            return DT_FAIL(DT_E_NUMERIC,
                           "%d steps in a row had a gradient that is not finite; lower "
                           "optimizer.lr or start from an earlier checkpoint",
                           SKIPS_IN_A_ROW);
    }
    return DT_OK;
}

int dt_book_decide(struct dt_book *b, const struct dt_vote *sum, bool stop, int64_t resident,
                   struct dt_decision *out)
{
    out->step = sum->step;
    out->attempt = sum->attempt;
    out->spaces = b->spaces;
    for (int64_t i = 0; i < b->spaces; i++)
        out->space[i] = dt_decide_space(&b->optimizer, &sum->space[i], sum->step, sum->attempt);
    out->stop = false;
    if (dt_decision_redo(out)) {
        dt_warn("step %lld: sums of gradients are too large for their scale; the step is run again "
                "with a smaller one",
                (long long)sum->step);
        dt_book_event(b, "redo", sum->step, NULL);
        return DT_OK;
    }
    out->stop = stop && sum->step < b->steps;
    b->decided = sum->step;
    b->samples += sum->sequences;
    b->tokens += sum->tokens;
    double now = dt_clock_seconds();
    book__metrics_step(b, out, sum, now - b->mark, resident);
    b->mark = now;
    if (isatty(STDERR_FILENO))
        dt_progress_update(&b->progress, (double)(sum->step - b->first), NULL);
    return count_skips(b, out);
}

void dt_book_evaluated(struct dt_book *b, int64_t step, const struct dt_evaluation *sum)
{
    double now = dt_clock_seconds();
    book__metrics_eval(b, step, sum, now - b->mark);
    b->mark = now;
}

int dt_book_finish(struct dt_book *b, bool stopped)
{
    const char *signal = dt_signals_name();
    signal = signal ? signal : "a signal on another machine";
    if (stopped) {
        int rc = b->save_failed
                     ? DT_FAIL(DT_E_SAVE, "stopped by %s, and the last save failed", signal)
                     : DT_FAIL(DT_E_STOPPED,
                               "stopped by %s after step %lld, saved; the same command goes on",
                               signal, (long long)b->saved);
        dt_book_event(b, "stopped", b->saved, signal);
        return rc;
    }
    if (b->last_skipped)
        return DT_FAIL(
            DT_E_NUMERIC,
            "the run ended on a loss or gradient that is not finite; lower optimizer.lr or go back "
            "to an earlier checkpoint");
    dt_book_event(b, "done", b->steps, NULL);
    if (b->save_failed)
        return DT_FAIL(
            DT_E_SAVE,
            "all %lld steps are done, but the last save failed; free space and start again",
            (long long)b->steps);
    dt_info("done: %lld steps, %lld tokens; the model is %s/step-%08lld", (long long)b->steps,
            (long long)b->tokens, b->checkpoints, (long long)b->saved);
    return DT_OK;
}
