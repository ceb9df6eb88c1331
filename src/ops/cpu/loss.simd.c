/* Cross-entropy of one row after the other: loss and, in place, the gradient of the summed loss.
 *
 * Three light passes over a row that stays in the second-level cache: maximum; exponentials, stored
 * and summed; scale. The sum is kept in 16 double lanes: then the loss is off by little more than
 * the rounding of x - max in float, at most 2^-24 · |x - max| relative for the terms that count, so
 * that 1e-6 relative holds down to losses of 1e-6 (a float sum would lose a confident row's small
 * remainder beside the 1 of its target). */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <math.h>

struct args {
    float *logits;
    int64_t ld, V;
    const int32_t *target;
    double *loss;
    bool keep;
};

static float row_max(const float *x, int64_t V)
{
    const float least = -__builtin_inff();
    vf a = v_set(least), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * VL <= V; i += 4 * VL) {
        a = v_max(v_load(x + i), a);
        b = v_max(v_load(x + i + VL), b);
        c = v_max(v_load(x + i + 2 * VL), c);
        d = v_max(v_load(x + i + 3 * VL), d);
    }
    for (; i < V; i += VL)
        a = v_max(v_load_k(x + i, V - i < VL ? V - i : VL, least), a);
    return v_reduce_max(v_max(v_max(a, b), v_max(c, d)));
}

VINLINE struct vd16 exp_step(struct vd16 sum, float *x, vf max, bool keep, int64_t k)
{
    vf e = v_keep(v_exp(v_load_k(x, k, 0) - max), k);
    if (!keep)
        v_store_k(x, e, k);
    struct vd16 wide = v_widen_double(e);
    return (struct vd16){sum.lo + wide.lo, sum.hi + wide.hi};
}

/* Σ exp(x - max); unless keep, x becomes exp(x - max). */
VINLINE double row_exp(float *x, float max, bool keep, int64_t V)
{
    struct vd16 sum = {{0}, {0}};
    vf m = v_set(max);
    int64_t i = 0;
    for (; i + VL <= V; i += VL)
        sum = exp_step(sum, x + i, m, keep, VL);
    if (i < V)
        sum = exp_step(sum, x + i, m, keep, V - i);
    return v_sum_double(sum);
}

static void row_scale(float *x, float factor, int64_t V)
{
    vf f = v_set(factor);
    int64_t i = 0;
    for (; i + VL <= V; i += VL)
        v_store(x + i, v_load(x + i) * f);
    if (i < V)
        v_store_n(x + i, v_load_n(x + i, V - i, 0) * f, V - i);
}

static void loss_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *a = arg;
    for (int64_t t = begin; t < end; t++) {
        float *x = a->logits + t * a->ld;
        int32_t target = a->target[t];
        a->loss[t] = 0;
        if (target < 0) {
            if (!a->keep)
                memset(x, 0, (size_t)a->V * sizeof *x);
            continue;
        }
        float max = row_max(x, a->V), hit = x[target];
        double sum = a->keep ? row_exp(x, max, true, a->V) : row_exp(x, max, false, a->V);
        a->loss[t] = log(sum) + ((double)max - (double)hit);
        if (!a->keep) {
            row_scale(x, (float)(1 / sum), a->V);
            x[target] -= 1;
        }
    }
}

void DT_KERNEL(loss)(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,
                     int64_t V, bool keep_logits);
void DT_KERNEL(loss)(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,
                     int64_t V, bool keep_logits)
{
    struct args a = {logits, ld, V, target, loss, keep_logits};
    dt_parallel(T, 1, T * V * 4, loss_range, &a);
}
