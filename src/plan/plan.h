/* PURE. Who does what in a step.
 *
 * A plan says which layers a device runs and how; dispatch packs the sequences of a global batch
 * into micro-batches (integers only, no clock: every worker computes the same answer); the schedule
 * is the list of instructions over block segments that train/execute runs as it stands. Plans of
 * this version are data-parallel: every worker runs all layers, as a pipeline of one stage, on its
 * share of the batch; the list is how one worker and a thousand work alike. */
#ifndef DT_PLAN_PLAN_H
#define DT_PLAN_PLAN_H

#include "layout/layout.h"

struct dt_plan {
    int64_t layers;            /* all of them, on every device */
    bool recompute;            /* train.recompute: block */
    int64_t microbatch_tokens; /* the most input tokens of a micro-batch */
    /* Below this layer nothing trains, so backward stops there: -1 the embedding trains, L only the
     * head does. */
    int64_t lowest_trainable;
    int32_t workers;
    /* [workers] time of a token on each, in parts per million of a healthy worker's (Malleus'
     * straggling rate x); NULL: all alike. The caller's. */
    const int64_t *rates;
};

/* Every worker runs all layers. */
void dt_plan_data_parallel(const struct dt_arch *arch, const bool *trainable, bool recompute,
                           int64_t microbatch_tokens, int32_t workers, const int64_t *rates,
                           struct dt_plan *out);
uint64_t dt_plan_hash(const struct dt_plan *p);

/* ---- Dispatch ---------------------------------------------------------------------------------
 */

/* One worker's part of a global batch: its sequences in the order of the batch, packed into
 * micro-batches. */
struct dt_dispatch {
    int64_t sequences; /* of this worker */
    int64_t *sequence; /* [sequences] index in the global batch, ascending */
    int64_t tokens;    /* of this worker */
    int64_t microbatches;
    int64_t *first;             /* [microbatches + 1] first of `sequence` of each */
    int64_t *microbatch_tokens; /* [microbatches] input tokens */
    uint64_t hash;              /* of everybody's part: the vote carries it */
    /* room */
    int64_t batch_sequences, microbatch_room;
    int64_t *order, *load; /* [batch_sequences], [workers] */
    int32_t *worker;       /* [batch_sequences] who takes each */
};

/* The most tokens that a worker can get of batches of up to `tokens`, none longer than `longest`.
 */
int64_t dt_dispatch_most_tokens(const struct dt_plan *p, int32_t rank, int64_t tokens,
                                int64_t longest);
/* The most micro-batches of a part of up to `tokens`. */
int64_t dt_dispatch_most_microbatches(const struct dt_plan *p, int64_t tokens);
/* Arrays for batches of up to `sequences` sequences and parts of up to `tokens` input tokens;
 * nothing allocates afterwards. */
int dt_dispatch_new(const struct dt_plan *p, int64_t sequences, int64_t tokens,
                    struct dt_dispatch *out);
void dt_dispatch_free(struct dt_dispatch *d);
size_t dt_dispatch_bytes(const struct dt_plan *p, int64_t sequences, int64_t tokens);
/* Sequences of length[0..n): longest first, each to the worker that is then done first (Graham's
 * LPT rule on workers of unlike speed; ties go to the lower rank). DT_E_CONFIG when one is longer
 * than a micro-batch. */
int dt_dispatch_fill(struct dt_dispatch *d, const struct dt_plan *p, int32_t rank,
                     const int64_t *length, int64_t n);

/* ---- Schedule
 * ------------------------------------------------------------------------------------------------------
 */

enum dt_op {
    DT_OP_GATHER,   /* begin: weights of a segment, home -> compute */
    DT_OP_GATHERED, /* wait for them */
    DT_OP_FORWARD,  /* of a segment for a micro-batch */
    DT_OP_LOSS,     /* loss only, logits are not kept (evaluation) */
    DT_OP_BACKWARD, /* of a segment; HEAD: loss and its gradient, chunk by chunk */
    DT_OP_ZERO,   /* gradients of a segment: a worker without any sequence takes part with zeros */
    DT_OP_REDUCE, /* begin: finished gradients of a segment, compute -> home */
    DT_OP_SETTLE, /* wait until nothing is under way: homes have their sums, all is sent */
    DT_OP_VOTE,   /* norms, loss sum and tokens, hashes, flags */
    DT_OP_DECIDE, /* wait for the decision */
    DT_OP_UPDATE, /* optimizer on the home intervals */
};

struct dt_instruction {
    enum dt_op op;
    enum dt_segment_kind segment;
    int64_t layer;      /* -1 for EMBED, HEAD and whole-step instructions */
    int64_t microbatch; /* -1 where none */
    bool first; /* BACKWARD: the step's first contribution, gradients are written, not added to */
};

struct dt_schedule {
    struct dt_instruction *list;
    int64_t count, capacity;
};

int dt_schedule_new(const struct dt_plan *p, int64_t microbatches, struct dt_schedule *out);
void dt_schedule_free(struct dt_schedule *s);
/* A training step, or (train = false) forward and loss only. */
void dt_schedule_fill(struct dt_schedule *s, const struct dt_plan *p, int64_t microbatches,
                      bool train);

#endif
