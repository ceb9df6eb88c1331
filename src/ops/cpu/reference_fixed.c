/* Reference of the fixed-point gradients: docs/numerics.md, "reduction: exact", line by line. */
#include "ops/ops.h"

#include <math.h>
#include <stddef.h>

static void add(int64_t *acc, float g, int scale, int limit_log2, int *flags)
{
    double a = rint(ldexp((double)g, scale));
    if (!isfinite(g))
        *flags |= DT_FIXED_NONFINITE;
    else if (fabs(a) >= ldexp(1, limit_log2))
        *flags |= DT_FIXED_OVERFLOW;
    else
        *acc = (int64_t)((uint64_t)*acc + (uint64_t)(int64_t)a);
}

void dt_fixed_add_reference(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,
                            int64_t cols, int scale, int limit_log2, int *flags);
void dt_fixed_add_reference(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,
                            int64_t cols, int scale, int limit_log2, int *flags)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            add(&acc[r * lda + i], g[r * ldg + i], scale, limit_log2, flags);
}

void dt_fixed_sum_reference(int64_t *acc, const int64_t *x, int64_t n);
void dt_fixed_sum_reference(int64_t *acc, const int64_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = (int64_t)((uint64_t)acc[i] + (uint64_t)x[i]);
}

void dt_fixed_get_reference(float *g, const int64_t *acc, int64_t n, int scale, double divide);
void dt_fixed_get_reference(float *g, const int64_t *acc, int64_t n, int scale, double divide)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = (float)(ldexp((double)acc[i], -scale) / divide);
}

void dt_embed_backward_fixed_reference(int64_t *dE, int64_t *dP, const float *dx, const int32_t *id,
                                       const int32_t *position, int64_t T, int64_t C, int scale,
                                       int limit_log2, int *flags);
void dt_embed_backward_fixed_reference(int64_t *dE, int64_t *dP, const float *dx, const int32_t *id,
                                       const int32_t *position, int64_t T, int64_t C, int scale,
                                       int limit_log2, int *flags)
{
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < C; i++) {
            if (dE)
                add(&dE[id[t] * C + i], dx[t * C + i], scale, limit_log2, flags);
            if (dP)
                add(&dP[position[t] * C + i], dx[t * C + i], scale, limit_log2, flags);
        }
    }
}
