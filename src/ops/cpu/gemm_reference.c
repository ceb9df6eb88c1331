/* The matrix multiplication, as defined: every element is a sum over K in index order, kept in
 * double (products of two floats are exact there) and rounded to fp32 once; then `add`, then
 * `bias`, in fp32. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/scalar.h"

#include <omp.h>

static float element(const struct dt_mat *m, int64_t row, int64_t col, bool rounded)
{
    int64_t at = m->trans ? col * m->ld + row : row * m->ld + col;
    if (m->dtype == DT_BF16)
        return bf16_widen(((const uint16_t *)m->p)[at]);
    float x = ((const float *)m->p)[at];
    return rounded ? bf16_widen(bf16_round(x)) : x;
}

static void put(const struct dt_gemm *g, int64_t i, int64_t j, double sum)
{
    float x = (float)sum;
    if (g->add)
        x += g->add[i * g->ldadd + j];
    if (g->bias)
        x += g->bias[j];
    if (g->c)
        g->c[i * g->ldc + j] = x;
    else
        g->c_bf16[i * g->ldc + j] = bf16_round(x);
}

enum { STRIP = 64 }; /* columns summed side by side, so that plain B is read along its rows */

static void strip(const struct dt_gemm *g, int64_t i, int64_t j0, int64_t n)
{
    bool rounded = g->compute == DT_BF16;
    double sum[STRIP] = {0};
    for (int64_t k = 0; k < g->K; k++) {
        double x = element(&g->a, i, k, rounded);
        for (int64_t j = 0; j < n; j++)
            sum[j] += x * element(&g->b, k, j0 + j, rounded);
    }
    for (int64_t j = 0; j < n; j++)
        put(g, i, j0 + j, sum[j]);
}

void dt_gemm_reference(const struct dt_gemm *g)
{
    int64_t strips = (g->N + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(static) if (!omp_in_parallel())
    for (int64_t item = 0; item < g->M * strips; item++) {
        int64_t j0 = item % strips * STRIP;
        strip(g, item / strips, j0, g->N - j0 < STRIP ? g->N - j0 : STRIP);
    }
}
