/* One element at a time: what the reference kernels are written in, and the twins of simd.h's
 * vector functions. The twins do the same IEEE operations in the same order, so that a lane of a
 * vector and a scalar have equal bits; tests compare them. */
#ifndef DT_OPS_CPU_SCALAR_H
#define DT_OPS_CPU_SCALAR_H

#include <stdint.h>
#include <string.h>

#define DT_INLINE static inline __attribute__((always_inline, unused))

#define DT_LANES 16 /* running sums of a row: element i goes to lane i % 16 */
#define DT_CHUNK 64 /* rows that a sum over rows adds before it goes into the total */

DT_INLINE uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

DT_INLINE float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Widening a bf16 (its bits) is exact; rounding to it is to nearest even, NaN stays a quiet NaN. */
DT_INLINE uint16_t bf16_round(float f)
{
    uint32_t u = float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

DT_INLINE float bf16_widen(uint16_t h)
{
    return bits_float((uint32_t)h << 16);
}

/* IEEE half: 5 bits of exponent (bias 15), 10 of fraction. Exact; a NaN becomes quiet. */
DT_INLINE float f16_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31)
        return bits_float(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0) {
        float f = (float)fraction * 0x1p-24f;
        return bits_float(sign | float_bits(f));
    }
    return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

/* To nearest even; from 65520 on infinity; a NaN becomes quiet and keeps its upper bits. */
DT_INLINE uint16_t f16_round(float f)
{
    uint32_t u = float_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x33000000u) /* below half of the smallest denormal */
        return (uint16_t)sign;
    uint32_t exponent = a >> 23, mantissa = (a & 0x7fffffu) | 0x800000u;
    uint32_t drop = exponent < 113 ? 126 - exponent : 13; /* bits to lose: more for a denormal */
    uint32_t kept = mantissa >> drop, lost = mantissa & ((1u << drop) - 1), half = 1u << (drop - 1);
    kept += lost > half || (lost == half && (kept & 1));
    /* the leading one of a normal number adds 1 to the exponent field */
    return (uint16_t)(sign | (exponent < 113 ? kept : ((exponent - 113) << 10) + kept));
}

/* Twin of v_exp. */
DT_INLINE float s_exp(float x)
{
    const float lo = -87.33654f, hi = 88.72283f, magic = 12582912.0f;
    float z = x > lo ? x : lo;
    z = z < hi ? z : hi;
    float n = z * 1.44269504088896341f;
    float k = (n + magic) - magic;
    z = z - k * 0.693359375f;
    z = z - k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * z + 1.3981999507e-3f;
    p = p * z + 8.3334519073e-3f;
    p = p * z + 4.1665795894e-2f;
    p = p * z + 1.6666665459e-1f;
    p = p * z + 5.0000001201e-1f;
    p = p * z * z + z + 1.0f;
    int32_t e = (int32_t)k, e1 = e >> 1, e2 = e - e1;
    p = p * bits_float((uint32_t)(e1 + 127) << 23) * bits_float((uint32_t)(e2 + 127) << 23);
    p = x < lo ? 0.0f : p;
    p = x > hi ? __builtin_inff() : p;
    return x != x ? x : p;
}

/* Twin of v_sum: halves, quarters, ... */
DT_INLINE float s_tree(float lane[DT_LANES])
{
    for (int w = DT_LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

DT_INLINE double s_tree_double(double lane[DT_LANES])
{
    for (int w = DT_LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lane[i] += lane[i + w];
    return lane[0];
}

#endif
