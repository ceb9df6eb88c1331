/* Speed of attention, forward and backward: GFLOP/s of the pairs that are not masked out (2
 * products of 2 D flops a pair forward, 5 backward), and what part of the machine's register-only
 * peak that is.
 *
 *     bench/attention [--threads N] [--set NAME] [--seconds S]
 *
 * Each shape runs over and over for S seconds; the best round counts, and the peak is measured
 * between shapes, so that both saw the same machine. One JSON line. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    const char *name;
    int sequences;
    int32_t length;
    int64_t H, K, D, window;
};

static const struct shape shapes[] = {
    {"gpt2 4x256", 4, 256, 12, 12, 64, 0},      {"gpt2 4x1024", 4, 1024, 12, 12, 64, 0},
    {"gpt2 8x512", 8, 512, 12, 12, 64, 0},      {"llama 2x1024", 2, 1024, 16, 4, 128, 0},
    {"llama 16x64", 16, 64, 9, 3, 64, 0},       {"long 1x16384", 1, 16384, 2, 1, 64, 0},
    {"window 1x8192", 1, 8192, 4, 4, 64, 1024}, {"phi 2x512", 2, 512, 8, 8, 80, 0},
};

enum { MOST = 16 };

static struct dt_attention layout(const struct shape *s, struct dt_arena *m, int32_t *start)
{
    int64_t rows = (int64_t)s->sequences * s->length, width = (s->H + 2 * s->K) * s->D;
    for (int i = 0; i <= s->sequences; i++)
        start[i] = i * s->length;
    size_t wide = (size_t)(rows * width) * sizeof(float),
           narrow = (size_t)(rows * s->H * s->D) * sizeof(float);
    float *qkv = dt_arena_reserve(m, wide), *grad = dt_arena_reserve(m, wide); /* [rows, q k v] */
    struct dt_attention a = {.sequences = s->sequences,
                             .q_start = start,
                             .k_start = start,
                             .H = s->H,
                             .K = s->K,
                             .D = s->D,
                             .window = s->window,
                             .scale = 1 / sqrtf((float)s->D),
                             .ldq = width,
                             .ldk = width,
                             .ldv = width,
                             .ldd = width};
    a.o = dt_arena_reserve(m, narrow);
    float *d_o = dt_arena_reserve(m, narrow);
    a.lse = dt_arena_reserve(m, (size_t)(s->H * rows) * sizeof(float));
    a.work = dt_arena_reserve(m, dt_attention_work_bytes(s->H, s->K, s->D, rows));
    if (!m->base)
        return a;
    struct dt_rng_key key = {1, DT_RNG_INIT, 0, 0};
    for (int64_t i = 0; i < rows * width; i++)
        qkv[i] = dt_rng_normal(key, (uint64_t)i % 100003);
    for (int64_t i = 0; i < rows * s->H * s->D; i++)
        d_o[i] = dt_rng_normal(key, (uint64_t)i % 100019);
    a.q = qkv;
    a.k = qkv + s->H * s->D;
    a.v = qkv + (s->H + s->K) * s->D;
    a.d_o = d_o;
    a.dq = grad;
    a.dk = grad + s->H * s->D;
    a.dv = grad + (s->H + s->K) * s->D;
    return a;
}

static double pairs(const struct shape *s)
{
    double sum = 0;
    for (int64_t i = 1; i <= s->length; i++)
        sum += (double)(s->window && i > s->window ? s->window : i);
    return sum * s->sequences * (double)s->H;
}

static double best_seconds(void (*kernel)(const struct dt_attention *),
                           const struct dt_attention *a, double seconds)
{
    double best = INFINITY, until = dt_clock_seconds() + seconds;
    do {
        double begin = dt_clock_seconds();
        kernel(a);
        double took = dt_clock_seconds() - begin;
        best = took < best ? took : best;
    } while (dt_clock_seconds() < until);
    return best;
}

static int bench(const struct shape *s, double seconds, bool first)
{
    struct dt_arena m = {0};
    int32_t start[MOST + 1];
    layout(s, &m, start);
    DT_TRY(dt_arena_open(&m, "attention", m.used));
    struct dt_attention a = layout(s, &m, start);
    double flops = pairs(s) * (double)s->D * 2e-9;
    double peak = dt_ops_peak_gflops(DT_F32, seconds / 4);
    double forward = 2 * flops / best_seconds(dt_k->attention_forward, &a, seconds);
    double middle = dt_ops_peak_gflops(DT_F32, seconds / 4);
    double backward = 5 * flops / best_seconds(dt_k->attention_backward, &a, seconds);
    peak = fmax(peak, fmax(middle, dt_ops_peak_gflops(DT_F32, seconds / 4)));
    printf("%s{\"shape\": \"%s\", \"heads\": %d, \"kv_heads\": %d, \"head_size\": %d, "
           "\"forward_gflops\": %.1f, \"backward_gflops\": %.1f, \"peak_gflops\": %.1f, "
           "\"forward_fraction\": %.3f, \"backward_fraction\": %.3f}",
           first ? "" : ", ", s->name, (int)s->H, (int)s->K, (int)s->D, forward, backward, peak,
           forward / peak, backward / peak);
    dt_arena_close(&m);
    return 0;
}

int main(int argc, char **argv)
{
    const char *set = "auto";
    double seconds = 0.5;
    int threads = dt_ops_threads(), rc;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--set"))
            set = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
    }
    DT_CHECK(failed, rc, dt_kernels_select(set));
    dt_ops_set_threads(threads);
    printf("{\"bench\": \"attention\", \"set\": \"%s\", \"threads\": %d, \"shapes\": [", dt_k->name,
           dt_ops_threads());
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        DT_CHECK(failed, rc, bench(&shapes[i], seconds, i == 0));
    printf("]}\n");
    return 0;
failed:
    fprintf(stderr, "%s\n", dt_error_message());
    return dt_error_exit_code(rc);
}
