/* The two things every segment is made of: linear maps and norms, each with its backward. */
#include "model/private.h"

static struct dt_gemm gemm(const struct dt_model *m)
{
    return (struct dt_gemm){.compute = m->compute, .work = m->gemm_work};
}

/* Features out of and into the map. */
static void extent(const struct dt_tensor *t, int64_t *out, int64_t *in)
{
    *out = t->transposed ? t->cols : t->rows;
    *in = t->transposed ? t->rows : t->cols;
}

static const struct dt_tensor *tensor(const struct dt_model *m, struct model__linear l)
{
    return &m->arch->tensors[dt_arch_tensor(m->arch, l.layer, l.weight)];
}

void model__linear_forward(const struct dt_model *m, struct model__linear l, struct dt_mat x,
                           int64_t T, float *y, int64_t ldy, const float *add, int64_t ldadd)
{
    const struct dt_tensor *t = tensor(m, l);
    struct dt_gemm g = gemm(m);
    g.M = T;
    extent(t, &g.N, &g.K);
    g.a = x;
    g.b = model__f32(model__w(m, l.layer, l.weight), t->cols);
    g.b.trans = !t->transposed;
    g.c = y, g.ldc = ldy;
    g.add = add, g.ldadd = ldadd;
    g.bias = model__w(m, l.layer, l.bias);
    dt_k->gemm(&g);
}

static void bias_gradient(struct dt_model *m, struct model__linear l, const float *dy, int64_t lddy,
                          int64_t N, struct model__rows rows, bool first)
{
    if (m->exact) {
        model__exact_bias(m, dt_arch_tensor(m->arch, l.layer, l.bias), dy, lddy, N, rows, first);
        return;
    }
    float *db = model__g(m, l.layer, l.bias);
    if (!db)
        return;
    if (first)
        dt_k->zero(db, (size_t)N * sizeof *db);
    dt_k->bias_backward(db, dy, lddy, rows.n, N);
}

static void weight_gradient(struct dt_model *m, struct model__linear l, struct dt_mat x,
                            struct dt_mat dy, struct model__rows rows, bool first)
{
    const struct dt_tensor *t = tensor(m, l);
    struct dt_gemm g = gemm(m);
    g.a = t->transposed ? x : dy;
    g.b = t->transposed ? dy : x;
    g.a.trans = !g.a.trans;
    g.M = t->rows, g.N = t->cols, g.K = rows.n;
    if (m->exact) {
        model__exact_weight(m, dt_arch_tensor(m->arch, l.layer, l.weight), &g, rows, first);
        return;
    }
    float *dw = model__g(m, l.layer, l.weight);
    if (!dw)
        return;
    g.c = dw, g.ldc = t->cols;
    g.add = first ? NULL : dw, g.ldadd = t->cols;
    dt_k->gemm(&g);
}

void model__linear_backward(struct dt_model *m, struct model__linear l, struct dt_mat x,
                            const float *dy, int64_t lddy, struct model__rows rows, float *dx,
                            bool add_dx, bool first)
{
    const struct dt_tensor *t = tensor(m, l);
    struct dt_gemm g = gemm(m);
    g.M = rows.n;
    extent(t, &g.K, &g.N);
    weight_gradient(m, l, x, model__f32(dy, lddy), rows, first);
    bias_gradient(m, l, dy, lddy, g.K, rows, first);
    g.a = model__f32(dy, lddy);
    g.b = model__f32(model__w(m, l.layer, l.weight), t->cols);
    g.b.trans = t->transposed;
    g.c = dx, g.ldc = g.N;
    g.add = add_dx ? dx : NULL, g.ldadd = g.N;
    dt_k->gemm(&g);
}

static struct dt_norm norm(const struct dt_model *m, struct model__norm n)
{
    int64_t C = m->arch->C;
    return (struct dt_norm){
        .rows = m->batch.T,
        .cols = C,
        .groups = 1,
        .x = model__f(m, n.x, n.layer < 0 ? 0 : n.layer),
        .ldx = C,
        .w = model__w(m, n.layer, n.weight),
        .b = model__w(m, n.layer, n.bias),
        .mean = m->arch->layer_norm ? model__f(m, n.mean, n.layer < 0 ? 0 : n.layer) : NULL,
        .rstd = model__f(m, n.rstd, n.layer < 0 ? 0 : n.layer),
        .eps = (float)m->arch->norm_eps,
        .ldy = C,
    };
}

void model__norm_forward(const struct dt_model *m, struct model__norm n)
{
    struct dt_norm k = norm(m, n);
    struct dt_mat y = model__mat(m, n.y, n.layer < 0 ? 0 : n.layer);
    void *p = model__slot(m, n.y, n.layer < 0 ? 0 : n.layer);
    if (y.dtype == DT_BF16)
        k.y_bf16 = p;
    else
        k.y = p;
    dt_k->norm_forward(&k);
}

static float *norm_sum(struct dt_model *m, int64_t tensor_index, int64_t cols, bool first)
{
    float *sum = tensor_index < 0 ? NULL : m->gradient[tensor_index];
    if (sum && first)
        dt_k->zero(sum, (size_t)cols * sizeof *sum);
    return sum;
}

void model__norm_gradient(struct dt_model *m, struct dt_norm n, int64_t w, int64_t b, bool first)
{
    if (m->exact) {
        model__exact_norm(m, &n, w, b, first);
        return;
    }
    n.dw = norm_sum(m, w, n.cols, first);
    n.db = norm_sum(m, b, n.cols, first);
    dt_k->norm_backward(&n);
}

void model__norm_backward(struct dt_model *m, struct model__norm n, const float *dy, float *dx,
                          bool add_dx, bool first)
{
    struct dt_norm k = norm(m, n);
    k.dy = dy;
    k.dx = dx, k.lddx = m->arch->C, k.add_dx = add_dx;
    model__norm_gradient(m, k, dt_arch_tensor(m->arch, n.layer, n.weight),
                         dt_arch_tensor(m->arch, n.layer, n.bias), first);
}
