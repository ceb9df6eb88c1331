/* Packing: a box of an operand is copied, or transposed in registers, to where the kernels read it,
 * and converted on the way: bf16 widened, or fp32 rounded to bf16 values (nearest even).
 *
 * Rounding keeps denormals in every set but avx512bf16 with compute bf16: the instruction that
 * rounds there takes them as zero. GEMM bits are claimed per set, so that is allowed. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

#if defined(DT_ISA_avx512) || defined(DT_ISA_avx512bf16)
#include <immintrin.h>
#define GV 16 /* floats of a register, and side of a block that is transposed in registers */
#elif defined(DT_ISA_avx2)
#include <immintrin.h>
#define GV 8
#else
#define GV 4
#endif

typedef float gv __attribute__((vector_size(GV * 4)));
typedef float gv_any __attribute__((vector_size(GV * 4), aligned(4), may_alias));
typedef uint32_t gu __attribute__((vector_size(GV * 4)));
typedef int32_t gi __attribute__((vector_size(GV * 4)));
typedef uint16_t gh_any __attribute__((vector_size(GV * 2), aligned(2), may_alias));

enum { NR = GV == 16 ? 48 : 2 * GV };

/* ---- Transposing GV vectors of GV floats in place ----------------------------------------------
 */

#if GV == 16
VINLINE void transpose(gv r[GV])
{
    __m512 t[16], u[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps((__m512)r[i], (__m512)r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps((__m512)r[i], (__m512)r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    /* u[4g + j]: lane l holds column 4l + j of rows 4g .. 4g+3 */
#pragma GCC unroll 16
    for (int j = 0; j < 4; j++) {
        __m512 p = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x44);
        __m512 q = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x44);
        __m512 s = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xee);
        __m512 v = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xee);
        r[j] = (gv)_mm512_shuffle_f32x4(p, q, 0x88);
        r[4 + j] = (gv)_mm512_shuffle_f32x4(p, q, 0xdd);
        r[8 + j] = (gv)_mm512_shuffle_f32x4(s, v, 0x88);
        r[12 + j] = (gv)_mm512_shuffle_f32x4(s, v, 0xdd);
    }
}
#elif GV == 8
VINLINE void transpose(gv r[GV])
{
    __m256 t[8], u[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4; j++) {
        r[j] = (gv)_mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
        r[4 + j] = (gv)_mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
    }
}
#else
VINLINE void transpose(gv r[GV])
{
    gv a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    gv b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    gv c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    gv d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}
#endif

/* ---- fp32 panels
 * ---------------------------------------------------------------------------------- */

enum kind { COPY, ROUND, WIDEN };

VINLINE gv rounded(gv x)
{
    gu u = (gu)x;
    gu r = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    gu nan = (u & 0xffff0000u) | 0x400000u;
    gu is_nan = (gu)(gi)(x != x);
    return (gv)((is_nan & nan) | (~is_nan & r));
}

/* n <= GV elements from element `at` on; the missing ones are zeros. */
VINLINE gv load(const enum kind kind, const void *p, int64_t at, int64_t n)
{
    if (kind == WIDEN) {
        gh_any h = {0};
        if (n == GV)
            h = *(const gh_any *)((const uint16_t *)p + at);
        else
            memcpy(&h, (const uint16_t *)p + at, (size_t)n * 2);
        return (gv)(__builtin_convertvector(h, gu) << 16);
    }
    gv x = {0};
    if (n == GV)
        x = *(const gv_any *)((const float *)p + at);
    else
        memcpy(&x, (const float *)p + at, (size_t)n * 4);
    return kind == ROUND ? rounded(x) : x;
}

VINLINE void store(float *p, gv x, int64_t n)
{
    if (n == GV)
        *(gv_any *)p = x;
    else
        memcpy(p, &x, (size_t)n * 4);
}

VINLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* dst[i][j] = box[i][j], zeros up to `width` columns */
VINLINE void copy(const enum kind kind, float *dst, int64_t ldd, const struct dt_gemm_box *x,
                  int64_t width)
{
    int64_t full = x->cols / GV * GV;
    for (int64_t i = 0; i < x->rows; i++, dst += ldd) {
        int64_t j = 0, at = i * x->ld;
        for (; j + 3 * GV <= full; j += 3 * GV) {
            gv a = load(kind, x->p, at + j, GV), b = load(kind, x->p, at + j + GV, GV);
            gv c = load(kind, x->p, at + j + 2 * GV, GV);
            store(dst + j, a, GV);
            store(dst + j + GV, b, GV);
            store(dst + j + 2 * GV, c, GV);
        }
        for (; j < full; j += GV)
            store(dst + j, load(kind, x->p, at + j, GV), GV);
        for (; j < width; j += GV) {
            int64_t n = x->cols - j;
            store(dst + j, n > 0 ? load(kind, x->p, at + j, n) : (gv){0}, least(GV, width - j));
        }
    }
}

/* A block of `turn` at box[i][j]. Reads and writes go from row to row, where the processor does not
 * see by itself what comes next: the same columns of the next rows of the box, and the next line of
 * each row of dst unless these lie close together, in a panel. (Past an operand's end a prefetch
 * does no harm.) */
VINLINE void turn_block(const enum kind kind, float *dst, int64_t ldd, const struct dt_gemm_box *x,
                        int64_t i, int64_t j, int64_t width, const bool panel)
{
    int64_t w = least(GV, width - i), rows = least(w, x->rows - i), n = least(GV, x->cols - j);
    gv r[GV];
    dst += j * ldd + i;
    if (rows < GV || n < GV) {
        for (int k = 0; k < GV; k++)
            r[k] = k < rows ? load(kind, x->p, (i + k) * x->ld + j, n) : (gv){0};
        transpose(r);
        for (int k = 0; k < n; k++)
            store(dst + k * ldd, r[k], w);
        return;
    }
#pragma GCC unroll 16
    for (int k = 0; k < GV; k++) {
        int64_t at = (i + k) * x->ld + j;
        __builtin_prefetch((const char *)x->p + (at + GV * x->ld) * (kind == WIDEN ? 2 : 4), 0, 3);
        r[k] = load(kind, x->p, at, GV);
    }
    transpose(r);
#pragma GCC unroll 16
    for (int k = 0; k < GV; k++) {
        store(dst + k * ldd, r[k], GV);
        if (!panel)
            __builtin_prefetch(dst + k * ldd + GV, 1, 3);
    }
}

/* dst[j][i] = box[i][j], zeros up to `width` rows of the box */
VINLINE void turn(const enum kind kind, float *dst, int64_t ldd, const struct dt_gemm_box *x,
                  int64_t width, const bool panel)
{
    for (int64_t i = 0; i < width; i += GV)
        for (int64_t j = 0; j < x->cols; j += GV)
            turn_block(kind, dst, ldd, x, i, j, width, panel);
}

VINLINE void pack(float *dst, int64_t ldd, const struct dt_gemm_box *x, bool trans, int64_t width,
                  const bool panel)
{
    if (x->dtype == DT_BF16 && trans)
        turn(WIDEN, dst, ldd, x, width, panel);
    else if (x->dtype == DT_BF16)
        copy(WIDEN, dst, ldd, x, width);
    else if (x->round && trans)
        turn(ROUND, dst, ldd, x, width, panel);
    else if (x->round)
        copy(ROUND, dst, ldd, x, width);
    else if (trans)
        turn(COPY, dst, ldd, x, width, panel);
    else
        copy(COPY, dst, ldd, x, width);
}

void DT_KERNEL(gemm_pack_a)(void *dst, int64_t ldd, const struct dt_gemm_box *box, bool trans)
{
    pack(dst, ldd, box, trans, trans ? box->rows : box->cols, false);
}

void DT_KERNEL(gemm_pack_b)(void *dst, const struct dt_gemm_box *box, bool trans)
{
    pack(dst, NR, box, trans, NR, true);
}

/* ---- bf16 pairs
 * ----------------------------------------------------------------------------------- */

#ifdef DT_ISA_avx512bf16

VINLINE __mmask16 first(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

/* n <= 32 elements of one row as 16 pairs */
VINLINE __m512i along(bool wide, const void *p, int64_t at, int64_t n)
{
    if (!wide)
        return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : (1u << n) - 1,
                                        (const uint16_t *)p + at);
    const float *f = (const float *)p + at;
    __m512 lo = _mm512_maskz_loadu_ps(first(n), f);
    __m512 hi = _mm512_maskz_loadu_ps(first(n - 16), f + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

/* Pairs of n <= 16 elements of a row and of the row below it (zeros if there is none) */
VINLINE __m512i across(bool wide, const void *p, int64_t at, int64_t below, int64_t n)
{
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both;
    if (wide) {
        __m512 lo = _mm512_maskz_loadu_ps(first(n), (const float *)p + at);
        __m512 hi = below < 0 ? _mm512_setzero_ps()
                              : _mm512_maskz_loadu_ps(first(n), (const float *)p + below);
        both = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    } else {
        __m256i lo = _mm256_maskz_loadu_epi16(first(n), (const uint16_t *)p + at);
        __m256i hi = below < 0 ? _mm256_setzero_si256()
                               : _mm256_maskz_loadu_epi16(first(n), (const uint16_t *)p + below);
        both = _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
    }
    return _mm512_permutexvar_epi16(zip, both);
}

/* dst[i][pair] from rows of the box: A as it lies */
VINLINE void copy_along(bool wide, uint16_t *dst, int64_t ldd, const struct dt_gemm_box *x)
{
    for (int64_t i = 0; i < x->rows; i++)
        for (int64_t j = 0; j < x->cols; j += 32) {
            int64_t n = least(32, x->cols - j), even = (n + 1) & ~(int64_t)1;
            __mmask32 m = even == 32 ? 0xffffffffu : (1u << even) - 1;
            _mm512_mask_storeu_epi16(dst + i * ldd + j, m, along(wide, x->p, i * x->ld + j, n));
        }
}

/* dst[pair][i] from rows of the box: a panel of transposed B */
VINLINE void turn_along(bool wide, uint32_t *dst, const struct dt_gemm_box *x)
{
    for (int64_t i = 0; i < NR; i += 16)
        for (int64_t j = 0; j < x->cols; j += 32) {
            int64_t n = least(32, x->cols - j), pairs = (n + 1) / 2, rows = x->rows - i;
            gv r[GV];
            if (rows >= 16 && n == 32) {
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++)
                    r[k] = (gv)along(wide, x->p, (i + k) * x->ld + j, 32);
            } else {
                for (int k = 0; k < 16; k++)
                    r[k] = k < rows ? (gv)along(wide, x->p, (i + k) * x->ld + j, n) : (gv){0};
            }
            transpose(r);
            uint32_t *d = dst + j / 2 * NR + i;
            if (pairs == 16) {
#pragma GCC unroll 16
                for (int k = 0; k < 16; k++)
                    _mm512_storeu_si512(d + k * NR, (__m512i)r[k]);
            } else {
                for (int k = 0; k < pairs; k++)
                    _mm512_storeu_si512(d + k * NR, (__m512i)r[k]);
            }
        }
}

/* dst[pair][j] from pairs of rows: a panel of plain B */
VINLINE void copy_across(bool wide, uint32_t *dst, const struct dt_gemm_box *x)
{
    for (int64_t i = 0; i < x->rows; i += 2)
        for (int64_t j = 0; j < NR; j += 16) {
            int64_t below = i + 1 < x->rows ? (i + 1) * x->ld + j : -1, n = x->cols - j;
            __m512i v = _mm512_setzero_si512();
            if (n > 0)
                v = across(wide, x->p, i * x->ld + j, below, n);
            _mm512_storeu_si512(dst + i / 2 * NR + j, v);
        }
}

/* dst[j][pair] from pairs of rows: transposed A */
VINLINE void turn_across(bool wide, uint16_t *dst, int64_t ldd, const struct dt_gemm_box *x)
{
    for (int64_t j = 0; j < x->cols; j += 16)
        for (int64_t i = 0; i < x->rows; i += 32) {
            int64_t n = least(16, x->cols - j), pairs = (least(32, x->rows - i) + 1) / 2;
            gv r[GV];
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++) {
                int64_t at = (i + 2 * k) * x->ld + j;
                int64_t below = i + 2 * k + 1 < x->rows ? at + x->ld : -1;
                r[k] = k < pairs ? (gv)across(wide, x->p, at, below, n) : (gv){0};
            }
            transpose(r);
            for (int k = 0; k < n; k++)
                _mm512_mask_storeu_epi32(dst + (j + k) * ldd + i, first(pairs), (__m512i)r[k]);
        }
}

void DT_KERNEL(gemm_pack_a16)(void *dst, int64_t ldd, const struct dt_gemm_box *box, bool trans)
{
    if (trans && box->dtype == DT_F32)
        turn_across(true, dst, ldd, box);
    else if (trans)
        turn_across(false, dst, ldd, box);
    else if (box->dtype == DT_F32)
        copy_along(true, dst, ldd, box);
    else
        copy_along(false, dst, ldd, box);
}

void DT_KERNEL(gemm_pack_b16)(void *dst, const struct dt_gemm_box *box, bool trans)
{
    if (trans && box->dtype == DT_F32)
        turn_along(true, dst, box);
    else if (trans)
        turn_along(false, dst, box);
    else if (box->dtype == DT_F32)
        copy_across(true, dst, box);
    else
        copy_across(false, dst, box);
}

#endif
