/* What a loop asks of its coordinator: vote, decide, poll. (protocol.md, "Step k")
 *
 * A step is a transaction. Every worker votes; when all have voted with equal hashes the
 * coordinator records the outcome and answers with a decision; the record is the commit. With one
 * worker the same loop runs against the local implementation below; several workers bring another
 * one behind the same three functions. */
#ifndef DT_TRAIN_CONTROL_H
#define DT_TRAIN_CONTROL_H

#include "ops/ops.h"

struct dt_space_vote {
    struct dt_u128 norm; /* Σ of block norms of the summed gradient, scaled by 2^scale_log2 */
    int scale_log2;
    bool finite;
    double loss; /* Σ over trained tokens */
    int64_t loss_tokens;
    int64_t input_tokens;
};

struct dt_vote {
    int64_t epoch, step;     /* step counts from 1 */
    uint64_t plan, dispatch; /* hashes */
    int64_t spaces;
    const struct dt_space_vote *space; /* [spaces] */
};

enum dt_action { DT_APPLY, DT_SKIP };

struct dt_space_decision {
    enum dt_action action;
    double norm;           /* of the gradient of the mean loss */
    double loss;           /* mean over the step's trained tokens */
    int64_t denominator;   /* trained tokens */
    struct dt_adamw adamw; /* learning rate, bias corrections, clip / denominator */
};

struct dt_decision {
    int64_t step;
    int64_t spaces;
    struct dt_space_decision *space; /* [spaces], the caller's */
    bool stop;                       /* checkpoint after this step and end, work remains */
};

struct dt_control {
    void *self;
    /* Hand in this worker's vote. */
    int (*vote)(void *self, const struct dt_vote *vote);
    /* Wait for the outcome. */
    int (*decide)(void *self, struct dt_decision *out);
    /* Has the coordinator asked to stop? Between steps, in evaluation, while saving. */
    bool (*stop_asked)(void *self);
    void (*close)(void *self);
};

enum dt_lr_shape { DT_SHAPE_CONSTANT, DT_SHAPE_LINEAR, DT_SHAPE_COSINE, DT_SHAPE_WSD };

/* One space's optimizer settings: everything a decision is made of. */
struct dt_optimizer {
    double lr, min_lr_ratio;
    enum dt_lr_shape shape;
    int64_t steps, warmup, decay;                 /* decay: last steps of wsd */
    double beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
};

/* Learning rate of step k = 1 .. steps (DESIGN 11: warm-up step k has lr·k/warmup). */
double dt_lr_at(const struct dt_optimizer *o, int64_t k);

/* One worker, no coordinator: decides at once from the vote. `applied` is the number of updates so
 * far (bias corrections count updates). Too many skipped steps in a row are DT_E_NUMERIC. */
int dt_control_local(const struct dt_optimizer *optimizer, int64_t spaces, struct dt_control *out);

/* SIGTERM, SIGINT and SIGUSR1 ask to stop at the next step boundary; a second one ends the process
 * with 75 at once. */
void dt_signals_install(void);
/* The first step is about to begin. Until then there is nothing to save, however long data is
 * prepared: a signal ends the process with 75 at once. */
void dt_signals_steps_begin(void);
bool dt_signals_stop_asked(void);
const char *dt_signals_name(void); /* of the first one that came; NULL: none */

#endif
