/* The values of the kernels beside double precision, libm and exact integers, in every set. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "ops/cpu/scalar.h"
#include "unit/ops/ops_test.h"

#define EACH_SET(k)                                                                                \
    for (int set_ = 0; set_ < SETS; set_++)                                                        \
        for (const struct dt_kernels *k = dt_kernels_find(set_names[set_]); k; k = NULL)

static void near(double got, double want, double tolerance, const char *what, double at)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s at %.9g: got %.9g, want %.9g, tolerance %.3g", what, at, got, want, tolerance);
}

static void exp_is_within_two_units_in_the_last_place(void **state)
{
    (void)state;
    for (double d = -87.3; d < 88.7; d += 0.000731) {
        float x = (float)d;
        double want = exp((double)x),
               ulp = (double)(nextafterf((float)want, INFINITY) - (float)want);
        near((double)s_exp(x), want, 2 * ulp, "exp", (double)x);
    }
    assert_true(s_exp(0) == 1 && s_exp(-0.0f) == 1);
    assert_true(s_exp(-INFINITY) == 0 && s_exp(-200) == 0 && isinf(s_exp(89)) && isnan(s_exp(NAN)));
}

/* ---- activations ---- */

static double act_double(enum dt_act_kind kind, double x)
{
    switch (kind) {
    case DT_ACT_SILU:
        return x / (1 + exp(-x));
    case DT_ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case DT_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case DT_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case DT_ACT_RELU:
        break;
    }
    return x > 0 ? x : 0;
}

static void activations_follow_libm(void **state)
{
    (void)state;
    enum { N = 4001 };
    EACH_SET(k)
    {
        float *x = exact(N * sizeof *x), *h = exact(N * sizeof *h);
        for (int i = 0; i < N; i++)
            x[i] = (float)(i - N / 2) * 0.01f;
        for (int kind = 0; kind < 5; kind++) {
            k->act_forward((enum dt_act_kind)kind, h, NULL, N, x, NULL, N, 1, N);
            for (int i = 0; i < N; i++) {
                double want = act_double((enum dt_act_kind)kind, (double)x[i]),
                       size = fabs((double)x[i]);
                /* |x| times the absolute error of Φ: 7.5e-8 for the erf polynomial, else a few
                 * roundings, of which those of the sigmoid's argument count relative to Φ */
                near((double)h[i], want, 4e-7 * size, "activation", (double)x[i]);
            }
        }
        release();
    }
}

/* ---- conversions ---- */

static double half_value(uint32_t h)
{
    uint32_t e = h >> 10 & 31, f = h & 1023;
    double v = e ? ldexp(1024 + f, (int)e - 25) : ldexp(f, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half_widens_exactly(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        uint16_t *h = exact(65536 * 2), *back = exact(65536 * 2), *b = exact(65536 * 2);
        float *f = exact(65536 * sizeof *f);
        for (uint32_t i = 0; i < 65536; i++)
            h[i] = (uint16_t)i;
        k->copy(f, DT_F32, 65536, h, DT_F16, 65536, 1, 65536);
        k->copy(back, DT_F16, 65536, f, DT_F32, 65536, 1, 65536);
        k->copy(b, DT_BF16, 65536, h, DT_F16, 65536, 1, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            assert_int_equal(b[i], bf16_round(f[i]));
            if ((i & 0x7fff) > 0x7c00) {
                assert_true(isnan(f[i]));
                assert_int_equal(back[i], i | 0x200);
            } else {
                assert_int_equal(back[i], i);
                if ((i & 0x7c00) != 0x7c00)
                    assert_true((double)f[i] == half_value(i));
                else
                    assert_true(isinf(f[i]));
            }
        }
        release();
    }
}

/* Between neighbours: the middle goes to the even one, the floats beside it to the nearer one. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        for (int type = DT_BF16; type <= DT_F16; type++) {
            uint32_t end = type == DT_F16 ? 0x7c00 : 0x7f80;
            float *f = exact(3 * end * sizeof *f);
            uint16_t *h = exact(3 * end * 2);
            for (uint32_t i = 0; i < end; i++) {
                double lo, hi;
                if (type == DT_F16) {
                    lo = half_value(i);
                    hi = half_value(
                        i + 1); /* past the largest: 65536, where overflow begins to be nearer */
                } else {
                    lo = (double)bf16_widen((uint16_t)i);
                    hi = i + 1 < end ? (double)bf16_widen((uint16_t)(i + 1)) : 0x1p128;
                }
                float middle = (float)((lo + hi) / 2);
                f[3 * i] = nextafterf(middle, 0);
                f[3 * i + 1] = middle;
                f[3 * i + 2] = nextafterf(middle, INFINITY);
            }
            k->copy(h, (enum dt_dtype)type, 3 * end, f, DT_F32, 3 * end, 1, 3 * end);
            for (uint32_t i = 0; i < end; i++) {
                assert_int_equal(h[3 * i], i);
                assert_int_equal(h[3 * i + 1], i + (i & 1));
                assert_int_equal(h[3 * i + 2], i + 1);
            }
            release();
        }
    }
}

/* ---- loss ---- */

static double loss_double(const float *x, int64_t V, int32_t target, double *max, double *sum)
{
    *max = -INFINITY;
    *sum = 0;
    for (int64_t i = 0; i < V; i++)
        *max = fmax(*max, (double)x[i]);
    double others = 0; /* all but the largest, so that a small loss keeps its digits */
    bool seen = false;
    for (int64_t i = 0; i < V; i++) {
        if ((double)x[i] == *max && !seen)
            seen = true;
        else
            others += exp((double)x[i] - *max);
    }
    *sum = 1 + others;
    return log1p(others) + *max - (double)x[target];
}

static void loss_row(const struct dt_kernels *k, int64_t V, float peak, uint64_t seed)
{
    float *x = floats(V, PLAIN, seed), *was = exact((size_t)V * sizeof *was);
    int32_t target = (int32_t)(V / 3);
    double loss, kept, max, sum, total = 0;
    x[target] += peak;
    memcpy(was, x, (size_t)V * sizeof *was);
    k->loss(x, V, &target, &kept, 1, V, true);
    assert_memory_equal(x, was, (size_t)V * sizeof *was);
    k->loss(x, V, &target, &loss, 1, V, false);
    double want = loss_double(was, V, target, &max, &sum);
    assert_true(loss == kept);
    near(loss, want, 1e-6 * want, "loss", (double)V);
    for (int64_t i = 0; i < V; i++) {
        double p = exp((double)was[i] - max) / sum;
        /* relative to the probability: exp and its argument 2e-6; absolute: p - 1 in float */
        near((double)x[i], p - (i == target), 2e-6 * p + 6e-8, "gradient", (double)i);
        total += (double)x[i];
    }
    near(total, 0, 1e-6, "sum of the gradient", 0);
    release();
}

static void loss_follows_double(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        loss_row(k, 17, 0, 1);
        loss_row(k, 50257, 0, 2);
        loss_row(k, 50257, 30, 3); /* confident: loss about 1e-8 times the sum of the others */
        loss_row(k, 262144, 15, 4);
    }
}

/* ---- AdamW ---- */

enum { STEPS = 40, PARAMS = 300 };

static struct dt_adamw adamw_at(int step)
{
    return (struct dt_adamw){
        .lr = 3e-4f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .bias1 = (float)(1 - pow((double)0.9f, step)),
        .bias2 = (float)(1 - pow((double)0.95f, step)),
        .grad_scale = 0.25f,
    };
}

/* The formulas of ops.h, word by word. */
static void adamw_by_the_book(float *w, float *m, float *v, float grad, const struct dt_adamw *p)
{
    float g = grad * p->grad_scale;
    float one_less_1 = 1 - p->beta1, one_less_2 = 1 - p->beta2;
    float decayed = *w * (1 - p->lr * p->weight_decay);
    *m = (p->beta1 * *m) + (one_less_1 * g);
    *v = (p->beta2 * *v) + ((one_less_2 * g) * g);
    *w = decayed - ((p->lr / p->bias1) * *m) / ((sqrtf(*v) / sqrtf(p->bias2)) + p->eps);
}

static void adamw_follows_its_formulas(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        float *w = floats(PARAMS, PLAIN, 1), *m = floats(PARAMS, PLAIN, 2),
              *v = floats(PARAMS, PLAIN, 3);
        float bw[PARAMS], bm[PARAMS] = {0}, bv[PARAMS] = {0};
        double dw[PARAMS], dm[PARAMS] = {0}, dv[PARAMS] = {0};
        k->zero(m, PARAMS * sizeof *m);
        k->zero(v, PARAMS * sizeof *v);
        for (int i = 0; i < PARAMS; i++)
            dw[i] = (double)(bw[i] = w[i]);
        for (int step = 1; step <= STEPS; step++) {
            struct dt_adamw p = adamw_at(step);
            float *grad = floats(PARAMS, WIDE, (uint64_t)step + 10);
            k->adamw(w, m, v, grad, PARAMS, &p);
            for (int i = 0; i < PARAMS; i++) {
                adamw_by_the_book(&bw[i], &bm[i], &bv[i], grad[i], &p);
                double g = (double)grad[i] * 0.25, b1 = (double)p.beta1, b2 = (double)p.beta2,
                       lr = (double)p.lr;
                dm[i] = b1 * dm[i] + (1 - b1) * g;
                dv[i] = b2 * dv[i] + (1 - b2) * g * g;
                dw[i] -= lr * (double)p.weight_decay * dw[i];
                dw[i] -= lr * (dm[i] / (1 - pow(b1, step))) /
                         (sqrt(dv[i] / (1 - pow(b2, step))) + (double)p.eps);
            }
        }
        assert_memory_equal(w, bw, sizeof bw);
        assert_memory_equal(m, bm, sizeof bm);
        assert_memory_equal(v, bv, sizeof bv);
        /* each step: the decay's factor, its product and the difference are rounded (2.5 · 2^-24 of
         * w), and the step itself, of size lr, to a few parts in 10^6 */
        for (int i = 0; i < PARAMS; i++)
            near((double)w[i], dw[i], STEPS * (2.5 * 0x1p-24 * fabs(dw[i]) + 1e-9), "w", i);
        release();
    }
}

/* ---- norms of blocks ---- */

static void block_norms_are_exact_integers(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        struct dt_u128 sum = {0, 0};
        float one = 1, tiny[3] = {0x1p-40f, 0x1p-40f, -0x1p-40f}, least = 0x1p-41f;
        assert_true(k->block_norms(&one, 1, 0, &sum));
        assert_true(sum.hi == 1u << 16 && sum.lo == 0);
        assert_true(k->block_norms(tiny, 3, 0, &sum));
        assert_true(sum.hi == 1u << 16 && sum.lo == 3);
        assert_true(k->block_norms(&least, 1, 0, &sum)); /* a quarter of the quantum */
        assert_true(k->block_norms(&least, 1, 2, &sum)); /* scaled: one quantum */
        assert_true(sum.lo == 4);
        sum = (struct dt_u128){UINT64_MAX, 0};
        assert_true(k->block_norms(tiny, 1, 0, &sum));
        assert_true(sum.hi == 1 && sum.lo == 0); /* the carry */

        float bad[] = {INFINITY, NAN, 4096, 3e38f};
        for (int i = 0; i < 4; i++)
            assert_false(k->block_norms(&bad[i], 1, 0, &sum));
        assert_true(sum.hi == 1 && sum.lo == 0);
        assert_true(k->block_norms(&bad[2], 1, -1, &sum)); /* in range again */
    }
}

static void block_norms_of_pieces_add_up(void **state)
{
    (void)state;
    enum { N = 40 * DT_BLOCK + 77 };
    EACH_SET(k)
    {
        float *g = floats(N, PLAIN, 9);
        struct dt_u128 whole = {0, 0}, pieces = {0, 0};
        dt_ops_set_threads(3);
        assert_true(k->block_norms(g, N, -7, &whole));
        for (int64_t from = 37 * DT_BLOCK; from >= 0; from -= 37 * DT_BLOCK) /* last piece first */
            assert_true(k->block_norms(g + from, from ? N - from : 37 * DT_BLOCK, -7, &pieces));
        assert_true(whole.lo == pieces.lo && whole.hi == pieces.hi);
        double want = 0, got = ldexp((double)whole.hi, -16) + ldexp((double)whole.lo, -80);
        for (int64_t i = 0; i < N; i++)
            want += (double)g[i] * (double)g[i];
        near(got, want / 128, 1e-12 * want, "norm", N);
        dt_ops_set_threads(1);
        release();
    }
}

/* ---- the operations that all sets share ---- */

static void fills_and_sums(void **state)
{
    (void)state;
    enum { N = 40003 };
    EACH_SET(k)
    {
        float *p = floats(N, PLAIN, 1);
        struct dt_rng_key key = {.seed = 11, .purpose = DT_RNG_INIT, .item = 5};
        dt_ops_set_threads(2);
        k->fill_normal(p, N, 0, 11, 5, 0.02f);
        double mean = 0, square = 0;
        for (int i = 0; i < N; i++) {
            assert_true(p[i] == dt_rng_normal(key, (uint64_t)i) * 0.02f);
            mean += (double)p[i] / N;
            square += (double)p[i] * (double)p[i] / N;
        }
        near(mean, 0, 4 * 0.02 / 200, "mean of a normal fill", 0); /* 4 standard errors */
        float *piece = floats(N, PLAIN, 2);
        for (int at = 0, n = 1; at < N; at += n, n = n * 3 < N - at ? n * 3 : N - at)
            k->fill_normal(piece + at, n, at, 11, 5, 0.02f);
        assert_memory_equal(piece, p, N * sizeof *p);
        near(square, 4e-4, 4 * 4e-4 * M_SQRT2 / 200, "variance of a normal fill", 0);
        k->fill_normal(p, N, 0, 11, 5, 0);
        for (int i = 0; i < N; i++)
            assert_true(p[i] == 0 && !signbit(p[i]));
        k->fill(p, N, 2.5f);
        for (int i = 0; i < N; i++)
            assert_true(p[i] == 2.5f);
        k->zero(p, N * sizeof *p - 4);
        for (int i = 0; i < N; i++)
            assert_true(p[i] == (i == N - 1 ? 2.5f : 0));
        double x[] = {1e16, 1, -1e16, 1}; /* in order: the first 1 is lost */
        assert_true(k->sum(x, 4) == 1 && k->sum(x, 0) == 0);
        dt_ops_set_threads(1);
        release();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_units_in_the_last_place),
        cmocka_unit_test(activations_follow_libm),
        cmocka_unit_test(every_half_widens_exactly),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(loss_follows_double),
        cmocka_unit_test(adamw_follows_its_formulas),
        cmocka_unit_test(block_norms_are_exact_integers),
        cmocka_unit_test(block_norms_of_pieces_add_up),
        cmocka_unit_test(fills_and_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
