/* The step executor: runs an instruction list as it stands.
 *
 * It owns what one worker needs between start and end of a run: the plan, the arena that the
 * model's slots are carved from, and the schedule, all sized for the largest batch before the first
 * step. A step allocates nothing. */
#ifndef DT_TRAIN_EXECUTE_H
#define DT_TRAIN_EXECUTE_H

#include "model/model.h"
#include "plan/plan.h"
#include "state/state.h"
#include "train/control.h"
#include "train/loader.h"

struct dt_executor {
    const struct dt_arch *arch;
    struct dt_state *state;
    struct dt_plan plan;
    uint64_t plan_hash;
    struct dt_model model;
    struct dt_arena arena; /* activations and scratch */
    struct dt_schedule schedule;
    int32_t *start;              /* per micro-batch: sequences + 1 row offsets, one after another */
    struct dt_batch_bound bound; /* of a global batch */
    _Atomic int64_t instructions; /* done since the start: a worker that works makes it grow */
};

struct dt_executor_options {
    enum dt_dtype compute;
    bool train;
    bool recompute;
    bool exact; /* as the state's */
    int64_t microbatch_tokens;
    int64_t positions;           /* longest sequence */
    struct dt_batch_bound bound; /* of a global batch */
    int32_t rank, workers;       /* as the state's; 0 workers: one */
    const int64_t *rates;        /* see plan/plan.h; the caller's */
};

/* The plan that these options make. */
void dt_executor_plan(const struct dt_arch *arch, const bool *trainable,
                      const struct dt_executor_options *o, struct dt_plan *out);
/* Bytes of the arena and of the tables. */
size_t dt_executor_bytes(const struct dt_arch *arch, const struct dt_executor_options *o);
int dt_executor_open(struct dt_state *state, const struct dt_executor_options *o,
                     struct dt_executor *out);
void dt_executor_close(struct dt_executor *e);
/* A batch that this executor can run. */
int dt_executor_batch(const struct dt_executor *e, struct dt_global_batch *out);

/* Step k (from 1) over a global batch, with vote, decision and update; run again with a smaller
 * scale as long as the decision is to redo it. */
int dt_executor_step(struct dt_executor *e, const struct dt_global_batch *batch, int64_t step,
                     struct dt_control *control, struct dt_decision *decision);
/* Gradients of the summed loss, without vote and update: state's parts hold them afterwards. */
int dt_executor_gradients(struct dt_executor *e, const struct dt_global_batch *batch, double *loss);
/* Summed loss of this worker's part only, added to *loss. */
int dt_executor_evaluate(struct dt_executor *e, const struct dt_global_batch *batch,
                         struct dt_u128 *loss, bool *finite);

#endif
