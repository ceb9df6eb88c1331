/* Forward kernels beside a definition in double, and backward kernels beside central differences of
 * that definition, element by element, in every set. The differences have a step of 1e-5 in double
 * (error about 1e-9), so what remains is the float rounding of the kernel. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "unit/ops/ops_test.h"

#define EACH_SET(k)                                                                                \
    for (int set_ = 0; set_ < SETS; set_++)                                                        \
        for (const struct dt_kernels *k = dt_kernels_find(set_names[set_]); k; k = NULL)

#define STEP 1e-5

static void near(double got, double want, double tolerance, const char *what, int64_t at)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s[%ld]: got %.9g, want %.9g, tolerance %.3g", what, (long)at, got, want,
                 tolerance);
}

static double *doubles(const float *x, int64_t n)
{
    double *d = exact((size_t)n * sizeof *d);
    for (int64_t i = 0; i < n; i++)
        d[i] = x ? (double)x[i] : 0;
    return d;
}

static float *copied(const float *x, int64_t n)
{
    float *c = exact((size_t)n * sizeof *c);
    memcpy(c, x, (size_t)n * sizeof *c);
    return c;
}

/* d f / d *x */
typedef double scalar_fn(const void *arg);

static double slope(scalar_fn *f, const void *arg, double *x)
{
    double was = *x;
    *x = was + STEP;
    double up = f(arg);
    *x = was - STEP;
    double down = f(arg);
    *x = was;
    return (up - down) / (2 * STEP);
}

/* ---- norms ---- */

enum { ROWS = 5, COLS = 37 };

struct norm_double {
    bool layer;
    double *x, *w, *b, *c; /* c: the gradient of y, so that the scalar is Σ c·y */
    int64_t groups;
    double *y; /* or NULL */
};

static double norm_double(const void *arg)
{
    const struct norm_double *n = arg;
    double total = 0;
    for (int64_t v = 0; v < ROWS * n->groups; v++) {
        const double *x = n->x + v * COLS;
        double mean = 0, var = 0;
        for (int i = 0; n->layer && i < COLS; i++)
            mean += x[i] / COLS;
        for (int i = 0; i < COLS; i++)
            var += (x[i] - mean) * (x[i] - mean) / COLS;
        for (int i = 0; i < COLS; i++) {
            double y = (x[i] - mean) / sqrt(var + (double)1e-5f) * n->w[i] + n->b[i];
            total += n->c[v * COLS + i] * y;
            if (n->y)
                n->y[v * COLS + i] = y;
        }
    }
    return total;
}

static void norm_case(const struct dt_kernels *k, bool layer, int64_t groups, bool add)
{
    int64_t width = groups * COLS, n = ROWS * width;
    float *x = floats(n, PLAIN, 1), *w = floats(COLS, PLAIN, 2), *b = floats(COLS, PLAIN, 3);
    float *dy = floats(n, PLAIN, 4), *dx = floats(n, PLAIN, 5), *dw = floats(COLS, PLAIN, 6);
    float *db = floats(COLS, PLAIN, 7), *y = floats(n, PLAIN, 8);
    float *dx0 = copied(dx, n), *dw0 = copied(dw, COLS), *db0 = copied(db, COLS);
    struct norm_double d = {
        layer,          doubles(x, n), doubles(w, COLS), doubles(layer ? b : NULL, COLS),
        doubles(dy, n), groups,        doubles(NULL, n)};
    struct dt_norm m = {
        .rows = ROWS,
        .cols = COLS,
        .groups = groups,
        .eps = 1e-5f,
        .x = x,
        .ldx = width,
        .w = w,
        .b = layer ? b : NULL,
        .mean = layer ? floats(n, PLAIN, 9) : NULL,
        .rstd = floats(n, PLAIN, 10),
        .y = y,
        .ldy = width,
        .dy = dy,
        .dx = dx,
        .lddx = width,
        .add_dx = add,
        .dw = dw,
        .db = layer ? db : NULL,
    };
    k->norm_forward(&m);
    k->norm_backward(&m);
    norm_double(&d);
    for (int64_t i = 0; i < n; i++)
        near((double)y[i], d.y[i], 2e-6 * (1 + fabs(d.y[i])), "y", i);
    d.y = NULL;
    for (int64_t i = 0; i < n; i++) {
        double want = slope(norm_double, &d, &d.x[i]) + (add ? (double)dx0[i] : 0);
        near((double)dx[i], want, 5e-6 * (1 + fabs(want)), "dx", i);
    }
    for (int64_t i = 0; i < COLS; i++) {
        double want = slope(norm_double, &d, &d.w[i]) + (double)dw0[i];
        near((double)dw[i], want, 1e-5 * (1 + fabs(want)), "dw", i);
        want = layer ? slope(norm_double, &d, &d.b[i]) + (double)db0[i] : (double)db0[i];
        near((double)db[i], want, 1e-5 * (1 + fabs(want)), "db", i);
    }
    release();
}

static void norms(void **state)
{
    (void)state;
    EACH_SET(k)
    for (int v = 0; v < 8; v++)
        norm_case(k, v & 1, v & 2 ? 3 : 1, v & 4);
}

/* ---- activations ---- */

struct act_double {
    enum dt_act_kind kind;
    double x, u;
};

static double act_double(const void *arg)
{
    const struct act_double *a = arg;
    double x = a->x;
    switch (a->kind) {
    case DT_ACT_SILU:
        return a->u * x / (1 + exp(-x));
    case DT_ACT_QUICK_GELU:
        return a->u * x / (1 + exp(-(double)1.702f * x));
    case DT_ACT_GELU_TANH:
        return a->u * 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + (double)0.044715f * x * x * x)));
    case DT_ACT_GELU_ERF:
        return a->u * 0.5 * x * (1 + erf(x / sqrt(2)));
    case DT_ACT_RELU:
        break;
    }
    return a->u * (x > 0 ? x : 0);
}

static void act_case(const struct dt_kernels *k, enum dt_act_kind kind, bool gated)
{
    enum { N = 801 };
    float *g = exact(N * sizeof *g), *u = floats(N, PLAIN, 2), *h = exact(N * sizeof *h);
    float *dh = floats(N, PLAIN, 3), *dg = exact(N * sizeof *dg), *du = exact(N * sizeof *du);
    for (int i = 0; i < N; i++)
        g[i] = (float)(i - N / 2) * 0.0251f + 0.001f;
    k->act_forward(kind, h, NULL, N, g, gated ? u : NULL, N, 1, N);
    k->act_backward(kind, dg, gated ? du : NULL, N, dh, N, g, gated ? u : NULL, N, 1, N);
    for (int i = 0; i < N; i++) {
        struct act_double a = {kind, (double)g[i], gated ? (double)u[i] : 1};
        double value = act_double(&a), d = (double)dh[i];
        near((double)h[i], value, 1e-6 * fabs(a.x * a.u), "h", i);
        /* the slope of the erf polynomial's Φ is that of the true one to 1e-7; the difference
         * quotient of a double is good to about 1e-9 */
        near((double)dg[i], d * slope(act_double, &a, &a.x), 4e-6 * fabs(d * a.u) + 2e-8, "dg", i);
        if (gated)
            near((double)du[i], d * slope(act_double, &a, &a.u), 1e-6 * fabs(d * a.x) + 2e-8, "du",
                 i);
    }
    release();
}

static void activations(void **state)
{
    (void)state;
    EACH_SET(k)
    for (int kind = 0; kind < 5; kind++)
        for (int gated = 0; gated < 2; gated++)
            act_case(k, (enum dt_act_kind)kind, gated);
}

/* ---- rope: linear, so its gradient is the transpose, which is the way back ---- */

static void rope(void **state)
{
    (void)state;
    enum { T = 4, HEADS = 3, HALF = 19, D = 2 * HALF + 6, LD = HEADS * D + 5, N = T * LD };
    int32_t position[T] = {0, 3, 1, 7};
    EACH_SET(k)
    {
        float *x = floats(N, PLAIN, 1), *table = exact(8 * 2 * HALF * sizeof *table);
        float *y = copied(x, N), *c = floats(N, PLAIN, 2), *back = copied(c, N);
        for (int p = 0; p < 8; p++)
            for (int i = 0; i < HALF; i++) {
                double angle = p * pow(10000, -(double)i / HALF);
                table[(2 * p) * HALF + i] = (float)cos(angle);
                table[(2 * p + 1) * HALF + i] = (float)sin(angle);
            }
        k->rope(y, LD, T, HEADS, D, HALF, position, table, false);
        k->rope(back, LD, T, HEADS, D, HALF, position, table, true);
        double forward = 0, backward = 0, size = 0;
        for (int t = 0; t < T; t++)
            for (int j = 0; j < LD; j++) {
                int at = t * LD + j, in = j % D;
                if (j < HEADS * D && in < HALF) {
                    double angle = position[t] * pow(10000, -(double)in / HALF);
                    double a = (double)x[at], b = (double)x[at + HALF];
                    near((double)y[at], a * cos(angle) - b * sin(angle), 1e-6, "a", at);
                    near((double)y[at + HALF], b * cos(angle) + a * sin(angle), 1e-6, "b", at);
                } else if (j >= HEADS * D || in >= 2 * HALF) {
                    assert_true(y[at] == x[at] && back[at] == c[at]);
                }
                forward += (double)c[at] * (double)y[at];
                backward += (double)back[at] * (double)x[at];
                size += fabs((double)c[at] * (double)y[at]);
            }
        near(forward, backward, 1e-6 * size, "<c, R x> = <R' c, x>", 0);
        release();
    }
}

/* ---- loss ---- */

enum { V = 29 };

struct loss_double {
    double x[V];
    int32_t target;
};

static double loss_double(const void *arg)
{
    const struct loss_double *l = arg;
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp(l->x[i]);
    return log(sum) - l->x[l->target];
}

static void loss(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        float *x = floats(3 * V, PLAIN, 1), *was = copied(x, 3 * V);
        int32_t target[] = {V - 1, -1, 4};
        double got[3];
        k->loss(x, V, target, got, 3, V, false);
        for (int t = 0; t < 3; t++) {
            struct loss_double l = {.target = target[t]};
            for (int i = 0; i < V; i++)
                l.x[i] = (double)was[t * V + i];
            for (int i = 0; i < V; i++) {
                double want = target[t] < 0 ? 0 : slope(loss_double, &l, &l.x[i]);
                near((double)x[t * V + i], want, target[t] < 0 ? 0 : 3e-7, "d logits", i);
            }
            near(got[t], target[t] < 0 ? 0 : loss_double(&l), 1e-6, "loss", t);
        }
        release();
    }
}

/* ---- sums: embedding and bias ---- */

static void embedding_and_bias(void **state)
{
    (void)state;
    enum { T = 150, C = 21, WORDS = 7, PLACES = 5 };
    EACH_SET(k)
    {
        float *E = floats(WORDS * C, PLAIN, 1), *P = floats(PLACES * C, PLAIN, 2);
        float *x = exact(T * C * sizeof *x), *dx = floats(T * C, PLAIN, 3);
        float *dE = floats(WORDS * C, PLAIN, 4), *dP = floats(PLACES * C, PLAIN, 5),
              *db = floats(C, PLAIN, 6);
        double *wE = doubles(dE, WORDS * C), *wP = doubles(dP, PLACES * C), *wb = doubles(db, C);
        int32_t *id = indices(T, WORDS, 7), *position = indices(T, PLACES, 8);
        k->embed_forward(x, E, P, id, position, T, C);
        k->embed_backward(dE, dP, dx, id, position, T, C);
        k->bias_backward(db, dx, C, T, C);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < C; i++) {
                assert_true(x[t * C + i] == E[id[t] * C + i] + P[position[t] * C + i]);
                wE[id[t] * C + i] += (double)dx[t * C + i];
                wP[position[t] * C + i] += (double)dx[t * C + i];
                wb[i] += (double)dx[t * C + i];
            }
        /* up to 150 additions of numbers below 3, each rounded at a running sum of some 40 */
        for (int i = 0; i < WORDS * C; i++)
            near((double)dE[i], wE[i], 5e-5, "dE", i);
        for (int i = 0; i < PLACES * C; i++)
            near((double)dP[i], wP[i], 5e-5, "dP", i);
        for (int i = 0; i < C; i++)
            near((double)db[i], wb[i], 5e-5, "db", i);
        release();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms), cmocka_unit_test(activations),        cmocka_unit_test(rope),
        cmocka_unit_test(loss),  cmocka_unit_test(embedding_and_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
