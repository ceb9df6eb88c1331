/* PURE. What a model is: config.json -> dimensions, tensors, sharding units, gradient kinds, the
 * segments of a block, and the bytes and FLOPs of each.
 *
 * A model is a chain of *segments*: EMBED, then per layer ATTENTION and MLP, then HEAD. A segment
 * is a piece between the points where partial results of a tensor-parallel group are summed: the
 * output of ATTENTION and MLP is added to the residual stream after that sum. Everything downstream
 * (spaces, layouts, schedules, memory) is made from the two tables here: tensors and slots. */
#ifndef DT_ARCH_ARCH_H
#define DT_ARCH_ARCH_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dt_family { DT_LLAMA, DT_MISTRAL, DT_QWEN2, DT_QWEN3, DT_GPT2 };

enum dt_arch_act {
    DT_ARCH_SILU,
    DT_ARCH_GELU_TANH,
    DT_ARCH_GELU_ERF,
    DT_ARCH_RELU,
    DT_ARCH_QUICK_GELU
};

enum dt_rope_kind {
    DT_ROPE_NONE,
    DT_ROPE_DEFAULT,
    DT_ROPE_LINEAR,
    DT_ROPE_LLAMA3,
    DT_ROPE_YARN,
    DT_ROPE_DYNAMIC
};

struct dt_rope {
    enum dt_rope_kind kind;
    double theta;
    int64_t half;  /* rotated pairs per head: D/2 (partial_rotary_factor is refused unless 1) */
    double factor; /* linear, llama3, yarn, dynamic */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow,
        attention_factor; /* yarn; attention_factor resolved as transformers does, 1 elsewhere */
    bool truncate;        /* yarn */
    int64_t original_positions; /* llama3, yarn, dynamic */
};

enum dt_segment_kind { DT_SEG_EMBED, DT_SEG_ATTENTION, DT_SEG_MLP, DT_SEG_HEAD };

enum dt_role {
    DT_EMBED_W,    /* [V, C] */
    DT_POSITION_W, /* [P, C] learned positions */
    DT_NORM1_W,
    DT_NORM1_B, /* [C] */
    DT_Q_W,
    DT_Q_B, /* [H*D, C], [H*D] */
    DT_K_W,
    DT_K_B,
    DT_V_W,
    DT_V_B, /* [K*D, C], [K*D] */
    DT_QKV_W,
    DT_QKV_B, /* GPT-2 c_attn: [C, 3C] stored transposed, [3C] */
    DT_Q_NORM,
    DT_K_NORM, /* [D] */
    DT_O_W,
    DT_O_B, /* [C, H*D] (GPT-2: [H*D, C]), [C] */
    DT_NORM2_W,
    DT_NORM2_B, /* [C] */
    DT_GATE_W,
    DT_GATE_B, /* [F, C], [F] */
    DT_UP_W,
    DT_UP_B, /* [F, C] (GPT-2 c_fc: [C, F]), [F] */
    DT_DOWN_W,
    DT_DOWN_B, /* [C, F] (GPT-2: [F, C]), [C] */
    DT_FINAL_NORM_W,
    DT_FINAL_NORM_B, /* [C] */
    DT_HEAD_W,       /* [V, C]; absent when tied: the head uses DT_EMBED_W */
    DT_ROLES
};

/* How a tensor-parallel group divides a tensor (DESIGN 1.2, numerics.md "Tensor parallelism"). */
enum dt_split {
    DT_SPLIT_NONE,
    DT_SPLIT_ROWS,
    DT_SPLIT_COLS,
    DT_SPLIT_QKV_COLS /* c_attn: three column groups */
};
enum dt_unit { DT_UNIT_NONE, DT_UNIT_ATTENTION, DT_UNIT_MLP, DT_UNIT_VOCAB };
/* What the gradient of a held box is: a part of the sum, the same on every holder, or none. */
enum dt_gradient { DT_GRAD_PARTIAL, DT_GRAD_SAME, DT_GRAD_NONE };

struct dt_tensor {
    char name[96]; /* Hugging Face name as transformers writes it ("model.layers.0...",
                      "transformer.h.0...") */
    enum dt_role role;
    enum dt_segment_kind segment; /* where it is first used */
    int64_t layer;                /* -1: EMBED and HEAD */
    int rank;                     /* 1 or 2 */
    int64_t rows, cols;           /* as stored; rank 1: rows = 1 */
    bool transposed;              /* stored [in, out] (GPT-2's Conv1D) instead of [out, in] */
    bool decay;                   /* weight decay: rank 2 */
    bool residual; /* output projection into the residual stream (init ÷ sqrt(2L)) */
    enum dt_split split;
    enum dt_unit unit;
    enum dt_gradient replicated; /* gradient kind of a box that every member holds */
};

struct dt_arch {
    enum dt_family family;
    int64_t L, C, H, K, D, F, V;
    int64_t positions; /* max_position_embeddings / n_positions */
    bool layer_norm;   /* LayerNorm with bias; else RMSNorm */
    double norm_eps;
    bool qk_norm;
    bool gated; /* act(gate) * up; else act(up) */
    enum dt_arch_act act;
    bool tied; /* head uses the embedding */
    bool learned_positions;
    struct dt_rope rope;
    int64_t *window; /* [L] query i sees key j when 0 <= i - j < window; 0: full attention */
    double *scale;   /* [L] of attention scores */
    double initializer_range;
    int64_t bos, eos; /* first ids of config.json, -1: none */
    int64_t tensor_count;
    struct dt_tensor *tensors; /* in execution order: the order of the space */
    int64_t *index;            /* [(L + 1) * DT_ROLES] -> tensor index or -1; use dt_arch_tensor */
    uint64_t hash; /* of what the model computes (dimensions and switches, not names of files) */
};

/* `dir` holds config.json. DT_E_MODEL for what is wrong, DT_E_UNSUPPORTED naming the key for what
 * cannot be honoured exactly; dropout is off and one dt_info line says so. */
int dt_arch_load(const char *dir, struct dt_arch **out);
int dt_arch_parse(const char *json, size_t bytes, const char *path_for_messages,
                  struct dt_arch **out);
void dt_arch_free(struct dt_arch *a);

/* Index of a tensor, -1 when this model has none. layer -1: EMBED and HEAD tensors. For a tied
 * model DT_HEAD_W gives the embedding's index. */
int64_t dt_arch_tensor(const struct dt_arch *a, int64_t layer, enum dt_role role);
/* Find by Hugging Face name, with or without "model." / "transformer." in front; -1: unknown.
 * A tied model's "lm_head.weight" gives the embedding's index (whose name differs: a file may hold
 * both). GPT-2's "attn.bias" / "attn.masked_bias" buffers and "rotary_emb.inv_freq" are -1 and
 * known_buffer = true (known_buffer may be NULL). */
int64_t dt_arch_tensor_by_name(const struct dt_arch *a, const char *name, bool *known_buffer);
int64_t dt_arch_parameters(const struct dt_arch *a); /* elements, tied once */
const char *dt_family_name(enum dt_family f);

/* [positions, 2, half] cos then sin, times attention_factor. Angles as transformers makes them:
 * inverse frequencies and position * frequency rounded to fp32, cos and sin in double. seq_len:
 * length that `dynamic` scales to. */
void dt_arch_rope_table(const struct dt_arch *a, int64_t positions, int64_t seq_len, float *table);
static inline int64_t dt_arch_rope_elements(const struct dt_arch *a, int64_t positions)
{
    return positions * 2 * a->rope.half;
}

/* ---- Slots: what a segment writes, in the order in which it is written
 * ------------------------------------------ */

/* One table (slots.c) gives name, width and element type of every activation buffer of a segment;
 * the arena is divided by it, `estimate` sums it, and the executor's pointers are looked up in it.
 */
enum dt_slot {
    /* kept from forward to backward, one set a layer */
    DT_SLOT_X, /* [T, C] residual stream that enters ATTENTION */
    DT_SLOT_RSTD1,
    DT_SLOT_MEAN1,   /* [T] */
    DT_SLOT_N1,      /* [T, C] normalised input; only enters GEMMs */
    DT_SLOT_QKV,     /* [T, (H + 2K) D] after bias (before QK norm and RoPE when QK norm is on) */
    DT_SLOT_QKR,     /* [T, (H + K) D] q and k after QK norm; only with qk_norm */
    DT_SLOT_QK_RSTD, /* [T, H + K]; only with qk_norm */
    DT_SLOT_ATT,     /* [T, H * D] attention output */
    DT_SLOT_LSE,     /* [H, T] */
    DT_SLOT_XM,      /* [T, C] residual stream that enters MLP */
    DT_SLOT_RSTD2,
    DT_SLOT_MEAN2,
    DT_SLOT_N2, /* [T, C] */
    DT_SLOT_GU, /* [T, 2F] gate and up, or [T, F] */
    /* not kept: shared by all layers */
    DT_SLOT_ACT,  /* [T, F] act(gate) * up; only enters a GEMM, recomputed in backward */
    DT_SLOT_DX,   /* [T, C] gradient of the residual stream */
    DT_SLOT_DN,   /* [T, C] gradient of a normalised input */
    DT_SLOT_DQKV, /* [T, (H + 2K) D] */
    DT_SLOT_DATT, /* [T, H * D] */
    DT_SLOT_DGU,  /* [T, 2F] or [T, F] */
    DT_SLOT_DACT, /* [T, F] */
    /* head */
    DT_SLOT_XF, /* [T, C] residual stream that enters HEAD */
    DT_SLOT_RSTDF,
    DT_SLOT_MEANF,
    DT_SLOT_NF,     /* [T, C] */
    DT_SLOT_LOGITS, /* [chunk, V] */
    DT_SLOT_LOSS,   /* [T] double */
    DT_SLOTS
};

struct dt_slot_info {
    const char *name;
    int64_t
        width; /* elements per token (LOGITS: per row of a chunk); 0: this model has no such slot */
    enum dt_dtype dtype; /* under the given compute type */
    bool per_layer;      /* kept: one a layer; else one in all */
    bool chunked;        /* rows = dt_arch_loss_chunk, not T */
};
struct dt_slot_info dt_arch_slot(const struct dt_arch *a, enum dt_slot slot, enum dt_dtype compute);
/* Rows of logits that are held at once for a micro-batch of up to T tokens: bounded by memory, a
 * pure function of (V, T), since it fixes the order of sums in the head's weight gradient. With
 * T = INT64_MAX the bound alone: under `reduction: exact` it cuts the head's addends. */
int64_t dt_arch_loss_chunk(const struct dt_arch *a, int64_t T);

/* FLOPs of one sequence of s tokens, forward only: GEMMs 2·parameters-used·s plus attention
 * 4·L·H·D·s² (the full square, as model-FLOPs are usually counted); a training step costs three
 * times this. */
double dt_arch_forward_flops(const struct dt_arch *a, int64_t s);

#endif
