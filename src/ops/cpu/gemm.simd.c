/* The kernels of the matrix multiplication: a tile of C, MR rows by NV registers, stays in
 * registers while a block of K passes by; every step of k reads one row of a panel of packed B and
 * MR single elements of A. A tile of 8 x 48 needs 11 loads for 24 multiply-adds, so that the two
 * load ports never hold up the two multipliers.
 *
 * Each element is one chain of multiply-adds over k in index order, whichever tile it falls in, so
 * its bits depend on K alone. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

#if defined(DT_ISA_avx512) || defined(DT_ISA_avx512bf16)
#include <immintrin.h>
#define GV 16 /* floats of a register */
enum { MR = 8, NV = 3 };
#elif defined(DT_ISA_avx2)
#include <immintrin.h>
#define GV 8
enum { MR = 6, NV = 2 };
#else
#define GV 4
enum { MR = 4, NV = 2 };
#endif
enum { NR = NV * GV };

typedef float gv __attribute__((vector_size(GV * 4)));
typedef float gv_any __attribute__((vector_size(GV * 4), aligned(4), may_alias));
typedef uint32_t gu __attribute__((vector_size(GV * 4)));
typedef int32_t gi __attribute__((vector_size(GV * 4)));
typedef uint16_t gh __attribute__((vector_size(GV * 2)));
typedef uint16_t gh_any __attribute__((vector_size(GV * 2), aligned(2), may_alias));

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

VINLINE gv spread(float x)
{
#if GV == 16
    return (gv)_mm512_set1_ps(x);
#elif GV == 8
    return (gv)_mm256_set1_ps(x);
#else
    return (gv){x, x, x, x};
#endif
}

VINLINE gv load(const float *p)
{
    return *(const gv_any *)p;
}

VINLINE void store_bf16(uint16_t *p, gv x)
{
    gu u = (gu)x;
    gu r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    gu is_nan = (gu)(gi)(x != x);
    r = (is_nan & (u >> 16 | 0x40u)) | (~is_nan & r);
    *(gh_any *)p = __builtin_convertvector(r, gh);
}

/* ---- What happens to a finished tile ----------------------------------------------------------
 */

VINLINE void finish_vector(const struct dt_gemm_block *x, gv y, int64_t row, int64_t col)
{
    if (x->in)
        y = y + load(x->in + row * x->ldin + col);
    if (x->bias)
        y = y + load(x->bias + col);
    if (x->c)
        *(gv_any *)(x->c + row * x->ldc + col) = y;
    else
        store_bf16(x->c_bf16 + row * x->ldc + col, y);
}

/* The same sums for one element */
static void finish_element(const struct dt_gemm_block *x, float y, int64_t row, int64_t col)
{
    if (x->in)
        y += x->in[row * x->ldin + col];
    if (x->bias)
        y += x->bias[col];
    if (x->c)
        x->c[row * x->ldc + col] = y;
    else
        x->c_bf16[row * x->ldc + col] = bf16_round(y);
}

/* A tile that lies on the edge of the block: sums [mr, NR], of which `cols` columns count */
static __attribute__((noinline)) void finish_cut(const struct dt_gemm_block *x, int mr,
                                                 int64_t cols, const float *sums, int64_t i,
                                                 int64_t j)
{
    for (int r = 0; r < mr; r++) {
        int64_t c = 0;
        for (; c + GV <= cols; c += GV)
            finish_vector(x, load(sums + r * NR + c), i + r, j + c);
        for (; c < cols; c++)
            finish_element(x, sums[r * NR + c], i + r, j + c);
    }
}

VINLINE void finish(const struct dt_gemm_block *x, const int mr, const int nv, gv acc[MR][NV],
                    int64_t i, int64_t j)
{
    int64_t cols = x->cols - j;
    if (mr == MR && nv == NV && cols >= NR) {
#pragma GCC unroll 8
        for (int r = 0; r < mr; r++)
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++)
                finish_vector(x, acc[r][v], i + r, j + v * GV);
        return;
    }
    float sums[MR * NR];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            *(gv_any *)(sums + r * NR + v * GV) = acc[r][v];
    finish_cut(x, mr, cols < nv * GV ? cols : nv * GV, sums, i, j);
}

/* ---- Prefetching -------------------------------------------------------------------------------
 */

/* What a tile asks for while it computes, spread evenly over its steps, since many at once would
 * hold up the tile's own loads: the lines of C that it will write, and `rows` stretches of memory
 * that a later tile will read, `ld` bytes apart. */
enum { SEGMENTS = 8 }; /* of a tile's way through K */

struct ahead {
    const char *p;
    int64_t rows; /* divides SEGMENTS */
    int64_t ld, bytes;
};

VINLINE const char *ahead_of_segment(const struct ahead *ahead, int64_t s)
{
    int64_t parts = SEGMENTS / ahead->rows;
    return ahead->p + s / parts * ahead->ld + s % parts * (ahead->bytes / parts);
}

/* The way through the memory that the next block will be packed from: `each` lines a segment. */
struct cursor {
    const char *row;
    int64_t ld, rows, line, lines, each;
};

static struct cursor cursor_begin(const struct dt_gemm_block *x)
{
    struct cursor c = {
        x->next, x->next_ld, x->next ? x->next_rows : 0, 0, (x->next_bytes + 63) / 64, 0};
    int64_t tiles = ((x->rows + MR - 1) / MR) * ((x->cols + NR - 1) / NR);
    c.each = c.rows * c.lines / (tiles * SEGMENTS) + 1;
    return c;
}

VINLINE void cursor_move(struct cursor *c)
{
    for (int64_t n = 0; n < c->each && c->rows > 0; n++) {
        __builtin_prefetch(c->row + c->line * 64, 0, 2);
        if (++c->line == c->lines) {
            c->line = 0;
            c->row += c->ld;
            c->rows--;
        }
    }
}

VINLINE void prefetch_c(const struct dt_gemm_block *x, const int nv, int64_t i, int64_t j)
{
    if (!x->c)
        return;
    const float *c = x->c + i * x->ldc + j;
    for (int v = 0; v < nv; v++)
        __builtin_prefetch(c + v * GV, 1, 3);
    __builtin_prefetch(c + nv * GV - 1, 1, 3);
}

/* ---- A tile ------------------------------------------------------------------------------------
 */

/* One step takes four bytes of every row of A: an fp32 element, or with `dot` a pair of bf16. */
VINLINE gv multiply(const bool dot, float a, gv b, gv acc)
{
#ifdef DT_ISA_avx512bf16
    if (dot)
        return (gv)_mm512_dpbf16_ps((__m512)acc, (__m512bh)spread(a), (__m512bh)b);
#endif
    (void)dot;
    return multiply_add(spread(a), b, acc);
}

VINLINE float four_bytes(const char *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

VINLINE void step(const bool dot, const int mr, const int nv, gv acc[MR][NV], const char *a,
                  int64_t lda, const float *b)
{
    gv row[NV];
#pragma GCC unroll 3
    for (int v = 0; v < nv; v++)
        row[v] = load(b + v * GV);
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        float x = four_bytes(a + r * lda);
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            acc[r][v] = multiply(dot, x, row[v], acc[r][v]);
    }
}

/* An odd K leaves half a pair; packed B has zeros beside it, and A need not go on. */
VINLINE void half_step(const int mr, const int nv, gv acc[MR][NV], const char *a, int64_t lda,
                       const float *b)
{
    for (int r = 0; r < mr; r++) {
        char pair[4] = {0};
        memcpy(pair, a + r * lda, 2);
        for (int v = 0; v < nv; v++)
            acc[r][v] = multiply(true, four_bytes(pair), load(b + v * GV), acc[r][v]);
    }
}

VINLINE void tile(const bool dot, const struct dt_gemm_block *x, const int mr, const int nv,
                  int64_t i, int64_t j, const struct ahead *ahead, struct cursor *cursor)
{
    int64_t lda = x->lda * (dot ? 2 : 4), steps = dot ? x->kc / 2 : x->kc, k = 0;
    const char *a = (const char *)x->a + i * lda;
    const float *b = (const float *)x->b + j * (dot ? (x->kc + 1) / 2 : x->kc);
    gv acc[MR][NV];
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            acc[r][v] = (gv){0};
    for (int64_t n = 0; n < SEGMENTS; n++) {
        int64_t end = (steps * (n + 1) / SEGMENTS) & ~(int64_t)3;
        const char *p = ahead_of_segment(ahead, n);
        int64_t stride = ahead->bytes * ahead->rows * 4 / x->kc * (dot ? 2 : 1);
        if (n < mr)
            prefetch_c(x, nv, i + n, j);
        cursor_move(cursor);
        for (; k < end; k += 4) {
            __builtin_prefetch(p, 0, 2);
            p += stride;
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++)
                step(dot, mr, nv, acc, a + 4 * (k + u), lda, b + (k + u) * NR);
        }
    }
    for (; k < steps; k++)
        step(dot, mr, nv, acc, a + 4 * k, lda, b + k * NR);
    if (dot && (x->kc & 1))
        half_step(mr, nv, acc, a + 4 * k, lda, b + k * NR);
    finish(x, mr, nv, acc, i, j);
}

/* ---- A block -----------------------------------------------------------------------------------
 */

/* While the tiles of a row of panels are computed, the rows of A of the next row; while those down
 * a panel are, the next panel. Past the block's end there is nothing, and a prefetch does no harm.
 */
VINLINE struct ahead look_ahead(const struct dt_gemm_block *x, int64_t element, int64_t i,
                                int64_t j)
{
    int64_t row_bytes = x->kc * element;
    if (x->panel_outer) {
        int64_t tiles = (x->rows + MR - 1) / MR, each = NR * row_bytes / tiles;
        return (struct ahead){(const char *)x->b + (j + NR) * row_bytes + i / MR * each, 1, 0,
                              each};
    }
    int64_t tiles = (x->cols + NR - 1) / NR, rows = tiles < 2   ? 8
                                                    : tiles < 4 ? 4
                                                    : tiles < 8 ? 2
                                                                : 1;
    int64_t row = i + MR + j / NR * rows;
    return (struct ahead){(const char *)x->a + row * x->lda * element, rows, x->lda * element,
                          row_bytes};
}

/* What is left at a block's edges goes in tiles of 8 (MR), 4 or 1 rows and as many registers as
 * needed. */
VINLINE void edge_rows(const bool dot, const struct dt_gemm_block *x, const int nv, int64_t i,
                       int64_t j, struct cursor *cursor)
{
    static const struct ahead none = {.rows = 1};
    int64_t end = x->rows - i < MR ? x->rows : i + MR;
    if (end - i == MR && nv < NV) {
        tile(dot, x, MR, nv, i, j, &none, cursor);
        return;
    }
    for (; end - i >= 4; i += 4)
        tile(dot, x, 4, nv, i, j, &none, cursor);
    for (; i < end; i++)
        tile(dot, x, 1, nv, i, j, &none, cursor);
}

VINLINE void edge(const bool dot, const struct dt_gemm_block *x, int64_t i, int64_t j,
                  struct cursor *cursor)
{
    int64_t cols = x->cols - j;
    if (cols > 2 * GV && NV == 3)
        edge_rows(dot, x, NV, i, j, cursor);
    else if (cols > GV)
        edge_rows(dot, x, 2, i, j, cursor);
    else
        edge_rows(dot, x, 1, i, j, cursor);
}

typedef void tile_fn(const struct dt_gemm_block *x, int64_t i, int64_t j, struct cursor *cursor);

VINLINE void block(const struct dt_gemm_block *x, tile_fn *whole, tile_fn *cut)
{
    struct cursor cursor = cursor_begin(x);
    int64_t down = (x->rows + MR - 1) / MR, across = (x->cols + NR - 1) / NR;
    for (int64_t n = 0; n < down * across; n++) {
        int64_t i = (x->panel_outer ? n % down : n / across) * MR;
        int64_t j = (x->panel_outer ? n / down : n % across) * NR;
        if (x->rows - i >= MR && x->cols - j > NR - GV)
            whole(x, i, j, &cursor);
        else
            cut(x, i, j, &cursor);
    }
}

static __attribute__((noinline)) void whole_f32(const struct dt_gemm_block *x, int64_t i, int64_t j,
                                                struct cursor *cursor)
{
    struct ahead ahead = look_ahead(x, 4, i, j);
    tile(false, x, MR, NV, i, j, &ahead, cursor);
}

static __attribute__((noinline)) void cut_f32(const struct dt_gemm_block *x, int64_t i, int64_t j,
                                              struct cursor *cursor)
{
    edge(false, x, i, j, cursor);
}

static void block_f32(const struct dt_gemm_block *x)
{
    block(x, whole_f32, cut_f32);
}

static const struct dt_gemm_set set_f32 = {
    MR, NR, 4, block_f32, DT_KERNEL(gemm_pack_a), DT_KERNEL(gemm_pack_b),
};

#ifdef DT_ISA_avx512bf16
static __attribute__((noinline)) void whole_bf16(const struct dt_gemm_block *x, int64_t i,
                                                 int64_t j, struct cursor *cursor)
{
    struct ahead ahead = look_ahead(x, 2, i, j);
    tile(true, x, MR, NV, i, j, &ahead, cursor);
}

static __attribute__((noinline)) void cut_bf16(const struct dt_gemm_block *x, int64_t i, int64_t j,
                                               struct cursor *cursor)
{
    edge(true, x, i, j, cursor);
}

static void block_bf16(const struct dt_gemm_block *x)
{
    block(x, whole_bf16, cut_bf16);
}

static const struct dt_gemm_set set_bf16 = {
    MR, NR, 2, block_bf16, DT_KERNEL(gemm_pack_a16), DT_KERNEL(gemm_pack_b16),
};
#endif

void DT_KERNEL(gemm)(const struct dt_gemm *g)
{
#ifdef DT_ISA_avx512bf16
    if (g->compute == DT_BF16) {
        dt_gemm_run(g, &set_bf16);
        return;
    }
#endif
    dt_gemm_run(g, &set_f32);
}
