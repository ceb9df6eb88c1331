/* The two segments of a block.
 *
 *   ATTENTION   n1 = norm(x);  q, k, v = n1 Wqkv;  q, k = rope(norm?(q, k));  xm = x + attention(q,
 * k, v) Wo MLP         n2 = norm(xm); g, u = n2 Wgu;      x' = xm + (act(g) * u) Wdown
 *
 * DT_SLOT_DX carries the gradient of the residual stream down the layers: each segment's backward
 * adds its own part to it in place. */
#include "model/private.h"

static enum dt_act_kind act_kind(const struct dt_model *m)
{
    static const enum dt_act_kind kind[] = {
        [DT_ARCH_SILU] = DT_ACT_SILU,
        [DT_ARCH_GELU_TANH] = DT_ACT_GELU_TANH,
        [DT_ARCH_GELU_ERF] = DT_ACT_GELU_ERF,
        [DT_ARCH_RELU] = DT_ACT_RELU,
        [DT_ARCH_QUICK_GELU] = DT_ACT_QUICK_GELU,
    };
    return kind[m->arch->act];
}

static struct model__norm norm1(int64_t layer)
{
    return (struct model__norm){layer,         DT_NORM1_W,    DT_NORM1_B, DT_SLOT_X,
                                DT_SLOT_MEAN1, DT_SLOT_RSTD1, DT_SLOT_N1};
}

static struct model__norm norm2(int64_t layer)
{
    return (struct model__norm){layer,         DT_NORM2_W,    DT_NORM2_B, DT_SLOT_XM,
                                DT_SLOT_MEAN2, DT_SLOT_RSTD2, DT_SLOT_N2};
}

/* The projections to q, k and v: one fused map, or three that write side by side. Returns how many.
 */
struct part {
    struct model__linear map;
    int64_t column; /* in DT_SLOT_QKV */
};

static int qkv_parts(const struct dt_model *m, int64_t layer, struct part out[3])
{
    const struct dt_arch *a = m->arch;
    if (dt_arch_tensor(a, layer, DT_QKV_W) >= 0) {
        out[0] = (struct part){{layer, DT_QKV_W, DT_QKV_B}, 0};
        return 1;
    }
    out[0] = (struct part){{layer, DT_Q_W, DT_Q_B}, 0};
    out[1] = (struct part){{layer, DT_K_W, DT_K_B}, a->H * a->D};
    out[2] = (struct part){{layer, DT_V_W, DT_V_B}, (a->H + a->K) * a->D};
    return 3;
}

static int mlp_parts(const struct dt_model *m, int64_t layer, struct part out[2])
{
    if (!m->arch->gated) {
        out[0] = (struct part){{layer, DT_UP_W, DT_UP_B}, 0};
        return 1;
    }
    out[0] = (struct part){{layer, DT_GATE_W, DT_GATE_B}, 0};
    out[1] = (struct part){{layer, DT_UP_W, DT_UP_B}, m->arch->F};
    return 2;
}

/* QK norm of q (which = 0) or k (1): from DT_SLOT_QKV to DT_SLOT_QKR. */
static struct dt_norm qk_norm(const struct dt_model *m, int64_t layer, int which)
{
    const struct dt_arch *a = m->arch;
    int64_t T = m->batch.T, column = which ? a->H * a->D : 0;
    return (struct dt_norm){
        .rows = T,
        .cols = a->D,
        .groups = which ? a->K : a->H,
        .x = model__f(m, DT_SLOT_QKV, layer) + column,
        .ldx = (a->H + 2 * a->K) * a->D,
        .w = model__w(m, layer, which ? DT_K_NORM : DT_Q_NORM),
        .rstd = model__f(m, DT_SLOT_QK_RSTD, layer) + (which ? T * a->H : 0),
        .eps = (float)a->norm_eps,
        .y = model__f(m, DT_SLOT_QKR, layer) + column,
        .ldy = (a->H + a->K) * a->D,
    };
}

/* Where q and k stand when they enter the attention. */
static void rotated(const struct dt_model *m, int64_t layer, float **q, float **k, int64_t *ld)
{
    const struct dt_arch *a = m->arch;
    *q = model__f(m, a->qk_norm ? DT_SLOT_QKR : DT_SLOT_QKV, layer);
    *k = *q + a->H * a->D;
    *ld = (a->qk_norm ? a->H + a->K : a->H + 2 * a->K) * a->D;
}

static struct dt_attention attention(const struct dt_model *m, int64_t layer)
{
    const struct dt_arch *a = m->arch;
    float *q, *k;
    int64_t ld;
    rotated(m, layer, &q, &k, &ld);
    return (struct dt_attention){
        .sequences = m->batch.sequences,
        .q_start = m->batch.start,
        .k_start = m->batch.start,
        .H = a->H,
        .K = a->K,
        .D = a->D,
        .window = a->window[layer],
        .scale = (float)a->scale[layer],
        .q = q,
        .ldq = ld,
        .k = k,
        .ldk = ld,
        .v = model__f(m, DT_SLOT_QKV, layer) + (a->H + a->K) * a->D,
        .ldv = (a->H + 2 * a->K) * a->D,
        .o = model__f(m, DT_SLOT_ATT, layer),
        .lse = model__f(m, DT_SLOT_LSE, layer),
        .work = m->attention_work,
    };
}

/* Generation: the new rows' keys and values join the cache, and attention looks at all of it. */
static void use_cache(const struct dt_model *m, int64_t layer, struct dt_attention *at,
                      int32_t k_start[2])
{
    const struct dt_arch *a = m->arch;
    struct dt_cache *c = m->cache;
    int64_t width = a->K * a->D, T = m->batch.T;
    float *k = c->k + layer * c->capacity * width, *v = c->v + layer * c->capacity * width;
    dt_k->copy(k + c->length * width, DT_F32, width, at->k, DT_F32, at->ldk, T, width);
    dt_k->copy(v + c->length * width, DT_F32, width, at->v, DT_F32, at->ldv, T, width);
    at->k = k, at->v = v;
    at->ldk = at->ldv = width;
    k_start[0] = 0;
    k_start[1] = (int32_t)(c->length + T);
    at->k_start = k_start;
}

static void rope(const struct dt_model *m, float *q, float *k, int64_t ld, bool inverse)
{
    const struct dt_arch *a = m->arch;
    if (!m->rope)
        return;
    dt_k->rope(q, ld, m->batch.T, a->H, a->D, a->rope.half, m->batch.position, m->rope, inverse);
    dt_k->rope(k, ld, m->batch.T, a->K, a->D, a->rope.half, m->batch.position, m->rope, inverse);
}

void model__attention_forward(struct dt_model *m, int64_t layer)
{
    const struct dt_arch *a = m->arch;
    int64_t T = m->batch.T;
    float *qkv = model__f(m, DT_SLOT_QKV, layer); /* [T, (H + 2K) D] */
    struct part part[3];
    model__norm_forward(m, norm1(layer));
    for (int i = 0, n = qkv_parts(m, layer, part); i < n; i++)
        model__linear_forward(m, part[i].map, model__mat(m, DT_SLOT_N1, layer), T,
                              qkv + part[i].column, (a->H + 2 * a->K) * a->D, NULL, 0);
    for (int which = 0; a->qk_norm && which < 2; which++) {
        struct dt_norm n = qk_norm(m, layer, which);
        dt_k->norm_forward(&n);
    }
    float *q, *k;
    int64_t ld;
    rotated(m, layer, &q, &k, &ld);
    rope(m, q, k, ld, false);
    struct dt_attention at = attention(m, layer);
    int32_t k_start[2];
    if (m->cache)
        use_cache(m, layer, &at, k_start);
    dt_k->attention_forward(&at);
    model__linear_forward(m, (struct model__linear){layer, DT_O_W, DT_O_B},
                          model__f32(at.o, a->H * a->D), T, model__f(m, DT_SLOT_XM, layer), a->C,
                          model__f(m, DT_SLOT_X, layer), a->C);
}

static struct model__rows all_rows(const struct dt_model *m)
{
    return (struct model__rows){0, m->batch.T, m->batch.T};
}

void model__attention_backward(struct dt_model *m, int64_t layer, bool first)
{
    const struct dt_arch *a = m->arch;
    int64_t width = (a->H + 2 * a->K) * a->D;
    float *dx = model__f(m, DT_SLOT_DX, 0);     /* [T, C] */
    float *datt = model__f(m, DT_SLOT_DATT, 0); /* [T, H * D] */
    float *dqkv = model__f(m, DT_SLOT_DQKV, 0); /* [T, (H + 2K) D] */
    float *dn = model__f(m, DT_SLOT_DN, 0);     /* [T, C] */
    struct dt_attention at = attention(m, layer);
    model__linear_backward(m, (struct model__linear){layer, DT_O_W, DT_O_B},
                           model__f32(at.o, a->H * a->D), dx, a->C, all_rows(m), datt, false,
                           first);
    at.d_o = datt;
    at.dq = dqkv, at.dk = dqkv + a->H * a->D, at.dv = dqkv + (a->H + a->K) * a->D;
    at.ldd = width;
    dt_k->attention_backward(&at);
    rope(m, at.dq, at.dk, width, true);
    for (int which = 0; a->qk_norm && which < 2; which++) {
        struct dt_norm n = qk_norm(m, layer, which);
        n.dy = n.dx = which ? at.dk : at.dq;
        n.ldy = n.lddx = width;
        model__norm_gradient(m, n, dt_arch_tensor(a, layer, which ? DT_K_NORM : DT_Q_NORM), -1,
                             first);
    }
    struct part part[3];
    for (int i = 0, n = qkv_parts(m, layer, part); i < n; i++)
        model__linear_backward(m, part[i].map, model__mat(m, DT_SLOT_N1, layer),
                               dqkv + part[i].column, width, all_rows(m), dn, i > 0, first);
    model__norm_backward(m, norm1(layer), dn, dx, true, first);
}

/* act(g) * u from DT_SLOT_GU into DT_SLOT_ACT */
static void activate(const struct dt_model *m, int64_t layer)
{
    const struct dt_arch *a = m->arch;
    const float *g = model__f(m, DT_SLOT_GU, layer);
    int64_t ld = a->gated ? 2 * a->F : a->F;
    struct dt_mat h = model__mat(m, DT_SLOT_ACT, 0);
    void *p = model__slot(m, DT_SLOT_ACT, 0);
    dt_k->act_forward(act_kind(m), h.dtype == DT_F32 ? p : NULL, h.dtype == DT_F32 ? NULL : p, a->F,
                      g, a->gated ? g + a->F : NULL, ld, m->batch.T, a->F);
}

void model__mlp_forward(struct dt_model *m, int64_t layer)
{
    const struct dt_arch *a = m->arch;
    int64_t T = m->batch.T, ld = a->gated ? 2 * a->F : a->F;
    struct part part[2];
    model__norm_forward(m, norm2(layer));
    for (int i = 0, n = mlp_parts(m, layer, part); i < n; i++)
        model__linear_forward(m, part[i].map, model__mat(m, DT_SLOT_N2, layer), T,
                              model__f(m, DT_SLOT_GU, layer) + part[i].column, ld, NULL, 0);
    activate(m, layer);
    float *out = layer + 1 < a->L ? model__f(m, DT_SLOT_X, layer + 1) : model__f(m, DT_SLOT_XF, 0);
    model__linear_forward(m, (struct model__linear){layer, DT_DOWN_W, DT_DOWN_B},
                          model__mat(m, DT_SLOT_ACT, 0), T, out, a->C,
                          model__f(m, DT_SLOT_XM, layer), a->C);
}

void model__mlp_backward(struct dt_model *m, int64_t layer, bool first)
{
    const struct dt_arch *a = m->arch;
    int64_t T = m->batch.T, ld = a->gated ? 2 * a->F : a->F;
    float *dx = model__f(m, DT_SLOT_DX, 0);     /* [T, C] */
    float *dact = model__f(m, DT_SLOT_DACT, 0); /* [T, F] */
    float *dgu = model__f(m, DT_SLOT_DGU, 0);   /* [T, 2F] or [T, F] */
    float *dn = model__f(m, DT_SLOT_DN, 0);     /* [T, C] */
    const float *g = model__f(m, DT_SLOT_GU, layer);
    activate(m, layer);
    model__linear_backward(m, (struct model__linear){layer, DT_DOWN_W, DT_DOWN_B},
                           model__mat(m, DT_SLOT_ACT, 0), dx, a->C, all_rows(m), dact, false,
                           first);
    dt_k->act_backward(act_kind(m), dgu, a->gated ? dgu + a->F : NULL, ld, dact, a->F, g,
                       a->gated ? g + a->F : NULL, ld, T, a->F);
    struct part part[2];
    for (int i = 0, n = mlp_parts(m, layer, part); i < n; i++)
        model__linear_backward(m, part[i].map, model__mat(m, DT_SLOT_N2, layer),
                               dgu + part[i].column, ld, all_rows(m), dn, i > 0, first);
    model__norm_backward(m, norm2(layer), dn, dx, true, first);
}
