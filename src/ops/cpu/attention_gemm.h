/* The one product of attention's tiles: c[m, n] (+)= a[m, k] · b[k, n], all of it small and in
 * cache.
 *
 * Vectors run along n; elements of a are broadcast straight from where they lie, so keys and values
 * are read in place and never packed. A register block is MR rows by NV vectors. Every element of c
 * is one chain of multiply-adds over k in ascending order, continued from c itself when adding: so
 * its bits do not depend on the blocking, nor on how the range of k was cut into calls. */
#ifndef DT_OPS_CPU_ATTENTION_GEMM_H
#define DT_OPS_CPU_ATTENTION_GEMM_H

#include "ops/cpu/attention_vec.h"

struct product {
    int64_t m, n, k;
    const float *a; /* element (r, i) at a[r * lda + i], or at a[r + i * lda] when a_columns */
    int64_t lda;
    bool a_columns;
    const float *b; /* [k, n], readable up to the next multiple of W */
    int64_t ldb;
    float *c; /* [m, n]; the last n % W columns are written as such */
    int64_t ldc;
    bool add; /* c += instead of c = */
};

/* One register block; `last` lanes of the last vector exist. */
VINLINE void block(const int MR, const int NV, const bool a_columns, const struct product *p,
                   const float *a, const float *b, float *c, int64_t last)
{
    vr acc[8][NV_MAX];
    const int64_t lda = p->lda, ldb = p->ldb, ldc = p->ldc, k = p->k;
    UNROLL(8)
    for (int r = 0; r < MR; r++)
        UNROLL(4)
    for (int v = 0; v < NV; v++) {
        const float *at = c + r * ldc + v * W;
        acc[r][v] = !p->add                   ? vr_set(0)
                    : v < NV - 1 || last == W ? vr_load(at)
                                              : vr_load_n(at, last);
    }
    for (int64_t i = 0; i < k; i++) {
        vr bv[NV_MAX];
        UNROLL(4)
        for (int v = 0; v < NV; v++)
            bv[v] = vr_load(b + i * ldb + v * W);
        UNROLL(8)
        for (int r = 0; r < MR; r++) {
            vr x = vr_set(a_columns ? a[r + i * lda] : a[r * lda + i]);
            UNROLL(4)
            for (int v = 0; v < NV; v++)
                acc[r][v] = vr_fma(x, bv[v], acc[r][v]);
        }
    }
    UNROLL(8)
    for (int r = 0; r < MR; r++)
        UNROLL(4)
    for (int v = 0; v < NV; v++) {
        float *at = c + r * ldc + v * W;
        if (v < NV - 1 || last == W)
            vr_store(at, acc[r][v]);
        else
            vr_store_n(at, acc[r][v], last);
    }
}

/* All rows of NV vectors, from column j on. */
VINLINE void rows(const int NV, const bool a_columns, const struct product *p, int64_t j)
{
    enum { NARROW = NV_MAX == 4 ? 8 : 6 };
    const float *b = p->b + j;
    float *c = p->c + j;
    int64_t r = 0, step = a_columns ? 1 : p->lda, last = p->n - j - (NV - 1) * W;
    last = last < W ? last : W;
    if (NV == NV_MAX)
        for (; r + 6 <= p->m; r += 6)
            block(6, NV, a_columns, p, p->a + r * step, b, c + r * p->ldc, last);
    else
        for (; r + NARROW <= p->m; r += NARROW)
            block(NARROW, NV, a_columns, p, p->a + r * step, b, c + r * p->ldc, last);
    if (r + 4 <= p->m) {
        block(4, NV, a_columns, p, p->a + r * step, b, c + r * p->ldc, last);
        r += 4;
    }
    if (r + 2 <= p->m) {
        block(2, NV, a_columns, p, p->a + r * step, b, c + r * p->ldc, last);
        r += 2;
    }
    if (r < p->m)
        block(1, NV, a_columns, p, p->a + r * step, b, c + r * p->ldc, last);
}

#define DT_ROWS(nv)                                                                                \
    __attribute__((noinline, unused)) static void rows_##nv(const struct product *p, int64_t j)    \
    {                                                                                              \
        if (p->a_columns)                                                                          \
            rows(nv, true, p, j);                                                                  \
        else                                                                                       \
            rows(nv, false, p, j);                                                                 \
    }
DT_ROWS(1)
DT_ROWS(2)
#if NV_MAX == 4
DT_ROWS(3)
DT_ROWS(4)
#endif

VINLINE void multiply(const struct product *p)
{
    int64_t j = 0;
    for (; j + NV_MAX * W <= p->n; j += NV_MAX * W)
        DT_CAT(rows, NV_MAX)(p, j);
    int64_t left = (p->n - j + W - 1) / W;
#if NV_MAX == 4
    if (left == 4)
        rows_4(p, j);
    else if (left == 3)
        rows_3(p, j);
    else
#endif
        if (left == 2)
        rows_2(p, j);
    else if (left == 1)
        rows_1(p, j);
}

#endif
