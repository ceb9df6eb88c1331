/* The state of a run on one worker, and the moves that carry it.
 *
 * For every space: home intervals of (master, exp_avg, exp_avg_sq) with a step stamp, the finished
 * gradient of those intervals, and the compute boxes that forward and backward use. This room does
 * not know models: it moves named boxes. With one worker the compute weights *are* the home weights
 * (and the gradients likewise), since nothing is updated before DECIDE: then gather and reduce move
 * nothing, and the memory is 16 bytes an element (20 with exact sums). With N workers home takes a
 * share of that each, compute 8 (12) bytes an element. Frozen weights stand in a region of their
 * own, whole on every worker. */
#ifndef DT_STATE_STATE_H
#define DT_STATE_STATE_H

#include "base/arena.h"
#include "base/safetensors.h"
#include "comm/comm.h"
#include "layout/layout.h"
#include "ops/ops.h"
#include "state/checkpoint.h"
#include "state/exchange.h"

enum dt_state_kind {
    DT_STATE_WEIGHTS,   /* inference: nothing trains */
    DT_STATE_GRADIENTS, /* weights and gradients */
    DT_STATE_TRAIN,     /* and the optimizer's moments */
};

/* A finished or unfinished gradient: floats, or with exact sums integers of quantum 2^-scale. */
union dt_gradient_store {
    void *any;
    float *real;
    int64_t *fixed;
};

/* One space's part on this worker. */
struct dt_part {
    struct dt_space space;
    struct dt_home home;       /* of all workers */
    struct dt_compute compute; /* of all workers */
    struct dt_bucket *buckets; /* in execution order */
    int64_t bucket_count;
    int64_t elements;                     /* that this worker is home of */
    int64_t box_elements;                 /* that its boxes take */
    int64_t stamp;                        /* last step that was applied to master and moments */
    int64_t gathered;                     /* stamp of what the boxes hold, -1: nothing */
    float *master, *exp_avg, *exp_avg_sq; /* [elements] home */
    union dt_gradient_store gradient;     /* [elements] home, summed over workers */
    float *box;                           /* [box_elements]; master when aliased */
    union dt_gradient_store box_gradient; /* [box_elements]; gradient when aliased */
    struct dt_exchange *gather, *reduce;  /* NULL when aliased */
};

struct dt_state_options {
    enum dt_state_kind kind;
    const bool *trainable; /* [tensor_count]; NULL: all (none for DT_STATE_WEIGHTS) */
    int32_t rank, workers; /* 0 workers: one */
    struct dt_comm *comm;  /* the epoch; NULL with one worker */
    bool exact;            /* gradients are summed as integers (numerics.md "reduction: exact") */
    bool copy_compute; /* keep compute weights apart from home even though one worker need not */
};

struct dt_state {
    const struct dt_arch *arch;
    enum dt_state_kind kind;
    int32_t rank, workers;
    struct dt_comm *comm;
    bool alias, exact;
    int fixed_scale;    /* exact: quantum 2^-scale of this attempt's gradients */
    int64_t part_count; /* 1 when something trains, else 0 */
    struct dt_part *parts;
    bool *trainable;             /* [tensor_count] */
    float **frozen;              /* [tensor_count] NULL: trains */
    enum dt_dtype *frozen_dtype; /* [tensor_count] as the file had it, for saving */
    float *scratch;              /* [DT_STATE_SCRATCH] exact: gradients as floats, piece by piece */
    struct dt_staging staging;   /* two buckets of what arrives */
    struct dt_arena arena;
};
enum { DT_STATE_SCRATCH = 1 << 16 };

/* Bytes that dt_state_open will map. */
int dt_state_bytes(const struct dt_arch *arch, const struct dt_state_options *o, size_t *bytes);
int dt_state_open(const struct dt_arch *arch, const struct dt_state_options *o,
                  struct dt_state *out);
void dt_state_close(struct dt_state *s);
/* Addresses for the model: weight[i] and gradient[i] or fixed[i] (NULL: frozen) of arch tensor i;
 * of gradient and fixed the one that this state does not keep is all NULL. fixed may be NULL. */
void dt_state_addresses(const struct dt_state *s, const float **weight, float **gradient,
                        int64_t **fixed);

/* N(0, initializer_range), residual projections ÷ sqrt(2L); norms 1, biases 0. Key: (seed, tensor,
 * element). */
void dt_state_init(struct dt_state *s, uint64_t seed);
/* This worker's part of a model directory, under its names with or without prefix, from F32, F16 or
 * BF16. DT_E_MODEL naming tensors that are missing, unknown or of another shape. */
int dt_state_load_model(struct dt_state *s, const struct dt_tensor_set *set);
/* types[i]: what the set stores arch tensor i as; others are left as they are. */
void dt_state_types(const struct dt_arch *arch, const struct dt_tensor_set *set,
                    enum dt_dtype *types);
/* Weights, moments and stamp. */
int dt_state_load_checkpoint(struct dt_state *s, const struct dt_checkpoint *c);

/* The files of a checkpoint: which tensors stand where. A pure function of the architecture and of
 * what trains, so every writer knows it. */
enum { DT_STATE_FILES = 3 };
struct dt_state_file {
    const char *folder, *name; /* "optimizer", "exp_avg.safetensors" */
    struct dt_tensor_plan plan;
};
int dt_state_files(const struct dt_arch *arch, const bool *trainable,
                   const enum dt_dtype *frozen_dtype, struct dt_state_file files[DT_STATE_FILES]);
void dt_state_files_free(struct dt_state_file files[DT_STATE_FILES]);
/* Opens the data files of a save for dt_state_save. */
int dt_state_part_open(const char *temp, struct dt_checkpoint_part **out);
/* This worker's byte ranges of all files, header included where they are its: a move from home to
 * the same cut rounded to pages (DT_STATE_PAGE). All workers call it together; one that has no file
 * to write to (part NULL) gives the others what they need all the same. */
#define DT_STATE_PAGE ((size_t)65536) /* the largest page of any machine that may mount the disk   \
                                       */
int dt_state_save(const struct dt_state *s, struct dt_checkpoint_part *part);

/* Moves of one segment's tensors (the bucket). `start` begins and returns; gather_wait returns when
 * this worker's boxes hold the weights (those that already hold the newest stamp's are not gathered
 * again); settle when everything started is over: homes have their sums, all is sent. */
int dt_state_gather_start(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);
int dt_state_gather_wait(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);
int dt_state_reduce_start(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);
int dt_state_settle(struct dt_state *s);
/* Zero gradients of one segment, for a worker without any sequence. */
void dt_state_zero(struct dt_state *s, enum dt_segment_kind segment, int64_t layer);

/* Σ of block norms of the finished gradient of a space (numerics.md "Norms"); false: not finite or
 * out of range. */
bool dt_state_norms(const struct dt_state *s, int64_t part, int scale_log2, struct dt_u128 *sum);
/* AdamW on the home intervals, stamp k - 1 -> k. Rank-1 tensors are not decayed. With exact sums
 * the gradient is first divided by `denominator` in double, and p->grad_scale is the clip alone. */
void dt_state_update(struct dt_state *s, int64_t part, const struct dt_adamw *p,
                     int64_t denominator, int64_t step);
/* A step that changes nothing: only the stamp. */
void dt_state_skip(struct dt_state *s, int64_t part, int64_t step);

/* ---- what the files of this room share ---- */

/* A home interval of this worker cut at tensor edges. */
struct state__run {
    int64_t tensor;  /* position in the space */
    int64_t element; /* of that tensor: first of the run */
    int64_t at;      /* where it stands in home storage */
    int64_t count;
};
struct state__cursor {
    int64_t interval, element;
};
/* Starts with a zeroed cursor; false: no more. */
bool state__next_run(const struct dt_state *s, const struct dt_part *p, struct state__cursor *c,
                     struct state__run *out);
/* -1: nothing of this segment trains. */
int64_t state__bucket(const struct dt_part *p, enum dt_segment_kind segment, int64_t layer);

#endif
