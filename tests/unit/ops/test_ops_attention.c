/* Attention: the definition against a naive double computation and finite differences, every set
 * against the definition, and the promises about bits: threads, packing, decoding and later tokens
 * do not show. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "ops/cpu/attention.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kernel(const struct dt_attention *a);

struct set {
    const char *name;
    kernel *forward, *backward;
};

static struct set sets[5];
static int n_sets; /* those that this CPU runs; the reference is first */

static int find_sets(void **state)
{
    (void)state;
#define SET(id, runs)                                                                              \
    if (runs)                                                                                      \
        sets[n_sets++] = (struct set)                                                              \
        {                                                                                          \
#id, dt_attention_forward_##id, dt_attention_backward_##id                             \
        }
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    SET(reference, true);
    SET(portable, true);
    SET(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    SET(avx512, avx512);
    SET(avx512bf16, avx512 && __builtin_cpu_supports("avx512bf16"));
    return 0;
}

struct shape {
    int64_t H, K, D, window;
    int sequences;
    int32_t queries[4], keys[4]; /* of each sequence */
};

/* Everything of one call, in blocks of exactly the size that the header asks for. */
struct problem {
    struct shape shape;
    struct dt_attention a;
    int64_t q_rows, k_rows;
    size_t q_size, k_size, o_size, dq_size, dk_size; /* elements */
    int32_t q_start[5], k_start[5];
    float *q, *k, *v, *d_o;
};

#define GAP 3 /* unused columns between rows of q, k and v */

static float *normal(size_t n, uint64_t tensor)
{
    struct dt_rng_key key = {7, DT_RNG_INIT, 0, tensor};
    float *x = malloc(n ? n * sizeof *x : 1);
    for (size_t i = 0; i < n; i++)
        x[i] = dt_rng_normal(key, i);
    return x;
}

static float *unset(size_t n)
{
    float *x = malloc(n ? n * sizeof *x : 1);
    memset(x, 0xa5, n * sizeof *x);
    return x;
}

static void make(struct problem *p, const struct shape *s)
{
    memset(p, 0, sizeof *p);
    p->shape = *s;
    for (int i = 0; i < s->sequences; i++) {
        p->q_start[i + 1] = p->q_start[i] + s->queries[i];
        p->k_start[i + 1] = p->k_start[i] + s->keys[i];
    }
    p->q_rows = p->q_start[s->sequences];
    p->k_rows = p->k_start[s->sequences];
    p->a = (struct dt_attention){.sequences = s->sequences,
                                 .q_start = p->q_start,
                                 .k_start = p->k_start,
                                 .H = s->H,
                                 .K = s->K,
                                 .D = s->D,
                                 .window = s->window,
                                 .scale = 1 / sqrtf((float)s->D),
                                 .ldq = s->H * s->D + GAP,
                                 .ldk = s->K * s->D + GAP,
                                 .ldv = s->K * s->D + 2 * GAP,
                                 .ldd = s->H * s->D + 4 * GAP};
    p->q_size = p->q_rows ? (size_t)(p->q_rows * p->a.ldq - GAP) : 0;
    p->k_size = p->k_rows ? (size_t)(p->k_rows * p->a.ldv) : 0; /* enough for k, too */
    p->o_size = (size_t)(p->q_rows * s->H * s->D);
    p->dq_size = p->q_rows ? (size_t)((p->q_rows - 1) * p->a.ldd + s->H * s->D) : 0;
    p->dk_size = p->k_rows ? (size_t)((p->k_rows - 1) * p->a.ldd + s->K * s->D) : 0; /* and of dv */
    p->a.q = p->q = normal(p->q_size, 1);
    p->a.k = p->k = normal(p->k_rows ? (size_t)(p->k_rows * p->a.ldk - GAP) : 0, 2);
    p->a.v = p->v = normal(p->k_rows ? p->k_size - 2 * GAP : 0, 3);
    p->a.d_o = p->d_o = normal(p->o_size, 4);
}

static void drop(struct problem *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->d_o);
}

struct result {
    float *o, *lse, *dq, *dk, *dv;
};

static struct result run(const struct problem *p, const struct set *set, int threads)
{
    struct dt_attention a = p->a;
    dt_ops_set_threads(threads);
    struct result r = {unset(p->o_size), unset((size_t)(a.H * p->q_rows)), unset(p->dq_size),
                       unset(p->dk_size), unset(p->dk_size)};
    size_t bytes = dt_attention_work_bytes(a.H, a.K, a.D, p->q_rows);
    a.work = NULL;
    assert_int_equal(posix_memalign(&a.work, 64, bytes), 0);
    memset(a.work, 0xff, bytes); /* NaN: nothing may rely on it */
    a.o = r.o;
    a.lse = r.lse;
    a.dq = r.dq;
    a.dk = r.dk;
    a.dv = r.dv;
    set->forward(&a);
    memset(a.work, 0xff, bytes);
    set->backward(&a);
    free(a.work);
    return r;
}

static void free_result(struct result *r)
{
    free(r->o);
    free(r->lse);
    free(r->dq);
    free(r->dk);
    free(r->dv);
}

/* max |x - y| <= tolerance * max |y| over rows [n, width] of stride ld; between rows both are
 * unset. Numbers here are of size 1; where all are zero but for rounding (dq with a single key),
 * that is what counts. */
static void near(const char *what, const float *x, const float *y, int64_t n, int64_t width,
                 int64_t ld, double tolerance)
{
    double off = 0, size = 1;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < ld && r * ld + c < (n - 1) * ld + width; c++) {
            float a = x[r * ld + c], b = y[r * ld + c];
            if (c >= width || isinf(b))
                assert_memory_equal(&a, &b, sizeof a);
            else
                off = fmax(off, isfinite(a) ? fabs((double)a - (double)b) : INFINITY);
            size = c < width && isfinite(b) ? fmax(size, fabs((double)b)) : size;
        }
    if (!(off <= tolerance * size))
        fail_msg("%s: off by %g of %g, more than %g of it", what, off, size, tolerance);
}

/* Scores of size 4 carry an error of a few 2^-24 relative, so 1e-6 absolute, which is the relative
 * error of a probability; sums over keys average it. Twice that for o, and as many again for
 * gradients, where the score is computed twice and lse is rounded to 2^-24 of its size of about 8.
 */
#define O_TOLERANCE 2e-6
#define D_TOLERANCE 6e-6

static void compare(const struct problem *p, const struct result *x, const struct result *y,
                    const char *name)
{
    const struct dt_attention *a = &p->a;
    char what[128];
#define NEAR(field, rows, width, ld, tolerance)                                                    \
    snprintf(what, sizeof what, "%s: " #field " (H %d K %d D %d window %d)", name, (int)a->H,      \
             (int)a->K, (int)a->D, (int)a->window);                                                \
    near(what, x->field, y->field, rows, width, ld, tolerance)
    NEAR(o, p->q_rows, a->H * a->D, a->H * a->D, O_TOLERANCE);
    NEAR(lse, a->H, p->q_rows, p->q_rows, O_TOLERANCE);
    NEAR(dq, p->q_rows, a->H * a->D, a->ldd, D_TOLERANCE);
    NEAR(dk, p->k_rows, a->K * a->D, a->ldd, D_TOLERANCE);
    NEAR(dv, p->k_rows, a->K * a->D, a->ldd, D_TOLERANCE);
}

static const struct shape shapes[] = {
    {2, 2, 16, 0, 1, {1}, {1}},
    {2, 1, 8, 0, 2, {5, 3}, {5, 3}},
    {1, 1, 1, 0, 1, {70}, {70}},
    {3, 1, 7, 0, 3, {17, 0, 33}, {17, 0, 33}},
    {4, 2, 48, 0, 2, {63, 129}, {63, 129}},
    {2, 2, 64, 0, 3, {64, 65, 1}, {64, 65, 1}},
    {6, 2, 80, 0, 1, {127}, {127}},
    {2, 1, 96, 0, 1, {100}, {100}},
    {1, 1, 128, 0, 1, {193}, {193}},
    {2, 1, 256, 0, 1, {67}, {67}},
    {1, 1, 512, 0, 1, {66}, {66}},
    {1, 1, 33, 0, 1, {128}, {128}},
    {2, 1, 100, 0, 1, {31}, {31}},
    {2, 1, 64, 1, 1, {70}, {70}},
    {4, 2, 24, 16, 2, {130, 40}, {130, 40}},
    {1, 1, 64, 64, 1, {200}, {200}},
    {2, 2, 16, 65, 1, {300}, {300}},
    {3, 3, 20, 100, 1, {257}, {257}},
    {2, 2, 64, 0, 1, {1}, {300}}, /* decoding */
    {9, 3, 64, 0, 4, {1, 2, 1, 0}, {64, 65, 1, 7}},
    {8, 2, 64, 50, 3, {1, 3, 1}, {129, 200, 20}},
    {2, 1, 16, 0, 2, {20, 90}, {5, 20}}, /* first queries see no key */
    {65, 1, 16, 0, 1, {3}, {9}},         /* more heads in a group than lanes in a tile */
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static void test_sets_against_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct problem p;
        make(&p, &shapes[i]);
        struct result truth = run(&p, &sets[0], 2);
        for (int k = 1; k < n_sets; k++) {
            struct result r = run(&p, &sets[k], 2);
            compare(&p, &r, &truth, sets[k].name);
            free_result(&r);
        }
        free_result(&truth);
        drop(&p);
    }
}

/* Σ d_o · o in double, from inputs in double, one score matrix a head and no shortcuts. Also stores
 * o, lse. */
static double naive(const struct problem *p, const double *q, const double *k, const double *v,
                    float *o, float *lse)
{
    const struct dt_attention *a = &p->a;
    double total = 0, *w = malloc((size_t)(p->k_rows + 1) * sizeof *w);
    for (int64_t s = 0; s < a->sequences; s++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t i = p->q_start[s]; i < p->q_start[s + 1]; i++) {
                int64_t g = h * a->K / a->H, keys = p->k_start[s + 1] - p->k_start[s];
                int64_t shift = keys - (p->q_start[s + 1] - p->q_start[s]),
                        at = i - p->q_start[s] + shift;
                double sum = 0;
                for (int64_t j = 0; j < keys; j++) {
                    double score = 0;
                    for (int64_t d = 0; d < a->D; d++)
                        score += q[i * a->ldq + h * a->D + d] *
                                 k[(p->k_start[s] + j) * a->ldk + g * a->D + d];
                    bool seen = j <= at && (a->window == 0 || j > at - a->window);
                    w[j] = seen ? exp(score * (double)a->scale) : 0;
                    sum += w[j];
                }
                for (int64_t d = 0; d < a->D; d++) {
                    double x = 0;
                    for (int64_t j = 0; j < keys && sum > 0; j++)
                        x += w[j] / sum * v[(p->k_start[s] + j) * a->ldv + g * a->D + d];
                    total += x * (double)p->d_o[(i * a->H + h) * a->D + d];
                    if (o)
                        o[(i * a->H + h) * a->D + d] = (float)x;
                }
                if (lse)
                    lse[h * p->q_rows + i] = (float)log(sum);
            }
    free(w);
    return total;
}

static double *widen(const float *x, size_t n)
{
    double *y = malloc((n ? n : 1) * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Central differences of every element; in double their error is about 1e-9. The definition rounds
 * its results to fp32 once, and the o and lse it starts from: 1e-6 of the largest gradient. */
static void check_differences(const struct problem *p, double *q, double *k, double *v, double *x,
                              const float *dx, int64_t n, int64_t width, int64_t ld)
{
    int64_t ldd = p->a.ldd;
    double largest = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < width; c++)
            largest = fmax(largest, fabs((double)dx[r * ldd + c]));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < width; c++) {
            double was = x[r * ld + c], step = 1e-5;
            x[r * ld + c] = was + step;
            double above = naive(p, q, k, v, NULL, NULL);
            x[r * ld + c] = was - step;
            double below = naive(p, q, k, v, NULL, NULL);
            x[r * ld + c] = was;
            assert_true(fabs((above - below) / (2 * step) - (double)dx[r * ldd + c]) <=
                        1e-6 * largest);
        }
}

static void test_reference_against_naive(void **state)
{
    (void)state;
    static const struct shape small[] = {
        {2, 1, 3, 0, 2, {4, 1}, {4, 1}},
        {4, 2, 5, 2, 1, {6}, {6}},
        {2, 2, 4, 0, 2, {2, 3}, {7, 1}},
        {1, 1, 2, 3, 1, {2}, {9}},
    };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        struct problem p;
        make(&p, &small[i]);
        struct result r = run(&p, &sets[0], 1);
        size_t nk = (size_t)(p.k_rows * p.a.ldk - GAP), nv = (size_t)(p.k_rows * p.a.ldv - 2 * GAP);
        double *q = widen(p.q, p.q_size), *k = widen(p.k, nk), *v = widen(p.v, nv);
        float *o = unset(p.o_size), *lse = unset((size_t)(p.a.H * p.q_rows));
        naive(&p, q, k, v, o, lse);
        near("o", r.o, o, p.q_rows, p.a.H * p.a.D, p.a.H * p.a.D, 1e-7); /* one rounding */
        near("lse", r.lse, lse, p.a.H, p.q_rows, p.q_rows, 1e-7);
        check_differences(&p, q, k, v, q, r.dq, p.q_rows, p.a.H * p.a.D, p.a.ldq);
        check_differences(&p, q, k, v, k, r.dk, p.k_rows, p.a.K * p.a.D, p.a.ldk);
        check_differences(&p, q, k, v, v, r.dv, p.k_rows, p.a.K * p.a.D, p.a.ldv);
        free(q);
        free(k);
        free(v);
        free(o);
        free(lse);
        free_result(&r);
        drop(&p);
    }
}

static void same_bits(const struct problem *p, const struct result *x, const struct result *y)
{
    assert_memory_equal(x->o, y->o, p->o_size * sizeof(float));
    assert_memory_equal(x->lse, y->lse, (size_t)(p->a.H * p->q_rows) * sizeof(float));
    assert_memory_equal(x->dq, y->dq, p->dq_size * sizeof(float));
    assert_memory_equal(x->dk, y->dk, p->dk_size * sizeof(float));
    assert_memory_equal(x->dv, y->dv, p->dk_size * sizeof(float));
}

/* Whole heads a thread, and the wave front over one long head; more threads than cores, too. */
static void test_threads_do_not_show(void **state)
{
    (void)state;
    static const struct shape some[] = {
        {1, 1, 64, 0, 1, {777}, {777}},
        {4, 2, 32, 150, 1, {500}, {500}},
        {6, 6, 16, 0, 2, {150, 150}, {150, 150}},
        {2, 1, 20, 0, 4, {5, 400, 0, 90}, {5, 400, 70, 200}},
    };
    static const int threads[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (int k = 0; k < n_sets; k++) {
            struct problem p;
            make(&p, &some[i]);
            struct result one = run(&p, &sets[k], 1);
            for (int t = 0; t < 3 * (k > 0 ? 3 : 1); t++) { /* more than once: races differ */
                struct result r = run(&p, &sets[k], threads[t % 3]);
                same_bits(&p, &r, &one);
                free_result(&r);
            }
            free_result(&one);
            drop(&p);
        }
}

/* Sequence i of a packed problem as a problem of its own, with the same numbers. */
static void take(struct problem *alone, const struct problem *p, int i)
{
    const struct shape *s = &p->shape;
    struct shape one = {s->H, s->K, s->D, s->window, 1, {s->queries[i]}, {s->keys[i]}};
    make(alone, &one);
    memcpy(alone->q, p->q + p->q_start[i] * p->a.ldq, alone->q_size * sizeof(float));
    memcpy(alone->k, p->k + p->k_start[i] * p->a.ldk,
           (size_t)(alone->k_rows * p->a.ldk - GAP) * sizeof(float));
    memcpy(alone->v, p->v + p->k_start[i] * p->a.ldv,
           (size_t)(alone->k_rows * p->a.ldv - 2 * GAP) * sizeof(float));
    memcpy(alone->d_o, p->d_o + p->q_start[i] * s->H * s->D, alone->o_size * sizeof(float));
}

static void test_packing_does_not_show(void **state)
{
    (void)state;
    static const struct shape some[] = {
        {4, 2, 64, 0, 4, {37, 130, 1, 65}, {37, 130, 1, 65}},
        {3, 3, 20, 30, 3, {100, 64, 7}, {100, 64, 7}},
        {4, 1, 48, 0, 3, {1, 3, 1}, {70, 129, 64}},
    };
    for (size_t c = 0; c < sizeof some / sizeof *some; c++)
        for (int k = 0; k < n_sets; k++) {
            struct problem p, alone;
            make(&p, &some[c]);
            struct result all = run(&p, &sets[k], 3);
            for (int i = 0; i < some[c].sequences; i++) {
                take(&alone, &p, i);
                struct result r = run(&alone, &sets[k], 2);
                const struct dt_attention *a = &p.a;
                struct result part = {
                    all.o + p.q_start[i] * a->H * a->D, unset((size_t)(a->H * alone.q_rows)),
                    all.dq + p.q_start[i] * a->ldd, all.dk + p.k_start[i] * a->ldd,
                    all.dv + p.k_start[i] * a->ldd};
                for (int64_t h = 0; h < a->H; h++)
                    memcpy(part.lse + h * alone.q_rows, all.lse + h * p.q_rows + p.q_start[i],
                           (size_t)alone.q_rows * sizeof(float));
                same_bits(&alone, &r, &part);
                free(part.lse);
                free_result(&r);
                drop(&alone);
            }
            free_result(&all);
            drop(&p);
        }
}

/* The last row alone, against a cache of all keys, has the bits of the whole forward; and a row
 * does not change with the tokens after it. */
static void test_other_rows_do_not_show(void **state)
{
    (void)state;
    for (int k = 0; k < n_sets; k++) {
        struct shape whole = {4, 2, 40, 0, 1, {150}, {150}}, step = {4, 2, 40, 0, 1, {1}, {150}};
        struct problem p, last;
        make(&p, &whole);
        make(&last, &step);
        memcpy(last.q, p.q + 149 * p.a.ldq, last.q_size * sizeof(float));
        struct result all = run(&p, &sets[k], 2), one = run(&last, &sets[k], 2);
        assert_memory_equal(one.o, all.o + 149 * 160, 160 * sizeof(float));
        for (int64_t h = 0; h < 4; h++)
            assert_memory_equal(&one.lse[h], &all.lse[h * 150 + 149], sizeof(float));
        for (int64_t r = 100; r < 150; r++)
            for (int64_t c = 0; c < 80; c++)
                p.k[r * p.a.ldk + c] = p.v[r * p.a.ldv + c] = 3;
        struct result other = run(&p, &sets[k], 2);
        assert_memory_equal(other.o, all.o, 100 * 160 * sizeof(float));
        assert_memory_not_equal(other.o, all.o, 150 * 160 * sizeof(float));
        free_result(&all);
        free_result(&one);
        free_result(&other);
        drop(&p);
        drop(&last);
    }
}

/* Scores of hundreds: softmax is a maximum, nothing overflows. */
static void test_large_scores(void **state)
{
    (void)state;
    struct shape s = {2, 1, 32, 0, 1, {130}, {130}};
    struct problem p;
    make(&p, &s);
    for (size_t i = 0; i < p.q_size; i++)
        p.q[i] *= 100;
    struct result truth = run(&p, &sets[0], 2);
    for (int k = 1; k < n_sets; k++) {
        struct result r = run(&p, &sets[k], 2);
        /* scores of 500 are rounded to 3e-5, and so is what follows from them */
        near(sets[k].name, r.o, truth.o, p.q_rows, 64, 64, 3e-4);
        near(sets[k].name, r.lse, truth.lse, 2, p.q_rows, p.q_rows, 1e-6);
        free_result(&r);
    }
    free_result(&truth);
    drop(&p);
}

static void test_nan_spreads(void **state)
{
    (void)state;
    struct shape s = {1, 1, 16, 0, 1, {70}, {70}};
    for (int k = 0; k < n_sets; k++) {
        struct problem p;
        make(&p, &s);
        p.k[10 * p.a.ldk] = NAN;
        struct result r = run(&p, &sets[k], 2);
        assert_true(isfinite(r.o[9 * 16]) || k == 0);
        assert_true(isnan(r.o[69 * 16]));
        assert_true(isnan(r.dv[0]));
        free_result(&r);
        drop(&p);
    }
}

static void test_scratch_is_linear(void **state)
{
    (void)state;
    dt_ops_set_threads(2);
    size_t few = dt_attention_work_bytes(12, 12, 64, 1024),
           many = dt_attention_work_bytes(12, 12, 64, 16384);
    assert_true(many <= 16 * few);
    assert_true(many <= (size_t)16384 * 12 * 64 * sizeof(float) / 16); /* small beside q itself */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_against_naive),
        cmocka_unit_test(test_sets_against_reference),
        cmocka_unit_test(test_threads_do_not_show),
        cmocka_unit_test(test_packing_does_not_show),
        cmocka_unit_test(test_other_rows_do_not_show),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nan_spreads),
        cmocka_unit_test(test_scratch_is_linear),
    };
    return cmocka_run_group_tests(tests, find_sets, NULL);
}
