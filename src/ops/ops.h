/* Kernels: everything that reads or writes through a tensor pointer on the path of a step.
 *
 * A *kernel set* is a table of functions, one per operation. Sets are ordered: avx512bf16, avx512,
 * avx2, portable, reference; the first whose instructions this CPU has runs, any can be forced by
 * name. `reference` is plain scalar C: it is the definition, and tests hold every other set to it,
 * by value and by finite differences. Elementwise kernels, norms, casts and AdamW give the same
 * bits in every set; GEMM and attention bits are claimed per set.
 *
 * Every function is called from one thread and opens the OpenMP team itself (one team for
 * everything, dt_ops_set_threads; dt_ops_serial keeps a second thread away from it). Results do not
 * depend on the size of the team. Nothing here allocates: scratch comes from the caller, its size
 * from the functions beside the operation.
 *
 * Letters: T tokens (rows), C width, H heads, K kv heads, D head size, F feed-forward width,
 * V vocabulary. Matrices are row-major; `ld` counts elements between rows.
 */
#ifndef DT_OPS_OPS_H
#define DT_OPS_OPS_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- GEMM: C = op(A) · op(B) [+ add] [+ bias] ------------------------------------------------ */

struct dt_mat {
    const void *p;
    int64_t ld;
    enum dt_dtype dtype; /* DT_F32 or DT_BF16 */
    bool trans;          /* stored transposed: op(X) = Xᵀ */
};

struct dt_gemm {
    int64_t M, N, K;
    struct dt_mat a;  /* op(A): [M, K] */
    struct dt_mat b;  /* op(B): [K, N] */
    float *c;         /* [M, N] or, with c_bf16, NULL */
    uint16_t *c_bf16; /* [M, N] rounded to bf16 (nearest even) instead of c, or NULL */
    int64_t ldc;
    const float *add; /* [M, N] added to the product, may equal c; or NULL */
    int64_t ldadd;
    const float *bias;     /* [N] or NULL; added to every row after `add` */
    enum dt_dtype compute; /* DT_F32: strict. DT_BF16: fp32 operands are rounded to bf16 on packing,
                              products accumulate in fp32 */
    void *work;            /* dt_gemm_work_bytes() bytes, 64-byte aligned */
};
/* Every element of the result is a sum over K in one fixed order, whatever M, N, the row or column
 * offset and the number of threads are. */

/* Scratch that any GEMM of up to this size needs with the current team; grows with threads only. */
size_t dt_gemm_work_bytes(void);

/* ---- Attention over packed sequences ----------------------------------------------------------
 */

struct dt_attention {
    int64_t sequences;
    const int32_t *q_start; /* [sequences + 1] rows of q, o and lse of each sequence */
    const int32_t *k_start; /* [sequences + 1] rows of k and v; equal to q_start when training */
    /* Query i (from the sequence's first) sees keys j with j <= i + (keys - queries) and, with a
     * window > 0, j > i + (keys - queries) - window. */
    int64_t H, K, D;
    int64_t window; /* 0: none */
    float scale;    /* of the scores, usually 1/sqrt(D) */
    const float *q; /* row r, head h at q + r * ldq + h * D */
    const float *k; /* row r, kv head h at k + r * ldk + h * D */
    const float *v;
    int64_t ldq, ldk, ldv;
    float *o; /* [rows, H * D], ld = H * D */
    float
        *lse; /* [H, q rows of all sequences] log-sum-exp of the scaled scores; kept for backward */
    void *work; /* dt_attention_work_bytes(...) bytes, 64-byte aligned */
    /* backward only: */
    const float *d_o;    /* [rows, H * D] */
    float *dq, *dk, *dv; /* written (not added to) */
    int64_t ldd;         /* elements between rows of dq, dk and dv */
};
/* Linear in the length of the sequences; depends on the thread count and the shapes only.
 * q_rows: all query rows. Tiles count from a sequence's start. */
size_t dt_attention_work_bytes(int64_t H, int64_t K, int64_t D, int64_t q_rows);

/* ---- The rest -----------------------------------------------------------------------------------
 */

enum dt_act_kind { DT_ACT_SILU, DT_ACT_GELU_TANH, DT_ACT_GELU_ERF, DT_ACT_RELU, DT_ACT_QUICK_GELU };

struct dt_norm {
    int64_t rows, cols;
    int64_t groups; /* vectors of `cols` per row: 1, or heads for QK norm */
    const float *x; /* vector g of row r at x + r * ldx + g * cols */
    int64_t ldx;
    const float *w; /* [cols] */
    const float *b; /* [cols], LayerNorm only, may be NULL */
    float *mean;    /* [rows * groups] LayerNorm; NULL: RMSNorm */
    float *rstd;    /* [rows * groups] 1 / sqrt(variance or mean square + eps) */
    float eps;
    /* forward: exactly one of y (fp32) and y_bf16 */
    float *y;
    uint16_t *y_bf16;
    int64_t ldy; /* same layout rule as x */
    /* backward */
    const float *dy; /* ld = ldy */
    float *dx;       /* ld = lddx; added to when add_dx, else written; may equal dy */
    int64_t lddx;
    bool add_dx;
    float *dw, *db; /* [cols], added to; NULL when frozen */
};

struct dt_adamw {
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2; /* 1 - beta^step, computed once per step (DECIDE) */
    float grad_scale;   /* multiplies the raw gradient: clip factor / denominator */
};

#define DT_BLOCK 1024 /* elements; home cuts fall on block edges, norms are summed per block */

struct dt_u128 {
    uint64_t lo, hi;
}; /* fixed point, quantum 2^-80 */

/* What may be wrong with a fixed-point addend. */
enum { DT_FIXED_NONFINITE = 1, DT_FIXED_OVERFLOW = 2 };

struct dt_kernels {
    const char *name;
    const char *gemm_name; /* for banners: what multiplies fp32 and bf16 here */

    void (*gemm)(const struct dt_gemm *g);
    void (*attention_forward)(const struct dt_attention *a);
    void (*attention_backward)(const struct dt_attention *a);

    void (*norm_forward)(const struct dt_norm *n);
    /* uses x, w, mean, rstd, dy; LayerNorm when mean != NULL */
    void (*norm_backward)(const struct dt_norm *n);

    /* Rotate pairs (i, i + half) of the first 2 * half elements of each head; table: [positions, 2,
     * half] cos then sin. inverse: rotate back (the backward). In place, T rows of `heads` heads of
     * size D. */
    void (*rope)(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,
                 const int32_t *position, const float *table, bool inverse);

    /* h = act(g) * u when u, else act(g). [T, F] each, strides ldg (g and u) and ldh. Exactly one
     * of h, h_bf16. */
    void (*act_forward)(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,
                        const float *g, const float *u, int64_t ldg, int64_t T, int64_t F);
    /* dg and du (NULL when ungated) from dh; dg and du have stride lddg; dg may equal g and du u.
     */
    void (*act_backward)(enum dt_act_kind kind, float *dg, float *du, int64_t lddg, const float *dh,
                         int64_t lddh, const float *g, const float *u, int64_t ldg, int64_t T,
                         int64_t F);

    /* x[t] = E[id[t]] (+ P[position[t]] when P). E: [V, C] */
    void (*embed_forward)(float *x, const float *E, const float *P, const int32_t *id,
                          const int32_t *position, int64_t T, int64_t C);
    /* dE[id[t]] += dx[t], tokens in order; dP likewise; either may be NULL */
    void (*embed_backward)(float *dE, float *dP, const float *dx, const int32_t *id,
                           const int32_t *position, int64_t T, int64_t C);

    /* Rows of logits [T, V] become the gradient of the summed loss: softmax - onehot(target), zero
     * where target < 0 (row does not train). loss[t] = -log softmax[target] (0 where target < 0),
     * in double. keep_logits: leave the logits as they are (evaluation). */
    void (*loss)(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,
                 int64_t V, bool keep_logits);

    /* Σ of loss[0..n) in order, in double. */
    double (*sum)(const double *x, int64_t n);

    /* db[n] += Σ_t dy[t, n], rows in order */
    void (*bias_backward)(float *db, const float *dy, int64_t ld, int64_t T, int64_t N);

    /* y[i] += x[i] over a [rows, cols] box */
    void (*add)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols);
    /* Copy a [rows, cols] box, converting between F32, BF16 and F16 (round to nearest even). */
    void (*copy)(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,
                 enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols);
    void (*zero)(void *p, size_t bytes);
    /* p[i] = normal(key, first + i) * std: elements [first, first + n) of a tensor have the bits
     * that filling it whole gives them. Zeros when std == 0. */
    void (*fill_normal)(float *p, int64_t n, int64_t first, uint64_t seed, uint64_t tensor,
                        float std);
    void (*fill)(float *p, int64_t n, float value);

    /* AdamW (Loshchilov & Hutter 2019; decoupled decay), all fp32, in this order of operations, no
     * fma: g = grad * grad_scale m = beta1 * m + (1 - beta1) * g          v = beta2 * v + ((1 -
     * beta2) * g) * g w = w - lr * weight_decay * w            (as w * (1 - lr * wd), factor
     * computed once) w = w - (lr / bias1) * m / (sqrt(v) / sqrt(bias2) + eps)      (factors
     * computed once, in fp32)   */
    void (*adamw)(float *w, float *m, float *v, const float *grad, int64_t n,
                  const struct dt_adamw *p);

    /* Σ over blocks of DT_BLOCK elements of g (the last one short): each block's Σg² in double in
     * fixed order, times 2^scale_log2, to fixed point of quantum 2^-80, added modulo 2^128 into
     * *sum. Returns false when a block's value is not finite or out of range (docs/numerics.md).
     * Parallel; order does not matter. */
    bool (*block_norms)(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum);

    /* ---- `reduction: exact`: gradients as 64-bit fixed point of quantum 2^-scale ----
     *
     * An addend g becomes a = rint(ldexp(g, scale)) and is added modulo 2^64. *flags gains
     * DT_FIXED_NONFINITE where g is not finite, else DT_FIXED_OVERFLOW where |a| >= 2^limit_log2;
     * such an addend counts as 0. |scale| <= 126, 1 <= limit_log2 <= 62. */

    /* acc += the addends g, over a [rows, cols] box */
    void (*fixed_add)(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,
                      int64_t cols, int scale, int limit_log2, int *flags);
    /* acc[i] += x[i], modulo 2^64 */
    void (*fixed_sum)(int64_t *acc, const int64_t *x, int64_t n);
    /* g[i] = acc[i] · 2^-scale / divide, in double and rounded once to float */
    void (*fixed_get)(float *g, const int64_t *acc, int64_t n, int scale, double divide);
    /* embed_backward with one addend a token: dE[id[t]] += dx[t], dP[position[t]] += dx[t] */
    void (*embed_backward_fixed)(int64_t *dE, int64_t *dP, const float *dx, const int32_t *id,
                                 const int32_t *position, int64_t T, int64_t C, int scale,
                                 int limit_log2, int *flags);
};

/* The set in use. Select before the first kernel runs; not thread-safe. */
extern const struct dt_kernels *dt_k;

/* "auto" or a set's name. DT_E_UNSUPPORTED with the sets this CPU can run when it cannot be. */
int dt_kernels_select(const char *name);
const struct dt_kernels *dt_kernels_find(const char *name); /* NULL: unknown or not runnable here */
void dt_ops_set_threads(int threads); /* size of the one OpenMP team; opens it */
void dt_ops_assume_threads(int threads); /* for sizes only: opens nothing */
int dt_ops_threads(void);             /* of the calling thread: 1 while it is serial */
/* While on, kernels that the calling thread calls run on it alone and leave the team to others. The
 * communication thread adds gradients so while the team computes. */
void dt_ops_serial(bool on);

/* Measured peak of this machine in GFLOP/s with the current team: registers only, 512-bit (or the
 * widest here) FMA (DT_F32), or the better of that and the bf16 dot product (DT_BF16). Takes
 * `seconds`. */
double dt_ops_peak_gflops(enum dt_dtype compute, double seconds);

#endif
