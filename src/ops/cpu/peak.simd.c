/* Multiply-adds on registers alone, as many chains as hide the latency: what the machine could do.
 */
#include "ops/cpu/peak.h"
#include "ops/cpu/simd.h"

#if defined(DT_ISA_avx512) || defined(DT_ISA_avx512bf16)
#include <immintrin.h>
#define GV 16
enum { CHAINS = 24 };
#elif defined(DT_ISA_avx2)
#include <immintrin.h>
#define GV 8
enum { CHAINS = 12 };
#else
#define GV 4
enum { CHAINS = 12 };
#endif

typedef float gv __attribute__((vector_size(GV * 4)));

/* The compiler must take x for changed: it can neither fold nor hoist what is computed from it. */
#if GV == 4
#define OPAQUE(x) __asm__ volatile("" : "+x"(x))
#else
#define OPAQUE(x) __asm__ volatile("" : "+v"(x))
#endif

VINLINE gv multiply_add(gv a, gv b, gv c)
{
#if GV == 16
    return (gv)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif GV == 8
    return (gv)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* The sums shrink to a fixed point: no denormals, no infinities. */
double DT_KERNEL(peak_f32)(int64_t rounds)
{
    gv acc[CHAINS], a, b;
    for (int v = 0; v < GV; v++) {
        a[v] = 0.5f;
        b[v] = 1.0f;
    }
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++)
        acc[c] = b;
    for (int64_t n = 0; n < rounds; n++) {
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) {
            acc[c] = multiply_add(acc[c], a, b);
            OPAQUE(acc[c]);
        }
    }
    return 2.0 * GV * CHAINS * (double)rounds;
}

#ifdef DT_ISA_avx512bf16
double DT_KERNEL(peak_bf16)(int64_t rounds)
{
    __m512 acc[CHAINS];
    __m512i x = _mm512_set1_epi32(0x3f003f00); /* pairs of 0.5 */
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm512_setzero_ps();
    for (int64_t n = 0; n < rounds; n++) {
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) {
            acc[c] = _mm512_dpbf16_ps(acc[c], (__m512bh)x, (__m512bh)x);
            OPAQUE(acc[c]);
        }
    }
    return 4.0 * GV * CHAINS * (double)rounds;
}
#endif
