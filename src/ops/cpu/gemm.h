/* What the driver of the matrix multiplication (gemm.c, compiled once) and the kernels (gemm.simd.c
 * and gemm_pack.simd.c, compiled once per set) know of each other.
 *
 * Packed B is a row of *panels* of nr columns; a panel is [kc][nr] floats, or [kc/2][nr] pairs of
 * bf16 (k even in the low half) for a set that multiplies bf16 itself. Packed A is row-major, like
 * A itself, so an A that needs neither transposing nor converting is used where it lies. */
#ifndef DT_OPS_CPU_GEMM_H
#define DT_OPS_CPU_GEMM_H

#include "ops/ops.h"

#define DT_GEMM_KC_BYTES                                                                           \
    4096 /* the most bytes of one row of A, or column of B, in a block of K                        \
          */

/* One block: `rows` x `cols` of C, a part of K. */
struct dt_gemm_block {
    const void *a; /* [rows, kc] */
    int64_t lda;
    const void *b; /* panels of [kc, nr] */
    int64_t kc;
    const float *in; /* [rows, cols] what the product is added to, or NULL: zero; may equal c */
    int64_t ldin;
    const float *bias; /* [cols] or NULL */
    float *c;          /* [rows, cols], or NULL */
    uint16_t *c_bf16;  /* [rows, cols] when c is NULL */
    int64_t ldc;
    int64_t rows, cols;
    bool panel_outer; /* keep a panel of B and walk the rows, instead of the reverse */
    const char
        *next;       /* memory that the block after this one will read, to be prefetched, or NULL */
    int64_t next_ld; /* bytes between its rows */
    int64_t next_rows;
    int64_t next_bytes; /* of a row */
};

/* A box of an operand to pack. */
struct dt_gemm_box {
    const void *p; /* first element of the box, stored [rows, cols] */
    int64_t ld;
    enum dt_dtype dtype;
    int64_t rows, cols;
    bool round; /* fp32 values become bf16 values */
};

struct dt_gemm_set {
    int64_t mr, nr;
    size_t element; /* bytes of an element as packed: 4, or 2 for bf16 pairs */
    void (*block)(const struct dt_gemm_block *x);
    /* dst is row-major with ldd elements a row. trans: dst[j][i] = box[i][j] */
    void (*pack_a)(void *dst, int64_t ldd, const struct dt_gemm_box *box, bool trans);
    /* One panel; the box is [kc, cols <= nr], or with trans [cols, kc]. Missing columns become
     * zeros. */
    void (*pack_b)(void *dst, const struct dt_gemm_box *box, bool trans);
};

/* The one driver of all packed sets. */
void dt_gemm_run(const struct dt_gemm *g, const struct dt_gemm_set *set);

void dt_gemm_reference(const struct dt_gemm *g);
void dt_gemm_portable(const struct dt_gemm *g);
void dt_gemm_avx2(const struct dt_gemm *g);
void dt_gemm_avx512(const struct dt_gemm *g);
void dt_gemm_avx512bf16(const struct dt_gemm *g);

/* gemm_pack.simd.c; the names with the set's suffix */
#define DT_GEMM_PACK_DECLARE(set)                                                                  \
    void dt_gemm_pack_a_##set(void *dst, int64_t ldd, const struct dt_gemm_box *box, bool trans);  \
    void dt_gemm_pack_b_##set(void *dst, const struct dt_gemm_box *box, bool trans);
DT_GEMM_PACK_DECLARE(portable)
DT_GEMM_PACK_DECLARE(avx2)
DT_GEMM_PACK_DECLARE(avx512)
DT_GEMM_PACK_DECLARE(avx512bf16)
void dt_gemm_pack_a16_avx512bf16(void *dst, int64_t ldd, const struct dt_gemm_box *box, bool trans);
void dt_gemm_pack_b16_avx512bf16(void *dst, const struct dt_gemm_box *box, bool trans);

#endif
