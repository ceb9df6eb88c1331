/* Reference activations: the definition, one element at a time. Formulas in act.simd.c. */
#include "ops/cpu/act_constants.h"
#include "ops/cpu/scalar.h"
#include "ops/ops.h"

#include <math.h>
#include <stddef.h>

struct act {
    float value, slope;
};

static float sigmoid(float x)
{
    return 1 / (1 + s_exp(-x));
}

static struct act act_silu(float x, float beta)
{
    float s = sigmoid(x * beta);
    return (struct act){x * s, s + x * s * (1 - s) * beta};
}

static struct act act_gelu_tanh(float x)
{
    float xx = x * x;
    float s = sigmoid(x * (1 + DT_GELU_CUBE * xx) * DT_GELU_SCALE);
    float inner = (1 + 3 * DT_GELU_CUBE * xx) * DT_GELU_SCALE;
    return (struct act){x * s, s + x * s * (1 - s) * inner};
}

static struct act act_gelu_erf(float x)
{
    float t = 1 / (1 + DT_ERF_P * fabsf(x));
    float p = DT_ERF_5;
    p = p * t + DT_ERF_4;
    p = p * t + DT_ERF_3;
    p = p * t + DT_ERF_2;
    p = p * t + DT_ERF_1;
    float e = s_exp(x * x * -0.5f);
    float tail = p * t * e;
    float cdf = x < 0 ? tail : 1 - tail;
    return (struct act){x * cdf, cdf + x * e * DT_INV_SQRT_2PI};
}

static struct act act_of(enum dt_act_kind kind, float x)
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
    return (struct act){x < 0 ? 0 : x, x > 0 ? 1 : 0};
}

void dt_act_forward_reference(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,
                              const float *g, const float *u, int64_t ldg, int64_t T, int64_t F);
void dt_act_forward_reference(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,
                              const float *g, const float *u, int64_t ldg, int64_t T, int64_t F)
{
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < F; i++) {
            float value = act_of(kind, g[t * ldg + i]).value;
            if (u)
                value *= u[t * ldg + i];
            if (h_bf16)
                h_bf16[t * ldh + i] = bf16_round(value);
            else
                h[t * ldh + i] = value;
        }
    }
}

void dt_act_backward_reference(enum dt_act_kind kind, float *dg, float *du, int64_t lddg,
                               const float *dh, int64_t lddh, const float *g, const float *u,
                               int64_t ldg, int64_t T, int64_t F);
void dt_act_backward_reference(enum dt_act_kind kind, float *dg, float *du, int64_t lddg,
                               const float *dh, int64_t lddh, const float *g, const float *u,
                               int64_t ldg, int64_t T, int64_t F)
{
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < F; i++) {
            struct act a = act_of(kind, g[t * ldg + i]);
            float d = dh[t * lddh + i], dv = d;
            if (u)
                d *= u[t * ldg + i];
            dg[t * lddg + i] = d * a.slope;
            if (du)
                du[t * lddg + i] = dv * a.value;
        }
    }
}
