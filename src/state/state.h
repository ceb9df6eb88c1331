/* The state of a run on this worker, and the moves that carry it.
 *
 * For every space: home intervals of (master, exp_avg, exp_avg_sq) with a step stamp, the finished
 * gradient of those intervals, and the compute boxes that forward and backward use. This room does
 * not know models: it moves named boxes. With one float worker the compute weights *are* the home
 * weights (and the gradients likewise), since nothing is updated before DECIDE: then gather and
 * reduce move nothing, and the memory is 16 bytes an element. Frozen weights stand in a region of
 * their own. */
#ifndef DT_STATE_STATE_H
#define DT_STATE_STATE_H

#include "base/arena.h"
#include "base/safetensors.h"
#include "layout/layout.h"
#include "ops/ops.h"
#include "state/checkpoint.h"

enum dt_state_kind {
    DT_STATE_WEIGHTS,   /* inference: nothing trains */
    DT_STATE_GRADIENTS, /* weights and gradients */
    DT_STATE_TRAIN,     /* and the optimizer's moments */
};

/* One space's part on this worker. */
struct dt_part {
    struct dt_space space;
    struct dt_home home; /* of all workers: here one interval */
    struct dt_compute compute;
    struct dt_move gather, reduce;
    int64_t stamp; /* last step that was applied to master and moments */
    float *master, *exp_avg, *exp_avg_sq, *gradient; /* [elements] home */
    float *box, *box_gradient; /* [elements] compute; equal to master and gradient when aliased */
};

struct dt_state {
    const struct dt_arch *arch;
    enum dt_state_kind kind;
    bool alias;
    int64_t part_count; /* 1 when something trains, else 0 */
    struct dt_part *parts;
    bool *trainable;             /* [tensor_count] */
    float **frozen;              /* [tensor_count] NULL: trains */
    enum dt_dtype *frozen_dtype; /* [tensor_count] as the file had it, for saving */
    struct dt_arena arena;
};

struct dt_state_options {
    enum dt_state_kind kind;
    const bool *trainable; /* [tensor_count]; NULL: all (none for DT_STATE_WEIGHTS) */
    bool copy_compute; /* keep compute weights apart from home even though one worker need not */
};

/* Bytes that dt_state_open will map. */
int dt_state_bytes(const struct dt_arch *arch, const struct dt_state_options *o, size_t *bytes);
int dt_state_open(const struct dt_arch *arch, const struct dt_state_options *o,
                  struct dt_state *out);
void dt_state_close(struct dt_state *s);
/* Addresses for the model: weight[i] and gradient[i] (NULL: frozen) of arch tensor i. */
void dt_state_addresses(const struct dt_state *s, const float **weight, float **gradient);

/* Where this worker keeps arch tensor i: its master weights, or the frozen copy. */
float *dt_state_tensor(const struct dt_state *s, int64_t i);

/* N(0, initializer_range), residual projections ÷ sqrt(2L); norms 1, biases 0. Key: (seed, tensor,
 * element). */
void dt_state_init(struct dt_state *s, uint64_t seed);
/* Every tensor of a model directory, under its name with or without prefix, from F32, F16 or BF16.
 * DT_E_MODEL naming tensors that are missing, unknown or of another shape. */
int dt_state_load_model(struct dt_state *s, const struct dt_tensor_set *set);
/* Weights, moments and stamp. */
int dt_state_load_checkpoint(struct dt_state *s, const struct dt_checkpoint *c);
/* model.safetensors and optimizer/ into an open save: a move from home to the files. */
int dt_state_save(const struct dt_state *s, struct dt_checkpoint_writer *w);

/* Moves of one segment's tensors (the bucket). */
void dt_state_gather(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);
void dt_state_reduce(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);

/* Σ of block norms of the finished gradient of a space (numerics.md "Norms"); false: not finite or
 * out of range. */
bool dt_state_norms(const struct dt_state *s, int64_t part, int scale_log2, struct dt_u128 *sum);
/* AdamW on the home intervals, stamp k - 1 -> k. Rank-1 tensors are not decayed. */
void dt_state_update(struct dt_state *s, int64_t part, const struct dt_adamw *p, int64_t step);

#endif
