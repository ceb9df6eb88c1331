/* What a loop asks of its coordinator. (protocol.md, "Step k")
 *
 * A step is a transaction. Every worker votes; when all have voted with equal hashes the
 * coordinator records the outcome and answers with a decision; the record is the commit. Evaluation
 * and saving are agreed on the same way: what a loop does next follows only from answers that all
 * workers get alike. With one worker the same loop runs against the local implementation below;
 * several workers have another one (cluster/remote.c) behind the same functions. */
#ifndef DT_TRAIN_CONTROL_H
#define DT_TRAIN_CONTROL_H

#include "ops/ops.h"

/* A sum of losses as an integer of quantum 2^-64, so that neither the order nor the number of
 * workers shows: each sequence's sum (double, its rows in order) is converted and added. */
void dt_loss_add(struct dt_u128 *sum, double sequence_loss, bool *finite);
double dt_loss_value(const struct dt_u128 *sum);
/* a += b modulo 2^128 */
void dt_u128_add(struct dt_u128 *a, const struct dt_u128 *b);

struct dt_space_vote {
    struct dt_u128 norm; /* Σ of block norms of the summed gradient, scaled by 2^scale_log2 */
    int scale_log2;
    bool finite;         /* no gradient or loss was infinite or not a number */
    bool overflow;       /* reduction: exact: an addend was too large for the scale */
    struct dt_u128 loss; /* Σ over trained tokens */
    int64_t loss_tokens;
};

struct dt_vote {
    int64_t epoch, step;       /* step counts from 1 */
    int64_t attempt;           /* of this step, from 0: one more after each redo */
    uint64_t plan, dispatch;   /* hashes */
    uint64_t kernels;          /* hash of the kernel set's name; exact mode only, else 0 */
    int64_t data_epoch;        /* of the data, from 0 */
    int64_t sequences, tokens; /* of the global batch: all workers say the same */
    double flops;              /* of this worker's part */
    int64_t spaces;
    const struct dt_space_vote *space; /* [spaces] */
};

enum dt_action { DT_APPLY, DT_SKIP, DT_REDO };

struct dt_space_decision {
    enum dt_action action;
    double norm;           /* of the gradient of the mean loss */
    double loss;           /* mean over the step's trained tokens */
    int64_t denominator;   /* trained tokens */
    struct dt_adamw adamw; /* learning rate, bias corrections, clip / denominator */
};

struct dt_decision {
    int64_t step, attempt;
    int64_t spaces;
    struct dt_space_decision *space; /* [spaces], the caller's */
    bool stop;                       /* checkpoint after this step and end, work remains */
};

/* Is the step run again with a smaller scale? Then nothing of it was applied. */
bool dt_decision_redo(const struct dt_decision *d);

/* An evaluation, or one worker's part of it. */
struct dt_evaluation {
    struct dt_u128 loss; /* summed, nats (dt_loss_value) */
    bool finite;
    int64_t tokens; /* that count */
    int64_t sequences;
    int64_t bytes; /* of text behind them; 0: unknown */
    bool complete; /* not interrupted */
};

/* What a worker is doing, for status and for words about one that hangs. */
enum dt_phase {
    DT_PHASE_START,
    DT_PHASE_STEP,
    DT_PHASE_DECIDE,
    DT_PHASE_EVALUATE,
    DT_PHASE_SAVE,
    DT_PHASE_END
};
const char *dt_phase_name(enum dt_phase phase);

struct dt_saved {
    bool done; /* a checkpoint of this step stands; else training goes on without */
    bool stop; /* asked for while saving */
};

struct dt_control {
    void *self;
    /* Hand in this worker's vote. */
    int (*vote)(void *self, const struct dt_vote *vote);
    /* Wait for the outcome. */
    int (*decide)(void *self, struct dt_decision *out);
    /* Should an evaluation be cut short? A hint: what then happens is agreed in `evaluated`. */
    bool (*stop_asked)(void *self);
    /* This worker's part in, the sum over all out, told to the user. *stop: end after this. */
    int (*evaluated)(void *self, int64_t step, struct dt_evaluation *e, bool *stop);
    /* Write a checkpoint of the state after `step`, together. A save that fails is no failure of
     * the call: training goes on. */
    int (*save)(void *self, int64_t step, struct dt_saved *out);
    /* Where this worker is: from any thread, cheap. */
    void (*phase)(void *self, enum dt_phase phase);
    void (*close)(void *self);
};

enum dt_lr_shape { DT_SHAPE_CONSTANT, DT_SHAPE_LINEAR, DT_SHAPE_COSINE, DT_SHAPE_WSD };

/* One space's optimizer settings: everything a decision is made of. */
struct dt_optimizer {
    double lr, min_lr_ratio;
    enum dt_lr_shape shape;
    int64_t steps, warmup, decay;                 /* decay: last steps of wsd */
    double beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
    bool exact; /* gradients are divided by the denominator before the update (numerics.md) */
};

/* Learning rate of step k = 1 .. steps (DESIGN 11: warm-up step k has lr·k/warmup). */
double dt_lr_at(const struct dt_optimizer *o, int64_t k);

/* One worker, no coordinator, no books: decides at once from the vote. For tests and benchmarks;
 * `save` and `evaluated` do nothing. */
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
