/* Gradients as 64-bit fixed point (`reduction: exact`, docs/numerics.md): integers, so that a sum
 * does not depend on its order.
 *
 * Scaling is done in float. Where ldexp would differ it does not matter: below 2^-126 both become
 * 0, beyond the largest float both are over the limit. From 2^24 on a float is an integer, so
 * |x| >= 2^limit - 1/2, that bound rounded to float, says |rint(x)| >= 2^limit for every limit. */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <math.h>
#include <stddef.h>

typedef uint64_t vq8 __attribute__((vector_size(64)));
typedef uint64_t vq8_any __attribute__((vector_size(64), aligned(8), may_alias));

struct rule {
    float factor, limit;
};

static struct rule rule_of(int scale, int limit_log2)
{
    return (struct rule){ldexpf(1, scale), (float)(ldexp(1, limit_log2) - 0.5)};
}

struct vq16 {
    vq8 lo, hi;
};

#if defined(__AVX512DQ__)
VINLINE struct vq16 to_integer(vf x)
{
    __m512 v = (__m512)x;
    return (struct vq16){(vq8)_mm512_cvtps_epi64(_mm512_castps512_ps256(v)),
                         (vq8)_mm512_cvtps_epi64(_mm512_extractf32x8_ps(v, 1))};
}
#else
/* |x| < 2^62. Adding 1.5 · 2^52 leaves a number of up to 51 bits, rounded to nearest even, in the
 * low bits; so the upper part, a multiple of 2^32, and the rest go one after the other. */
VINLINE vq8 integer8(vd8 x)
{
    const vd8 magic = (vd8){0} + 0x1.8p52;
    vd8 high = x * 0x1p-32 + magic;
    vd8 low = (x - (high - magic) * 0x1p32) + magic;
    return (((vq8)high - (vq8)magic) << 32) + ((vq8)low - (vq8)magic);
}

VINLINE struct vq16 to_integer(vf x)
{
    struct vd16 d = v_widen_double(x);
    return (struct vq16){integer8(d.lo), integer8(d.hi)};
}
#endif

/* Adds k <= VL addends; what is wrong with them, lane by lane. */
VINLINE vi add_step(int64_t *acc, const float *p, struct rule r, int64_t k)
{
    const int32_t exponent = 0x7f800000;
    vf g = v_load_k(p, k, 0), x = g * v_set(r.factor);
    vi good = (vf)((vi)x & 0x7fffffff) < v_set(r.limit);
    vi special = ((vi)g & exponent) == exponent;
    struct vq16 a = to_integer((vf)((vi)x & good));
    if (k == VL) {
        *(vq8_any *)acc += a.lo;
        *(vq8_any *)(acc + 8) += a.hi;
    } else {
        struct vq16 sum = {{0}, {0}};
        memcpy(&sum, acc, (size_t)k * sizeof *acc);
        sum.lo += a.lo;
        sum.hi += a.hi;
        memcpy(acc, &sum, (size_t)k * sizeof *acc);
    }
    return (special & DT_FIXED_NONFINITE) | (~special & ~good & DT_FIXED_OVERFLOW);
}

static vi add_run(int64_t *acc, const float *g, struct rule r, int64_t n)
{
    vi flags = {0};
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        flags |= add_step(acc + i, g + i, r, VL);
    if (i < n)
        flags |= add_step(acc + i, g + i, r, n - i);
    return flags;
}

static void report(vi flags, int *to)
{
    int any = 0;
    for (int i = 0; i < VL; i++)
        any |= flags[i];
    if (any)
        __atomic_fetch_or(to, any, __ATOMIC_RELAXED);
}

struct add {
    int64_t *acc;
    const float *g;
    int64_t lda, ldg, cols;
    struct rule rule;
    int *flags;
};

static void add_range(int64_t begin, int64_t end, const void *arg)
{
    const struct add *a = arg;
    vi flags = {0};
    for (int64_t index = begin; index < end; index++) {
        struct dt_tile t = dt_tile_at(index, a->cols);
        flags |=
            add_run(a->acc + t.row * a->lda + t.col, a->g + t.row * a->ldg + t.col, a->rule, t.n);
    }
    report(flags, a->flags);
}

void DT_KERNEL(fixed_add)(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,
                          int64_t cols, int scale, int limit_log2, int *flags);
void DT_KERNEL(fixed_add)(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,
                          int64_t cols, int scale, int limit_log2, int *flags)
{
    struct add a = {acc, g, lda, ldg, cols, rule_of(scale, limit_log2), flags};
    dt_parallel(rows * dt_tiles(cols), 1, rows * cols, add_range, &a);
}

/* ---- sums and values of accumulators ---- */

struct sum {
    uint64_t *acc;
    const uint64_t *x;
};

static void sum_range(int64_t begin, int64_t end, const void *arg)
{
    const struct sum *s = arg;
    uint64_t *restrict acc = s->acc;
    const uint64_t *restrict x = s->x;
    for (int64_t i = begin; i < end; i++)
        acc[i] += x[i];
}

void DT_KERNEL(fixed_sum)(int64_t *acc, const int64_t *x, int64_t n);
void DT_KERNEL(fixed_sum)(int64_t *acc, const int64_t *x, int64_t n)
{
    struct sum s = {(uint64_t *)acc, (const uint64_t *)x};
    dt_parallel(n, VL, n, sum_range, &s);
}

struct get {
    float *g;
    const int64_t *acc;
    double factor, divide;
};

static void get_range(int64_t begin, int64_t end, const void *arg)
{
    const struct get *a = arg;
    float *restrict g = a->g;
    const int64_t *restrict acc = a->acc;
    double factor = a->factor, divide = a->divide;
    for (int64_t i = begin; i < end; i++)
        g[i] = (float)((double)acc[i] * factor / divide);
}

void DT_KERNEL(fixed_get)(float *g, const int64_t *acc, int64_t n, int scale, double divide);
void DT_KERNEL(fixed_get)(float *g, const int64_t *acc, int64_t n, int scale, double divide)
{
    struct get a = {g, acc, ldexp(1, -scale), divide};
    dt_parallel(n, VL, n, get_range, &a);
}

/* ---- embedding: rows may repeat, so the team divides the columns ---- */

struct embed {
    int64_t *dE, *dP;
    const float *dx;
    const int32_t *id, *position;
    int64_t T, C;
    struct rule rule;
    int *flags;
};

static void embed_range(int64_t begin, int64_t end, const void *arg)
{
    const struct embed *e = arg;
    int64_t n = end - begin;
    vi flags = {0};
    for (int64_t t = 0; t < e->T; t++) {
        const float *dx = e->dx + t * e->C + begin;
        if (e->dE)
            flags |= add_run(e->dE + e->id[t] * e->C + begin, dx, e->rule, n);
        if (e->dP)
            flags |= add_run(e->dP + e->position[t] * e->C + begin, dx, e->rule, n);
    }
    report(flags, e->flags);
}

void DT_KERNEL(embed_backward_fixed)(int64_t *dE, int64_t *dP, const float *dx, const int32_t *id,
                                     const int32_t *position, int64_t T, int64_t C, int scale,
                                     int limit_log2, int *flags);
void DT_KERNEL(embed_backward_fixed)(int64_t *dE, int64_t *dP, const float *dx, const int32_t *id,
                                     const int32_t *position, int64_t T, int64_t C, int scale,
                                     int limit_log2, int *flags)
{
    struct embed e = {dE, dP, dx, id, position, T, C, rule_of(scale, limit_log2), flags};
    dt_parallel(C, VL, T * C, embed_range, &e);
}
