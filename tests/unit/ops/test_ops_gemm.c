/* The matrix multiplication of every kernel set that runs here: against the reference, which is
 * itself held to a naive double sum; that nothing outside the operands is read (exact allocations
 * under ASan) or written (guards between rows); and that an element's bits depend on K alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ops.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static const char *const set_names[] = {"reference", "portable", "avx2", "avx512", "avx512bf16"};
enum { SETS = sizeof set_names / sizeof *set_names };

static uint64_t seed = 1;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static float draw_float(void)
{
    return ((float)draw(1u << 20) - 524288.0f) * 0x1p-19f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ---- Cases -------------------------------------------------------------------------------------
 */

struct test_case {
    struct dt_gemm g;
    void *a, *b;
    float *add, *bias;
    void *c;
    size_t c_elements;
    bool alias; /* add is c */
};

/* [rows, cols] with some room between rows, but not a byte after the last element */
static void *draw_matrix(struct dt_mat *m, int64_t rows, int64_t cols)
{
    if (m->trans) {
        int64_t r = rows;
        rows = cols;
        cols = r;
    }
    m->ld = cols + (draw(2) ? draw(20) : 0);
    size_t n = (size_t)((rows - 1) * m->ld + cols);
    void *p = malloc(n * dt_dtype_size(m->dtype));
    for (size_t i = 0; i < n; i++) {
        float x = draw_float();
        if (m->dtype == DT_BF16)
            ((uint16_t *)p)[i] = to_bf16(x);
        else
            ((float *)p)[i] = x;
    }
    m->p = p;
    return p;
}

static float *draw_floats(size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = draw_float();
    return p;
}

static void *new_work(void)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, dt_gemm_work_bytes()), 0);
    memset(p, 0xff, dt_gemm_work_bytes()); /* NaNs, should a kernel use what it has not packed */
    return p;
}

/* `kind`: bits choose transposition, element types, compute, add, bias, output */
static struct test_case draw_case(int64_t M, int64_t N, int64_t K, uint32_t kind)
{
    struct test_case t = {.g = {.M = M, .N = N, .K = K}};
    struct dt_gemm *g = &t.g;
    g->a.trans = kind & 1;
    g->b.trans = kind & 2;
    g->a.dtype = kind & 4 ? DT_BF16 : DT_F32;
    g->b.dtype = kind & 8 ? DT_BF16 : DT_F32;
    g->compute = kind & 16 ? DT_BF16 : DT_F32;
    t.a = draw_matrix(&g->a, M, K);
    t.b = draw_matrix(&g->b, K, N);
    g->ldc = N + (draw(2) ? draw(20) : 0);
    t.c_elements = (size_t)((M - 1) * g->ldc + N);
    bool out_bf16 = kind & 128;
    t.alias = (kind & 32) && !out_bf16 && draw(2);
    if (kind & 32) {
        g->ldadd = t.alias ? g->ldc : N + draw(5);
        t.add = draw_floats((size_t)((M - 1) * g->ldadd + N));
        g->add = t.add;
    }
    if (kind & 64)
        g->bias = t.bias = draw_floats((size_t)N);
    t.c = calloc(t.c_elements, out_bf16 ? 2 : 4);
    if (out_bf16)
        g->c_bf16 = t.c;
    else
        g->c = t.c;
    g->work = new_work();
    return t;
}

static void free_case(struct test_case *t)
{
    free(t->a);
    free(t->b);
    free(t->add);
    free(t->bias);
    free(t->c);
    free(t->g.work);
}

static size_t out_bytes(const struct test_case *t)
{
    return t->c_elements * (t->g.c ? 4 : 2);
}

/* Run into a fresh, exactly sized result whose gaps hold 0x5a. */
static void *run_case(const struct test_case *t, const struct dt_kernels *k)
{
    struct dt_gemm g = t->g;
    void *c = malloc(out_bytes(t));
    memset(c, 0x5a, out_bytes(t));
    if (g.c)
        g.c = c;
    else
        g.c_bf16 = c;
    if (t->alias) {
        for (int64_t i = 0; i < g.M; i++)
            memcpy(g.c + i * g.ldc, t->add + i * g.ldadd, (size_t)g.N * 4);
        g.add = g.c;
    }
    k->gemm(&g);
    return c;
}

static void check_gaps(const struct test_case *t, const void *c)
{
    size_t size = t->g.c ? 4 : 2;
    for (int64_t i = 0; i + 1 < t->g.M; i++)
        for (size_t j = (size_t)t->g.N * size; j < (size_t)t->g.ldc * size; j++)
            assert_int_equal(((const unsigned char *)c)[(size_t)(i * t->g.ldc) * size + j], 0x5a);
}

static double element(const struct dt_gemm *g, const struct dt_mat *m, int64_t row, int64_t col)
{
    int64_t i = m->trans ? col * m->ld + row : row * m->ld + col;
    if (m->dtype == DT_BF16)
        return from_bf16(((const uint16_t *)m->p)[i]);
    float x = ((const float *)m->p)[i];
    return g->compute == DT_BF16 ? from_bf16(to_bf16(x)) : x;
}

/* Against the naive sum in double. A chain of K fp32 multiply-adds, in any order, and the additions
 * after it are off by at most (K + 3) u Σ|terms| (u = 2^-24, first order); a bf16 result by half a
 * unit, 2^-9, more. */
static void check_values(const struct test_case *t, const void *c, const char *name)
{
    const struct dt_gemm *g = &t->g;
    for (int64_t i = 0; i < g->M; i++)
        for (int64_t j = 0; j < g->N; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < g->K; k++) {
                double x = element(g, &g->a, i, k) * element(g, &g->b, k, j);
                sum += x;
                size += fabs(x);
            }
            if (g->add) {
                sum += t->add[i * g->ldadd + j];
                size += fabs((double)t->add[i * g->ldadd + j]);
            }
            if (g->bias) {
                sum += t->bias[j];
                size += fabs((double)t->bias[j]);
            }
            int64_t at = i * g->ldc + j;
            double got = g->c ? ((const float *)c)[at] : from_bf16(((const uint16_t *)c)[at]);
            double bound =
                ((double)g->K + 4) * 0x1p-24 * size + (g->c ? 0 : 0x1p-8 * fabs(sum)) + 1e-37;
            if (!(fabs(got - sum) <= bound))
                fail_msg("%s: M %lld N %lld K %lld, element %lld %lld: %.9g, expected %.9g +- %.3g",
                         name, (long long)g->M, (long long)g->N, (long long)g->K, (long long)i,
                         (long long)j, got, sum, bound);
        }
}

static int64_t draw_size(void)
{
    static const int64_t edges[] = {1,  2,  3,  7,  8,  9,  15, 16, 17, 31,
                                    33, 47, 48, 49, 63, 65, 95, 97, 130};
    return draw(3) ? edges[draw(sizeof edges / sizeof *edges)] : 1 + draw(100);
}

static void test_values(void **state)
{
    (void)state;
    dt_ops_set_threads(2);
    for (uint32_t kind = 0; kind < 256; kind++) {
        int64_t K = draw_size();
        int64_t M = draw_size(), N = draw_size();
        if (kind % 8 == 3) {
            K += kind % 16 == 3 ? 1020 : 2040; /* one and several blocks of K */
            M = 1 + M % 20;
        }
        struct test_case t = draw_case(M, N, K, kind);
        for (int s = 0; s < SETS; s++) {
            const struct dt_kernels *k = dt_kernels_find(set_names[s]);
            if (!k)
                continue;
            void *c = run_case(&t, k);
            check_values(&t, c, set_names[s]);
            check_gaps(&t, c);
            free(c);
        }
        free_case(&t);
    }
}

/* Shapes that pass through the shared buffer in slabs, on either side */
static void test_slabs(void **state)
{
    static const int64_t shapes[][3] = {
        {1100, 9, 5}, {2100, 50, 33}, {9, 1100, 5}, {50, 2100, 33}, {1030, 1030, 3}};
    (void)state;
    dt_ops_set_threads(2);
    for (int i = 0; i < 5; i++)
        for (uint32_t kind = 0; kind < 64; kind += 7 + draw(9)) {
            struct test_case t = draw_case(shapes[i][0], shapes[i][1], shapes[i][2], kind);
            for (int s = 1; s < SETS; s++) {
                const struct dt_kernels *k = dt_kernels_find(set_names[s]);
                if (!k)
                    continue;
                void *c = run_case(&t, k);
                check_values(&t, c, set_names[s]);
                free(c);
            }
            free_case(&t);
        }
}

/* ---- Bits --------------------------------------------------------------------------------------
 */

/* The part [i, i + M) x [j, j + N) of a case, computed alone, has the bits it has in the whole. */
static void check_part(const struct test_case *t, const struct dt_kernels *k, const void *whole,
                       int64_t i, int64_t j, int64_t M, int64_t N)
{
    struct dt_gemm g = t->g;
    size_t size = g.c ? 4 : 2;
    g.M = M;
    g.N = N;
    g.a.p = (const char *)g.a.p + (g.a.trans ? i : i * g.a.ld) * (int64_t)dt_dtype_size(g.a.dtype);
    g.b.p = (const char *)g.b.p + (g.b.trans ? j * g.b.ld : j) * (int64_t)dt_dtype_size(g.b.dtype);
    if (g.add)
        g.add = t->add + i * g.ldadd + j;
    if (g.bias)
        g.bias = t->bias + j;
    char *c = malloc((size_t)(M * N) * size);
    g.ldc = N;
    if (g.c)
        g.c = (float *)(void *)c;
    else
        g.c_bf16 = (uint16_t *)(void *)c;
    k->gemm(&g);
    for (int64_t r = 0; r < M; r++)
        assert_memory_equal(c + (size_t)(r * N) * size,
                            (const char *)whole + (size_t)((i + r) * t->g.ldc + j) * size,
                            (size_t)N * size);
    free(c);
}

static void check_bits(const struct dt_kernels *k, int64_t M, int64_t N, int64_t K, uint32_t kind)
{
    dt_ops_set_threads(2);
    struct test_case t = draw_case(M, N, K, kind);
    t.alias = false;
    void *whole = run_case(&t, k);
    check_part(&t, k, whole, 5, 0, M - 9, N);
    check_part(&t, k, whole, M / 2, 0, M - M / 2, N);
    check_part(&t, k, whole, 3, 13, 1, N - 13);
    check_part(&t, k, whole, M - 1, N - 1, 1, 1);
    check_part(&t, k, whole, 0, 17, M, N - 17);
    check_part(&t, k, whole, 0, N - 2, M, 1);
    static const int threads[] = {1, 3, 5};
    for (int n = 0; n < 3; n++) {
        dt_ops_set_threads(threads[n]);
        free(t.g.work);
        t.g.work = new_work();
        void *c = run_case(&t, k);
        assert_memory_equal(c, whole, out_bytes(&t));
        free(c);
    }
    free(whole);
    free_case(&t);
}

static void test_bits(void **state)
{
    (void)state;
    for (int s = 0; s < SETS; s++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[s]);
        if (!k)
            continue;
        for (uint32_t kind = 0; kind < 256; kind += 11)
            check_bits(k, 43, 131, 70, kind);
        for (uint32_t kind = 3; kind < 256; kind += 59) {
            check_bits(k, 27, 100, 2100, kind);
            check_bits(k, 530, 29, 31, kind);
            check_bits(k, 29, 530, 31, kind);
        }
    }
}

/* An infinity stays in its own row or column, whatever lies beside it in a tile. */
static void test_no_leak(void **state)
{
    (void)state;
    dt_ops_set_threads(2);
    for (int s = 0; s < SETS; s++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[s]);
        if (!k)
            continue;
        for (uint32_t kind = 0; kind < 32; kind++) {
            if (kind & 12)
                continue; /* fp32 operands */
            struct test_case t = draw_case(21, 53, 37, kind);
            void *clean = run_case(&t, k);
            const struct dt_gemm *g = &t.g;
            int64_t row = 20, col = 52, last = 36;
            ((float *)t.a)[g->a.trans ? last * g->a.ld + row : row * g->a.ld + last] = INFINITY;
            ((float *)t.b)[g->b.trans ? col * g->b.ld + last : last * g->b.ld + col] = INFINITY;
            float *c = run_case(&t, k);
            for (int64_t i = 0; i < g->M; i++)
                for (int64_t j = 0; j < g->N; j++) {
                    float x = c[i * g->ldc + j];
                    if (i == row || j == col)
                        assert_true(!(fabsf(x) < INFINITY));
                    else
                        assert_memory_equal(&x, (float *)clean + i * g->ldc + j, 4);
                }
            free(c);
            free(clean);
            free_case(&t);
        }
    }
}

/* Inside a parallel region a call runs on its own thread alone. */
static void test_nested(void **state)
{
    (void)state;
    dt_ops_set_threads(3);
    for (int s = 0; s < SETS; s++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[s]);
        if (!k)
            continue;
        struct test_case t = draw_case(70, 120, 50, 1);
        void *outside = run_case(&t, k), *inside[3];
        void *work[3] = {t.g.work, new_work(), new_work()};
#pragma omp parallel num_threads(3)
        {
            int me = omp_get_thread_num();
            struct test_case own = t;
            own.g.work = work[me];
            inside[me] = run_case(&own, k);
        }
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(inside[i], outside, out_bytes(&t));
            free(inside[i]);
        }
        free(work[1]);
        free(work[2]);
        free(outside);
        free_case(&t);
    }
}

static void test_peak(void **state)
{
    (void)state;
    dt_ops_set_threads(1);
    /* one scalar multiply-add every few nanoseconds is the least any machine does; 10 TFLOP/s a
     * core would mean that the loop was optimised away */
    for (int i = 0; i < 2; i++) {
        double gflops = dt_ops_peak_gflops(i ? DT_BF16 : DT_F32, 0.02);
        assert_true(gflops > 0.1 && gflops < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_slabs),  cmocka_unit_test(test_bits),
        cmocka_unit_test(test_no_leak), cmocka_unit_test(test_nested), cmocka_unit_test(test_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
