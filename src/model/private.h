/* What the files of this room share. */
#ifndef DT_MODEL_PRIVATE_H
#define DT_MODEL_PRIVATE_H

#include "model/model.h"
#include "ops/ops.h"

static inline void *model__slot(const struct dt_model *m, enum dt_slot slot, int64_t layer)
{
    return m->slot[slot * (m->arch->L + 1) + layer];
}

static inline float *model__f(const struct dt_model *m, enum dt_slot slot, int64_t layer)
{
    return model__slot(m, slot, layer);
}

/* The weight or gradient of a role; NULL where the model has none (or it is frozen). */
static inline const float *model__w(const struct dt_model *m, int64_t layer, enum dt_role role)
{
    int64_t i = dt_arch_tensor(m->arch, layer, role);
    return i < 0 ? NULL : m->weight[i];
}

static inline float *model__g(const struct dt_model *m, int64_t layer, enum dt_role role)
{
    int64_t i = dt_arch_tensor(m->arch, layer, role);
    return i < 0 ? NULL : m->gradient[i];
}

/* The rows from `row` on. */
static inline struct dt_mat model__from_row(struct dt_mat x, int64_t row)
{
    x.p = (const unsigned char *)x.p + (size_t)(row * x.ld) * dt_dtype_size(x.dtype);
    return x;
}

/* A slot that only enters GEMMs: bf16 under bf16 compute, fp32 otherwise (arch/ says which). */
static inline struct dt_mat model__mat(const struct dt_model *m, enum dt_slot slot, int64_t layer)
{
    struct dt_slot_info info = dt_arch_slot(m->arch, slot, m->compute);
    return (struct dt_mat){.p = model__slot(m, slot, layer), .ld = info.width, .dtype = info.dtype};
}

static inline struct dt_mat model__f32(const float *p, int64_t ld)
{
    return (struct dt_mat){.p = p, .ld = ld, .dtype = DT_F32};
}

/* Where a linear map stands: y = x · Wᵀ + b, weight stored [out, in] or, transposed, [in, out]. */
struct model__linear {
    int64_t layer;
    enum dt_role weight, bias;
};

/* y [T, out] = x [T, in] · Wᵀ + b (+ add) */
void model__linear_forward(const struct dt_model *m, struct model__linear l, struct dt_mat x,
                           int64_t T, float *y, int64_t ldy, const float *add, int64_t ldadd);
/* Rows [first, first + n) of the micro-batch, which the operands of a call hold. */
struct model__rows {
    int64_t first, n;
    int64_t addend; /* when exact: most rows of an addend; it ends with its sequence anyway */
};
/* dx [n, in] (+)= dy · W;  dW (+)= dyᵀ · x and db (+)= Σ dy when they train. */
void model__linear_backward(struct dt_model *m, struct model__linear l, struct dt_mat x,
                            const float *dy, int64_t lddy, struct model__rows rows, float *dx,
                            bool add_dx, bool first);

/* The norms of a block and the final one: which tensors and slots they use. */
struct model__norm {
    int64_t layer;
    enum dt_role weight, bias;
    enum dt_slot x, mean, rstd, y;
};
void model__norm_forward(const struct dt_model *m, struct model__norm n);
/* dx (+)= gradient of the norm's input, from dy [T, C]. */
void model__norm_backward(struct dt_model *m, struct model__norm n, const float *dy, float *dx,
                          bool add_dx, bool first);

/* The backward of a norm whose tensors have these indices (-1: none), of QK norms too. */
void model__norm_gradient(struct dt_model *m, struct dt_norm n, int64_t w, int64_t b, bool first);

/* ---- exact.c: gradients as sums of fixed-point addends ---- */

/* Elements of struct dt_model's tile. */
int64_t model__tile(const struct dt_arch *a);
/* Where the addend that begins at `row` of the micro-batch ends. */
int64_t model__addend_end(const struct dt_model *m, int64_t row, int64_t most);
/* Tensor w += op(A) · op(B), whose K are the rows. */
void model__exact_weight(struct dt_model *m, int64_t w, const struct dt_gemm *g,
                         struct model__rows rows, bool first);
/* Tensor b += Σ dy [n, N] */
void model__exact_bias(struct dt_model *m, int64_t b, const float *dy, int64_t lddy, int64_t N,
                       struct model__rows rows, bool first);
/* n as for dt_kernels.norm_backward but for dw and db: tensors w and b instead, -1: none. */
void model__exact_norm(struct dt_model *m, const struct dt_norm *n, int64_t w, int64_t b,
                       bool first);
void model__exact_embed(struct dt_model *m, bool first);

void model__attention_forward(struct dt_model *m, int64_t layer);
void model__attention_backward(struct dt_model *m, int64_t layer, bool first);
void model__mlp_forward(struct dt_model *m, int64_t layer);
void model__mlp_backward(struct dt_model *m, int64_t layer, bool first);
void model__embed_forward(struct dt_model *m);
void model__embed_backward(struct dt_model *m, bool first);
void model__head_forward(struct dt_model *m);
void model__head_backward(struct dt_model *m, bool first);

#endif
