/* PURE. Who does what in a step.
 *
 * A plan says which layers a device runs and how; dispatch packs the sequences of a global batch
 * into micro-batches (integers only, no clock: every worker computes the same answer); the schedule
 * is the list of instructions over block segments that train/execute runs as it stands. This
 * version plans for one device that holds every layer; the list is how one worker and a thousand
 * work alike. */
#ifndef DT_PLAN_PLAN_H
#define DT_PLAN_PLAN_H

#include "layout/layout.h"

struct dt_plan {
    int64_t layers;            /* all of them, on the one device */
    bool recompute;            /* train.recompute: block */
    int64_t microbatch_tokens; /* the most input tokens of a micro-batch */
    /* Below this layer nothing trains, so backward stops there: -1 the embedding trains, L only the
     * head does. */
    int64_t lowest_trainable;
};

void dt_plan_single(const struct dt_arch *arch, const bool *trainable, bool recompute,
                    int64_t microbatch_tokens, struct dt_plan *out);
uint64_t dt_plan_hash(const struct dt_plan *p);

/* ---- Dispatch
 * -----------------------------------------------------------------------------------------------------
 */

struct dt_dispatch {
    int64_t microbatches;
    int64_t *first;   /* [microbatches + 1] first sequence of each, in the order of the batch */
    int64_t *tokens;  /* [microbatches] input tokens */
    int64_t capacity; /* micro-batches that the arrays can hold */
    uint64_t hash;    /* of the answer; the vote carries it */
};

/* Arrays for batches of up to `tokens` input tokens; nothing allocates afterwards. */
int dt_dispatch_new(const struct dt_plan *p, int64_t tokens, struct dt_dispatch *out);
void dt_dispatch_free(struct dt_dispatch *d);
/* Sequences of length[0..n) into micro-batches, in order. DT_E_DATA when one is longer than a
 * micro-batch. */
int dt_dispatch_fill(struct dt_dispatch *d, const struct dt_plan *p, const int64_t *length,
                     int64_t n);

/* ---- Schedule
 * ------------------------------------------------------------------------------------------------------
 */

enum dt_op {
    DT_OP_GATHER,   /* weights of a segment: home -> compute */
    DT_OP_FORWARD,  /* of a segment for a micro-batch */
    DT_OP_LOSS,     /* loss only, logits are not kept (evaluation) */
    DT_OP_BACKWARD, /* of a segment; HEAD: loss and its gradient, chunk by chunk */
    DT_OP_REDUCE,   /* finished gradients of a segment: compute -> home */
    DT_OP_VOTE,     /* norms, loss sum and tokens, hashes, flags */
    DT_OP_DECIDE,   /* wait for the decision */
    DT_OP_UPDATE,   /* optimizer on the home intervals */
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
