/* The kernel sets: their tables, and which of them this CPU can run.
 *
 * The symbols of a set are dt_OPERATION_SET; operations that are the same in every set (they are
 * one loop, or a sum in order) have one symbol. A set runs when the CPU has its instructions *and*
 * the operating system saves its registers. */
#include "ops/ops.h"

#include "base/error.h"

#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*     set         what multiplies fp32 and bf16; fastest first */
#define SETS(X)                                                                                    \
    X(avx512bf16, "packed, 512-bit fma and bf16 dot product")                                      \
    X(avx512, "packed, 512-bit fma")                                                               \
    X(avx2, "packed, 256-bit fma")                                                                 \
    X(portable, "packed, portable vectors")                                                        \
    X(reference, "plain loops")

double dt_sum(const double *x, int64_t n);
void dt_zero(void *p, size_t bytes);
void dt_fill_normal(float *p, int64_t n, int64_t first, uint64_t seed, uint64_t tensor, float std);
void dt_fill(float *p, int64_t n, float value);

#define DECLARE(set, gemm_text)                                                                    \
    void dt_gemm_##set(const struct dt_gemm *g);                                                   \
    void dt_attention_forward_##set(const struct dt_attention *a);                                 \
    void dt_attention_backward_##set(const struct dt_attention *a);                                \
    void dt_norm_forward_##set(const struct dt_norm *n);                                           \
    void dt_norm_backward_##set(const struct dt_norm *n);                                          \
    void dt_rope_##set(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,    \
                       const int32_t *position, const float *table, bool inverse);                 \
    void dt_act_forward_##set(enum dt_act_kind kind, float *h, uint16_t *h_bf16, int64_t ldh,      \
                              const float *g, const float *u, int64_t ldg, int64_t T, int64_t F);  \
    void dt_act_backward_##set(enum dt_act_kind kind, float *dg, float *du, int64_t lddg,          \
                               const float *dh, int64_t lddh, const float *g, const float *u,      \
                               int64_t ldg, int64_t T, int64_t F);                                 \
    void dt_embed_forward_##set(float *x, const float *E, const float *P, const int32_t *id,       \
                                const int32_t *position, int64_t T, int64_t C);                    \
    void dt_embed_backward_##set(float *dE, float *dP, const float *dx, const int32_t *id,         \
                                 const int32_t *position, int64_t T, int64_t C);                   \
    void dt_loss_##set(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,  \
                       int64_t V, bool keep_logits);                                               \
    void dt_bias_backward_##set(float *db, const float *dy, int64_t ld, int64_t T, int64_t N);     \
    void dt_add_##set(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows,            \
                      int64_t cols);                                                               \
    void dt_copy_##set(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,            \
                       enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols);           \
    void dt_adamw_##set(float *w, float *m, float *v, const float *grad, int64_t n,                \
                        const struct dt_adamw *p);                                                 \
    bool dt_block_norms_##set(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum);     \
    void dt_fixed_add_##set(int64_t *acc, int64_t lda, const float *g, int64_t ldg, int64_t rows,  \
                            int64_t cols, int scale, int limit_log2, int *flags);                  \
    void dt_fixed_sum_##set(int64_t *acc, const int64_t *x, int64_t n);                            \
    void dt_fixed_get_##set(float *g, const int64_t *acc, int64_t n, int scale, double divide);    \
    void dt_embed_backward_fixed_##set(int64_t *dE, int64_t *dP, const float *dx,                  \
                                       const int32_t *id, const int32_t *position, int64_t T,      \
                                       int64_t C, int scale, int limit_log2, int *flags);
SETS(DECLARE)

#define TABLE(set, gemm_text)                                                                      \
    static const struct dt_kernels kernels_##set = {                                               \
        .name = #set,                                                                              \
        .gemm_name = gemm_text,                                                                    \
        .gemm = dt_gemm_##set,                                                                     \
        .attention_forward = dt_attention_forward_##set,                                           \
        .attention_backward = dt_attention_backward_##set,                                         \
        .norm_forward = dt_norm_forward_##set,                                                     \
        .norm_backward = dt_norm_backward_##set,                                                   \
        .rope = dt_rope_##set,                                                                     \
        .act_forward = dt_act_forward_##set,                                                       \
        .act_backward = dt_act_backward_##set,                                                     \
        .embed_forward = dt_embed_forward_##set,                                                   \
        .embed_backward = dt_embed_backward_##set,                                                 \
        .loss = dt_loss_##set,                                                                     \
        .sum = dt_sum,                                                                             \
        .bias_backward = dt_bias_backward_##set,                                                   \
        .add = dt_add_##set,                                                                       \
        .copy = dt_copy_##set,                                                                     \
        .zero = dt_zero,                                                                           \
        .fill_normal = dt_fill_normal,                                                             \
        .fill = dt_fill,                                                                           \
        .adamw = dt_adamw_##set,                                                                   \
        .block_norms = dt_block_norms_##set,                                                       \
        .fixed_add = dt_fixed_add_##set,                                                           \
        .fixed_sum = dt_fixed_sum_##set,                                                           \
        .fixed_get = dt_fixed_get_##set,                                                           \
        .embed_backward_fixed = dt_embed_backward_fixed_##set,                                     \
    };
SETS(TABLE)

#define ENTRY(set, gemm_text) &kernels_##set,
static const struct dt_kernels *const sets[] = {SETS(ENTRY)};
enum { SET_COUNT = sizeof sets / sizeof *sets };

const struct dt_kernels *dt_k;

/* What the operating system saves on a task switch (XCR0). */
static uint64_t saved_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

struct cpu {
    bool avx2, avx512, avx512bf16; /* with everything the set of that name is compiled for */
};

static struct cpu detect(void)
{
    struct cpu cpu = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return cpu;
    const uint32_t leaf1 =
        1u << 12 /* fma */ | 1u << 27 /* osxsave */ | 1u << 28 /* avx */ | 1u << 29 /* f16c */;
    if ((c & leaf1) != leaf1 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return cpu;
    uint64_t saved = saved_state();
    cpu.avx2 = (saved & 0x6) == 0x6 && (b & 1u << 5);
    const uint32_t avx512 =
        1u << 16 /* f */ | 1u << 17 /* dq */ | 1u << 30 /* bw */ | 1u << 31 /* vl */;
    cpu.avx512 = cpu.avx2 && (saved & 0xe6) == 0xe6 && (b & avx512) == avx512;
    cpu.avx512bf16 =
        cpu.avx512 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
    return cpu;
}

static bool runnable(const struct dt_kernels *k)
{
    struct cpu cpu = detect();
    if (k == &kernels_avx512bf16)
        return cpu.avx512bf16;
    if (k == &kernels_avx512)
        return cpu.avx512;
    if (k == &kernels_avx2)
        return cpu.avx2;
    return true;
}

const struct dt_kernels *dt_kernels_find(const char *name)
{
    for (int i = 0; i < SET_COUNT; i++)
        if (strcmp(sets[i]->name, name) == 0)
            return runnable(sets[i]) ? sets[i] : NULL;
    return NULL;
}

/* What `auto` may take. vdpbf16ps does twice the work of an fp32 multiply-add; AMD's cores issue it
 * as often (Zen 5: 871 against 432 GFLOP/s on two cores), Intel's a quarter as often (Emerald
 * Rapids: 179 against 356). Decided by the maker and not by a stopwatch, so that a run that is
 * started again computes the same bits. */
static bool worthwhile(const struct dt_kernels *k)
{
    return k != &kernels_avx512bf16 || !__builtin_cpu_is("intel");
}

int dt_kernels_select(const char *name)
{
    const char *from = "";
    const char *forced = getenv("DUCTILE_KERNELS");
    if (strcmp(name, "auto") == 0 && forced && *forced) {
        name = forced;
        from = "DUCTILE_KERNELS: ";
    }
    char list[128] = "";
    for (int i = 0; i < SET_COUNT; i++) {
        if (!runnable(sets[i]))
            continue;
        if (strcmp(name, "auto") == 0 ? worthwhile(sets[i]) : strcmp(name, sets[i]->name) == 0) {
            dt_k = sets[i];
            return DT_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s ", sets[i]->name);
    }
    return DT_FAIL(DT_E_UNSUPPORTED,
                   "%skernel set '%.40s' does not run on this CPU; use one of: %sor auto", from,
                   name, list);
}
