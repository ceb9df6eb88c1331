/* The registers that attention's tiles are computed in: `vr`, W floats, as wide as the set has
 * them.
 *
 * simd.h's 16-float vectors are split by the compiler; that is fine for elementwise loops, but the
 * register blocking of a small matrix product has to know the true width, and the fused
 * multiply-add has to be written. So bits of attention differ between sets, which is what ops.h
 * claims. */
#ifndef DT_OPS_CPU_ATTENTION_VEC_H
#define DT_OPS_CPU_ATTENTION_VEC_H

#include "ops/cpu/simd.h"

#include <stdbool.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define W 16
#define NV_MAX 4 /* vectors beside each other in a register block */
#elif defined(__AVX2__)
#include <immintrin.h>
#define W 8
#define NV_MAX 2
#else
#define W 4
#define NV_MAX 2
#endif
#if defined(__clang__)
#define UNROLL(n) _Pragma("unroll")
#else
#define UNROLL_TEXT(x) _Pragma(#x)
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)
#endif

typedef float vr __attribute__((vector_size(W * 4)));
typedef float vr_any __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t vri __attribute__((vector_size(W * 4)));
typedef uint32_t vru __attribute__((vector_size(W * 4)));

VINLINE vr vr_load(const float *p)
{
    return *(const vr_any *)p;
}

VINLINE void vr_store(float *p, vr x)
{
    *(vr_any *)p = x;
}

VINLINE vr vr_set(float x)
{
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#elif defined(__AVX2__)
    return _mm256_set1_ps(x);
#else
    return (vr){x, x, x, x};
#endif
}

/* The first n <= W floats, the others zero; reads no more than these. */
VINLINE vr vr_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
    float x[W] = {0};
    memcpy(x, p, (size_t)n * sizeof(float));
    return vr_load(x);
#endif
}

VINLINE void vr_store_n(float *p, vr x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), x);
#else
    float y[W];
    vr_store(y, x);
    memcpy(p, y, (size_t)n * sizeof(float));
#endif
}

/* a * b + c, in one rounding where the set has it */
VINLINE vr vr_fma(vr a, vr b, vr c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* b where a is NaN */
VINLINE vr vr_max(vr a, vr b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    vri m = a > b;
    return (vr)((m & (vri)a) | (~m & (vri)b));
#endif
}

/* x where lo <= key <= hi, else `other` */
VINLINE vr vr_keep(vr lo, vr key, vr hi, vr x, vr other)
{
#if defined(__AVX512F__)
    __mmask16 m = _mm512_cmp_ps_mask(lo, key, _CMP_LE_OQ);
    m = _mm512_mask_cmp_ps_mask(m, key, hi, _CMP_LE_OQ);
    return _mm512_mask_blend_ps(m, other, x);
#else
    vri m = (vri)(lo <= key) & (vri)(key <= hi);
    return (vr)((m & (vri)x) | (~m & (vri)other));
#endif
}

/* Are all lanes equal? */
VINLINE bool vr_equal(vr a, vr b)
{
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) == 0;
#else
    vri m = a != b;
    int32_t any = 0;
    for (int i = 0; i < W; i++)
        any |= m[i];
    return any == 0;
#endif
}

#define EXP2_LOWEST (-100.0f)

/* 2^x for x <= 126; 0 below EXP2_LOWEST, which no sum of fp32 probabilities can see, so that no
 * denormal slows a product down; NaN stays NaN. Relative error 2e-7: the polynomial is the best of
 * degree 5 on
 * [-1/2, 1/2] with p(0) = 1 (9.2e-8, by iteratively reweighted least squares), the rest is
 * rounding. */
VINLINE vr vr_exp2(vr x)
{
    vr magic = vr_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vr t = x + magic;
    vr n = t - magic;
    vr r = x - n;
    vr p = vr_fma(r, vr_set(1.3264742552e-3f), vr_set(9.6715180042e-3f));
    p = vr_fma(p, r, vr_set(5.5507337560e-2f));
    p = vr_fma(p, r, vr_set(2.4022242004e-1f));
    p = vr_fma(p, r, vr_set(6.9314697756e-1f));
    p = vr_fma(p, r, vr_set(1.0f));
#if defined(__AVX512F__)
    __mmask16 keep = _mm512_cmp_ps_mask(x, vr_set(EXP2_LOWEST), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, p, n);
#else
    vr y = (vr)((vru)p + ((vru)t << 23)); /* unsigned: NaN and what is out of range may wrap */
    vri low = x < vr_set(EXP2_LOWEST), nan = x != x;
    return (vr)(~low & ((nan & (vri)x) | (~nan & (vri)y)));
#endif
}

/* x[0..W) become the columns of what they were. */
VINLINE void vr_transpose(vr x[W])
{
#if defined(__AVX512F__)
    vr y[W];
    UNROLL(4)
    for (int i = 0; i < W; i += 4) { /* 4 x 4 within 128-bit lanes */
        vr a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        vr c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm512_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++) { /* then the lanes */
        vr a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88),
           b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        vr c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        vr d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#else
    float in[W][W], out[W][W];
    memcpy(in, x, sizeof in);
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++)
            out[i][j] = in[j][i];
    memcpy(x, out, sizeof in);
#endif
}

#endif
