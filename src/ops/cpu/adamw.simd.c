/* AdamW (Loshchilov & Hutter 2019) and the squared norms of gradient blocks: the two passes over
 * all parameters of an update. Both are bound by memory: one stream per array, every element read
 * and written once. The order of operations stands in ops.h. */
#include "ops/cpu/common.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

struct adamw {
    float *w, *m, *v;
    const float *grad;
    float scale, beta1, beta2, rest1, rest2, decay, rate, root2, eps;
};

VINLINE void adamw_step(const struct adamw *a, int64_t i, int64_t k)
{
    vf g = v_load_k(a->grad + i, k, 0) * v_set(a->scale);
    vf m = v_set(a->beta1) * v_load_k(a->m + i, k, 0) + v_set(a->rest1) * g;
    vf v = v_set(a->beta2) * v_load_k(a->v + i, k, 0) + v_set(a->rest2) * g * g;
    vf w = v_load_k(a->w + i, k, 0) * v_set(a->decay);
    w = w - v_set(a->rate) * m / (v_sqrt(v) / v_set(a->root2) + v_set(a->eps));
    v_store_k(a->m + i, m, k);
    v_store_k(a->v + i, v, k);
    v_store_k(a->w + i, w, k);
}

static void adamw_range(int64_t begin, int64_t end, const void *arg)
{
    const struct adamw a = *(const struct adamw *)arg; /* in registers: stores may not change it */
    int64_t i = begin;
    for (; i + VL <= end; i += VL)
        adamw_step(&a, i, VL);
    if (i < end)
        adamw_step(&a, i, end - i);
}

void DT_KERNEL(adamw)(float *w, float *m, float *v, const float *grad, int64_t n,
                      const struct dt_adamw *p);
void DT_KERNEL(adamw)(float *w, float *m, float *v, const float *grad, int64_t n,
                      const struct dt_adamw *p)
{
    struct adamw a = {
        .w = w,
        .m = m,
        .v = v,
        .grad = grad,
        .scale = p->grad_scale,
        .beta1 = p->beta1,
        .beta2 = p->beta2,
        .rest1 = 1 - p->beta1,
        .rest2 = 1 - p->beta2,
        .decay = 1 - p->lr * p->weight_decay,
        .rate = p->lr / p->bias1,
        .root2 = __builtin_sqrtf(p->bias2),
        .eps = p->eps,
    };
    dt_parallel(n, 1024, n, adamw_range, &a);
}

struct norms {
    const float *g;
    int64_t n;
    int scale_log2;
    struct dt_u128 *sum;
    bool *bad;
};

VINLINE struct vd16 square_step(struct vd16 sum, const float *g, int64_t k)
{
    struct vd16 x = v_widen_double(v_load_k(g, k, 0));
    return (struct vd16){sum.lo + x.lo * x.lo, sum.hi + x.hi * x.hi};
}

static void norms_range(int64_t begin, int64_t end, const void *arg)
{
    const struct norms *a = arg;
    struct dt_u128 mine = {0, 0};
    bool bad = false;
    for (int64_t block = begin; block < end; block++) {
        const float *g = a->g + block * DT_BLOCK;
        int64_t n = a->n - block * DT_BLOCK, i = 0;
        n = n < DT_BLOCK ? n : DT_BLOCK;
        struct vd16 sum = {{0}, {0}};
        for (; i + VL <= n; i += VL)
            sum = square_step(sum, g + i, VL);
        if (i < n)
            sum = square_step(sum, g + i, n - i);
        bad |= !dt_block_norm_add(v_sum_double(sum), a->scale_log2, &mine);
    }
    dt_u128_add(a->sum, mine.hi, mine.lo);
    if (bad)
        __atomic_store_n(a->bad, true, __ATOMIC_RELAXED);
}

bool DT_KERNEL(block_norms)(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum);
bool DT_KERNEL(block_norms)(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum)
{
    bool bad = false;
    struct norms a = {g, n, scale_log2, sum, &bad};
    dt_parallel((n + DT_BLOCK - 1) / DT_BLOCK, 1, n, norms_range, &a);
    return !bad;
}
