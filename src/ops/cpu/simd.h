/* What every *.simd.c file starts from. It is compiled once per kernel set
 * (src/ops/CMakeLists.txt).
 *
 * Vectors are always 16 floats (GCC/Clang vector extensions): the compiler splits them into two or
 * four registers where the set has narrower ones. So an elementwise kernel or a 16-lane sum written
 * once gives the same bits in every set, as long as it uses only + - * / sqrt and conversions
 * (IEEE, -ffp-contract=off) and no fma. */
#ifndef DT_OPS_CPU_SIMD_H
#define DT_OPS_CPU_SIMD_H

#include "ops/cpu/scalar.h"

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define DT_CAT2(a, b) a##_##b
#define DT_CAT(a, b) DT_CAT2(a, b)
#define DT_KERNEL(name) DT_CAT(dt_##name, DT_ISA) /* DT_KERNEL(rope) -> dt_rope_avx2 */

#define VL 16 /* floats in a vector */

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef float vf_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef double vd8 __attribute__((vector_size(64)));

#define VINLINE static inline __attribute__((always_inline, unused))

VINLINE vf v_load(const float *p)
{
    return *(const vf_any *)p;
}

VINLINE void v_store(float *p, vf x)
{
    *(vf_any *)p = x;
}

VINLINE vf v_set(float x)
{
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* The first n < 16 floats; the others are `fill`. The same code path as full vectors follows. */
VINLINE vf v_load_n(const float *p, int64_t n, float fill)
{
    vf x = v_set(fill);
    memcpy(&x, p, (size_t)n * sizeof(float));
    return x;
}

VINLINE void v_store_n(float *p, vf x, int64_t n)
{
    memcpy(p, &x, (size_t)n * sizeof(float));
}

/* mask lanes all ones or zero, as comparisons of vectors give them */
VINLINE vf v_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a > b ? a : b and a < b ? a : b, b where one is NaN: x86's own instructions are just that. */
VINLINE vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return v_select(a > b, a, b);
#endif
}

VINLINE vf v_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return v_select(a < b, a, b);
#endif
}

/* Sum of the lanes in one fixed order: halves, quarters, ... */
VINLINE float v_sum(vf x)
{
    float a[VL];
    memcpy(a, &x, sizeof a);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] += a[i + w];
    return a[0];
}

VINLINE float v_reduce_max(vf x)
{
    float a[VL];
    memcpy(a, &x, sizeof a);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] = a[i] > a[i + w] ? a[i] : a[i + w];
    return a[0];
}

/* exp(x) to about 1 ulp for -87 <= x <= 88, 0 below, +inf above; NaN stays NaN. Cody-Waite
 * reduction and a degree-6 polynomial (coefficients: Cephes expf, Moshier), plain multiplies and
 * adds: equal bits everywhere. */
VINLINE vf v_exp(vf x)
{
    vf lo = v_set(-87.33654f), hi = v_set(88.72283f);
    vf z = v_min(v_max(x, lo), hi);
    vf n = z * v_set(1.44269504088896341f);
    /* round to nearest through the exponent trick: |n| < 2^22 */
    vf magic = v_set(12582912.0f);
    vf k = (n + magic) - magic;
    z = z - k * v_set(0.693359375f);
    z = z - k * v_set(-2.12194440e-4f);
    vf p = v_set(1.9875691500e-4f);
    p = p * z + v_set(1.3981999507e-3f);
    p = p * z + v_set(8.3334519073e-3f);
    p = p * z + v_set(4.1665795894e-2f);
    p = p * z + v_set(1.6666665459e-1f);
    p = p * z + v_set(5.0000001201e-1f);
    p = p * z * z + z + v_set(1.0f);
#if defined(__AVX512F__)
    /* p · 2^k rounded once, as below; then the same three selections with mask registers */
    __m512 r = _mm512_scalef_ps((__m512)p, (__m512)k);
    r = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)lo, _CMP_NLT_UQ), r);
    r = _mm512_mask_mov_ps(r, _mm512_cmp_ps_mask((__m512)x, (__m512)hi, _CMP_GT_OQ),
                           _mm512_set1_ps(__builtin_inff()));
    return (vf)_mm512_mask_mov_ps(r, _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q),
                                  (__m512)x);
#else
    /* two steps of scaling, so that 2^k for k = 128 is reached without overflow of the exponent
     * field */
    vi e = __builtin_convertvector(k, vi);
    vi e1 = e >> 1, e2 = e - e1;
    p = p * (vf)((e1 + 127) << 23) * (vf)((e2 + 127) << 23);
    p = v_select(x < lo, v_set(0.0f), p);
    p = v_select(x > hi, v_set(__builtin_inff()), p);
    return v_select(x != x, x, p);
#endif
}

typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint16_t vh_any __attribute__((vector_size(32), aligned(2), may_alias));

VINLINE vf v_widen_bf16(const uint16_t *p)
{
    vu u = __builtin_convertvector(*(const vh_any *)p, vu) << 16;
    return (vf)u;
}

VINLINE void v_store_bf16(uint16_t *p, vf x)
{
    vu u = (vu)x;
    vu r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    vu nan = u >> 16 | 0x40u;
    vi is_nan = x != x;
    r = ((vu)is_nan & nan) | (~(vu)is_nan & r);
    *(vh_any *)p = __builtin_convertvector(r, vh);
}

/* ---- tails ---- the loops of a kernel are written once, for k = VL (a constant that folds away)
 * and for the k < VL elements that are left over. */

VINLINE vf v_load_k(const float *p, int64_t k, float fill)
{
    return k == VL ? v_load(p) : v_load_n(p, k, fill);
}

VINLINE void v_store_k(float *p, vf x, int64_t k)
{
    if (k == VL)
        v_store(p, x);
    else
        v_store_n(p, x, k);
}

VINLINE void v_store_bf16_k(uint16_t *p, vf x, int64_t k)
{
    if (k == VL) {
        v_store_bf16(p, x);
    } else {
        uint16_t h[VL];
        v_store_bf16(h, x);
        memcpy(p, h, (size_t)k * sizeof *h);
    }
}

/* x in the first k lanes, zero in the others. */
VINLINE vf v_keep(vf x, int64_t k)
{
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return k == VL ? x : (vf)((lane < (vi){0} + (int32_t)k) & (vi)x);
}

VINLINE vf v_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#else
    float a[VL];
    memcpy(a, &x, sizeof a);
    for (int i = 0; i < VL; i++)
        a[i] = __builtin_sqrtf(a[i]);
    memcpy(&x, a, sizeof a);
    return x;
#endif
}

/* ---- sums in double: 16 lanes too, so that the order is that of the reference ---- */

struct vd16 {
    vd8 lo, hi;
};

VINLINE struct vd16 v_widen_double(vf x)
{
    return (struct vd16){
        __builtin_convertvector(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7), vd8),
        __builtin_convertvector(__builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15), vd8),
    };
}

VINLINE double v_sum_double(struct vd16 x)
{
    double lane[VL];
    memcpy(lane, &x, sizeof lane);
    return s_tree_double(lane);
}

#endif
