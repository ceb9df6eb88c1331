/* Forward and backward of every segment, explicit: no graph, a list of kernel calls and the same
 * list backwards. The executor says which segment of which layer for which micro-batch; the tables
 * of arch/ say which tensors and which slots; `struct dt_model` holds their addresses. Nothing here
 * sees a plan, a transport or an optimizer, and nothing allocates after dt_model_open.
 *
 * Letters: T tokens of the micro-batch, C width, H heads, K kv heads, D head size, F feed-forward
 * width, V vocabulary. */
#ifndef DT_MODEL_MODEL_H
#define DT_MODEL_MODEL_H

#include "arch/arch.h"
#include "base/arena.h"

/* Packed sequences: rows start[i] .. start[i + 1] are sequence i. */
struct dt_microbatch {
    int64_t T, sequences;
    const int32_t *start;    /* [sequences + 1] */
    const int32_t *ids;      /* [T] */
    const int32_t *targets;  /* [T] -1: the row does not train */
    const int32_t *position; /* [T] from 0 in every sequence */
};

/* Keys and values of earlier tokens, for generation. A forward with a cache takes one sequence of
 * new rows at positions length ..., appends their keys and values and attends to all. */
struct dt_cache {
    int64_t capacity, length; /* tokens */
    float *k, *v;             /* [L, capacity, K * D] */
};

struct dt_model {
    const struct dt_arch *arch;
    enum dt_dtype compute; /* DT_F32 or DT_BF16: what enters a GEMM */
    bool recompute;        /* blocks share one set of kept slots, but for DT_SLOT_X */
    int64_t max_tokens;    /* rows the slots have */
    const float **weight;  /* [tensor_count] */
    float **gradient;      /* [tensor_count], NULL: frozen; not used when exact */
    void **slot;           /* [DT_SLOTS * (L + 1)] */
    const float *rope;     /* [positions, 2, half] or NULL */
    int64_t rope_positions;
    void *gemm_work, *attention_work;
    struct dt_cache *cache;     /* NULL but for generation */
    int64_t logits_rows;        /* rows of DT_SLOT_LOGITS */
    struct dt_microbatch batch; /* what the segments work on */
    /* `reduction: exact` (docs/numerics.md): gradients are sums of fixed-point addends. */
    bool exact;
    int64_t **fixed; /* [tensor_count] accumulators instead of gradient[]; NULL: frozen */
    int fixed_scale; /* an addend is its fp32 value times 2^fixed_scale, rounded ... */
    int fixed_limit; /* ... and must stay below 2^fixed_limit in size */
    int fixed_flags; /* DT_FIXED_*: gathered by backward, cleared by the caller */
    float *tile;     /* one addend of (a part of) one tensor */
};

struct dt_model_options {
    enum dt_dtype compute;
    int64_t max_tokens;  /* of a micro-batch */
    int64_t positions;   /* longest sequence */
    int64_t rope_length; /* length that dynamic RoPE scales to; usually = positions */
    bool train;          /* backward's slots too */
    bool recompute;
    bool exact; /* gradients as fixed point; with train only */
};

/* Divide an arena: with an arena that only counts (base NULL), counts the same bytes. */
void dt_model_carve(struct dt_model *m, const struct dt_arch *arch,
                    const struct dt_model_options *o, struct dt_arena *arena);
/* Tables (pointers, not tensors); weight[], gradient[] and, when exact, fixed[] with its scale and
 * limit are for the caller to fill. */
int dt_model_open(struct dt_model *m, const struct dt_arch *arch);
void dt_model_close(struct dt_model *m);
/* After carving with memory: compute the tables (RoPE). */
void dt_model_prepare(struct dt_model *m, const struct dt_model_options *o);

void dt_model_forward(struct dt_model *m, enum dt_segment_kind segment, int64_t layer);
/* first: write gradients instead of adding to them.
 *
 * When exact, what a sequence gives to an accumulator, to the gradient passed down and to its loss
 * has the same bits whatever else is in the micro-batch. */
void dt_model_backward(struct dt_model *m, enum dt_segment_kind segment, int64_t layer, bool first);
/* After forward of HEAD, without gradients: DT_SLOT_LOSS of every row. */
void dt_model_loss(struct dt_model *m);
/* Logits of rows [row, row + n), n <= logits_rows: out -> DT_SLOT_LOGITS [n, V]. */
float *dt_model_logits(struct dt_model *m, int64_t row, int64_t n);
/* Loss of one sequence of the micro-batch: its rows' losses (DT_SLOT_LOSS), summed in order. */
double dt_model_sequence_loss(const struct dt_model *m, int64_t sequence);

#endif
