/* Activations, gated (SwiGLU, GeGLU: Shazeer 2020) or not.
 *
 * All but ReLU are x · Φ(x) with Φ a sigmoid or the normal distribution, so that one exponential
 * and one division do:
 *   SiLU        Φ = σ(x)                           QuickGELU  Φ = σ(1.702 x)
 *   GELU(tanh)  Φ = (1 + tanh(v))/2 = σ(2 v),      v = √(2/π) (x + 0.044715 x³)
 *   GELU(erf)   Φ = (1 + erf(x/√2))/2; erfc by Abramowitz & Stegun 7.1.26 (absolute error 1.5e-7)
 * and the derivative is Φ + x Φ'. */
#include "ops/cpu/act_constants.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <stddef.h>

struct act {
    vf value, slope;
};

VINLINE vf sigmoid(vf x)
{
    return v_set(1) / (v_set(1) + v_exp(-x));
}

VINLINE struct act act_silu(vf x, float beta)
{
    vf s = sigmoid(x * v_set(beta));
    return (struct act){x * s, s + x * s * (v_set(1) - s) * v_set(beta)};
}

VINLINE struct act act_gelu_tanh(vf x)
{
    vf xx = x * x;
    vf s = sigmoid(x * (v_set(1) + v_set(DT_GELU_CUBE) * xx) * v_set(DT_GELU_SCALE));
    vf inner = (v_set(1) + v_set(3 * DT_GELU_CUBE) * xx) * v_set(DT_GELU_SCALE);
    return (struct act){x * s, s + x * s * (v_set(1) - s) * inner};
}

VINLINE struct act act_gelu_erf(vf x)
{
    vi positive = (vi)x & 0x7fffffff;
    vf t = v_set(1) / (v_set(1) + v_set(DT_ERF_P) * (vf)positive);
    vf p = v_set(DT_ERF_5);
    p = p * t + v_set(DT_ERF_4);
    p = p * t + v_set(DT_ERF_3);
    p = p * t + v_set(DT_ERF_2);
    p = p * t + v_set(DT_ERF_1);
    vf e = v_exp(x * x * v_set(-0.5f));
    vf tail = p * t * e; /* Φ(-|x|) */
    vf cdf = v_select(x < v_set(0), tail, v_set(1) - tail);
    return (struct act){x * cdf, cdf + x * e * v_set(DT_INV_SQRT_2PI)};
}

VINLINE struct act act_relu(vf x)
{
    vf zero = v_set(0);
    return (struct act){v_select(x < zero, zero, x), v_select(x > zero, v_set(1), zero)};
}

/* `kind` is a constant at every call, and what is not used of the result costs nothing. */
VINLINE struct act act_of(enum dt_act_kind kind, vf x)
{
    switch (kind) {
    case DT_ACT_SILU:
        return act_silu(x, 1);
    case DT_ACT_GELU_TANH:
        return act_gelu_tanh(x);
    case DT_ACT_GELU_ERF:
        return act_gelu_erf(x);
    case DT_ACT_QUICK_GELU:
        return act_silu(x, DT_QUICK_GELU);
    case DT_ACT_RELU:
        break;
    }
    return act_relu(x);
}

struct args {
    enum dt_act_kind kind;
    float *h;
    uint16_t *h_bf16;
    float *dg, *du;
    const float *dh, *g, *u;
    int64_t ldh, lddg, lddh, ldg, F;
};

/* Pointers of one tile. */
struct run {
    float *h, *dg, *du;
    uint16_t *h_bf16;
    const float *dh, *g, *u;
};

VINLINE void forward_step(enum dt_act_kind kind, const struct run *r, int64_t i, int64_t k)
{
    vf h = act_of(kind, v_load_k(r->g + i, k, 0)).value;
    if (r->u)
        h *= v_load_k(r->u + i, k, 0);
    if (r->h_bf16)
        v_store_bf16_k(r->h_bf16 + i, h, k);
    else
        v_store_k(r->h + i, h, k);
}

VINLINE void forward_run(enum dt_act_kind kind, const struct run *r, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        forward_step(kind, r, i, VL);
    if (i < n)
        forward_step(kind, r, i, n - i);
}

VINLINE void backward_step(enum dt_act_kind kind, const struct run *r, int64_t i, int64_t k)
{
    struct act a = act_of(kind, v_load_k(r->g + i, k, 0));
    vf dh = v_load_k(r->dh + i, k, 0), d = dh;
    if (r->u)
        d *= v_load_k(r->u + i, k, 0);
    v_store_k(r->dg + i, d * a.slope, k);
    if (r->du)
        v_store_k(r->du + i, dh * a.value, k);
}

VINLINE void backward_run(enum dt_act_kind kind, const struct run *r, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        backward_step(kind, r, i, VL);
    if (i < n)
        backward_step(kind, r, i, n - i);
}

#define EACH_KIND(run)                                                                             \
    switch (a->kind) {                                                                             \
    case DT_ACT_SILU:                                                                              \
        run(DT_ACT_SILU, &r, t.n);                                                                 \
        break;                                                                                     \
    case DT_ACT_GELU_TANH:                                                                         \
        run(DT_ACT_GELU_TANH, &r, t.n);                                                            \
        break;                                                                                     \
    case DT_ACT_GELU_ERF:                                                                          \
        run(DT_ACT_GELU_ERF, &r, t.n);                                                             \
        break;                                                                                     \
    case DT_ACT_QUICK_GELU:                                                                        \
        run(DT_ACT_QUICK_GELU, &r, t.n);                                                           \
        break;                                                                                     \
    case DT_ACT_RELU:                                                                              \
        run(DT_ACT_RELU, &r, t.n);                                                                 \
        break;                                                                                     \
    }

static void forward_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *a = arg;
    for (int64_t index = begin; index < end; index++) {
        struct dt_tile t = dt_tile_at(index, a->F);
        int64_t from = t.row * a->ldg + t.col, to = t.row * a->ldh + t.col;
        struct run r = {.g = a->g + from, .u = a->u ? a->u + from : NULL};
        if (a->h_bf16)
            r.h_bf16 = a->h_bf16 + to;
        else
            r.h = a->h + to;
        EACH_KIND(forward_run)
    }
}

static void backward_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *a = arg;
    for (int64_t index = begin; index < end; index++) {
        struct dt_tile t = dt_tile_at(index, a->F);
        int64_t from = t.row * a->ldg + t.col, to = t.row * a->lddg + t.col;
        struct run r = {
            .g = a->g + from,
            .u = a->u ? a->u + from : NULL,
            .dh = a->dh + t.row * a->lddh + t.col,
            .dg = a->dg + to,
            .du = a->du ? a->du + to : NULL,
        };
        EACH_KIND(backward_run)
    }
}

void DT_KERNEL(act_forward)(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,
                            const float *g, const float *u, int64_t ldg, int64_t T, int64_t F);
void DT_KERNEL(act_forward)(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,
                            const float *g, const float *u, int64_t ldg, int64_t T, int64_t F)
{
    struct args a = {
        .kind = kind, .h = h, .h_bf16 = h_bf16, .g = g, .u = u, .ldh = ldh, .ldg = ldg, .F = F};
    dt_parallel(T * dt_tiles(F), 1, T * F, forward_range, &a);
}

void DT_KERNEL(act_backward)(enum dt_act_kind kind, float *dg, float *du, int64_t lddg,
                             const float *dh, int64_t lddh, const float *g, const float *u,
                             int64_t ldg, int64_t T, int64_t F);
void DT_KERNEL(act_backward)(enum dt_act_kind kind, float *dg, float *du, int64_t lddg,
                             const float *dh, int64_t lddh, const float *g, const float *u,
                             int64_t ldg, int64_t T, int64_t F)
{
    struct args a = {.kind = kind,
                     .dg = dg,
                     .du = du,
                     .dh = dh,
                     .g = g,
                     .u = u,
                     .lddg = lddg,
                     .lddh = lddh,
                     .ldg = ldg,
                     .F = F};
    dt_parallel(T * dt_tiles(F), 1, T * F, backward_range, &a);
}
