/* bench/stream: how near the kernels bound by memory come to what memory gives. One JSON line.
 *
 * copy and triad (McCalpin's STREAM, counted as he does: without the write-allocate) are plain
 * loops over arrays far beyond any cache; the kernels run on arrays of the same size. GB/s count
 * what a kernel must read and write once. adamw_fraction is AdamW's bandwidth over the better of
 * the two, write-allocates counted on neither side. Best of REPEATS, for 1 and 2 threads. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "ops/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, COLS = 1024 };

struct buffers {
    float *a, *b, *c, *d; /* [rows, COLS] each */
    float *stats;         /* [rows] */
    uint16_t *h;          /* [rows, COLS] */
    int32_t *target;      /* [rows] */
    double *loss;         /* [rows] */
    int64_t rows, n;
};

typedef void pass_fn(const struct buffers *x);

static void pass_copy(const struct buffers *x)
{
    float *a = x->a;
    const float *b = x->b;
#pragma omp parallel for schedule(static) num_threads(dt_ops_threads())
    for (int64_t i = 0; i < x->n; i++)
        a[i] = b[i];
}

static void pass_triad(const struct buffers *x)
{
    float *a = x->a;
    const float *b = x->b, *c = x->c;
#pragma omp parallel for schedule(static) num_threads(dt_ops_threads())
    for (int64_t i = 0; i < x->n; i++)
        a[i] = b[i] + 3.0f * c[i];
}

static void pass_adamw(const struct buffers *x)
{
    const struct dt_adamw p = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1};
    dt_k->adamw(x->a, x->b, x->c, x->d, x->n, &p);
}

static void pass_block_norms(const struct buffers *x)
{
    struct dt_u128 sum = {0, 0};
    dt_k->block_norms(x->a, x->n, -10, &sum);
}

static void pass_norm(const struct buffers *x)
{
    struct dt_norm n = {.rows = x->rows,
                        .cols = COLS,
                        .groups = 1,
                        .x = x->a,
                        .ldx = COLS,
                        .w = x->d,
                        .rstd = x->stats,
                        .eps = 1e-5f,
                        .y_bf16 = x->h,
                        .ldy = COLS};
    dt_k->norm_forward(&n);
}

static void pass_norm_backward(const struct buffers *x)
{
    static float dw[COLS];
    struct dt_norm n = {.rows = x->rows,
                        .cols = COLS,
                        .groups = 1,
                        .x = x->a,
                        .ldx = COLS,
                        .w = x->d,
                        .rstd = x->stats,
                        .ldy = COLS,
                        .dy = x->b,
                        .dx = x->c,
                        .lddx = COLS,
                        .add_dx = true,
                        .dw = dw};
    dt_k->norm_backward(&n);
}

static void pass_act(const struct buffers *x)
{
    dt_k->act_forward(DT_ACT_SILU, NULL, x->h, COLS, x->a, x->b, COLS, x->rows, COLS);
}

static void pass_act_backward(const struct buffers *x)
{
    dt_k->act_backward(DT_ACT_SILU, x->a, x->b, COLS, x->c, COLS, x->a, x->b, COLS, x->rows, COLS);
}

static void pass_loss(const struct buffers *x)
{
    dt_k->loss(x->a, 32 * COLS, x->target, x->loss, x->rows / 32, 32 * COLS, false);
}

static void pass_cast(const struct buffers *x)
{
    dt_k->copy(x->h, DT_BF16, COLS, x->a, DT_F32, COLS, x->rows, COLS);
}

/* bytes: what one element costs to read and write */
static const struct {
    const char *name;
    pass_fn *run;
    int bytes;
} passes[] = {
    {"copy", pass_copy, 8},    {"triad", pass_triad, 12},
    {"adamw", pass_adamw, 28}, {"block_norms", pass_block_norms, 4},
    {"norm", pass_norm, 6},    {"norm_backward", pass_norm_backward, 16},
    {"act", pass_act, 10},     {"act_backward", pass_act_backward, 20},
    {"loss", pass_loss, 8},    {"cast", pass_cast, 6},
};
enum { PASSES = sizeof passes / sizeof *passes };

static void reset(const struct buffers *x)
{
    const int64_t drawn = 1024 * COLS; /* a million values, again and again */
    dt_k->fill_normal(x->a, drawn, 0, 1, 1, 1);
    for (int64_t at = 0; at < x->n; at += drawn) {
        if (at)
            dt_k->copy(x->a + at, DT_F32, drawn, x->a, DT_F32, drawn, 1, drawn);
        dt_k->copy(x->b + at, DT_F32, drawn, x->a, DT_F32, drawn, 1, drawn);
    }
    dt_k->fill(x->c, x->n, 0.5f);
    dt_k->fill(x->d, x->n, 0.25f);
}

/* Seconds of the best run; fresh values, so that nothing drifts into denormals or infinities. */
static double best_of(pass_fn *run, const struct buffers *x)
{
    double best = 1e30;
    reset(x);
    for (int i = 0; i < REPEATS; i++) {
        double start = dt_clock_seconds();
        run(x);
        double seconds = dt_clock_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void measure(const struct buffers *x, int threads)
{
    double gbps[PASSES];
    dt_ops_set_threads(threads);
    for (int i = 0; i < PASSES; i++)
        gbps[i] = 1e-9 * passes[i].bytes * (double)x->n / best_of(passes[i].run, x);
    printf("\"threads_%d\": {", threads);
    for (int i = 0; i < PASSES; i++)
        printf("\"%s_gbps\": %.2f, ", passes[i].name, gbps[i]);
    printf("\"adamw_gparams\": %.3f, \"adamw_fraction\": %.3f}", gbps[2] / passes[2].bytes,
           gbps[2] / (gbps[0] > gbps[1] ? gbps[0] : gbps[1]));
}

static int run(int64_t rows)
{
    struct dt_arena arena;
    struct buffers x = {.rows = rows, .n = rows * COLS};
    size_t floats = (size_t)x.n * sizeof(float);
    DT_TRY(dt_kernels_select("auto"));
    DT_TRY(dt_arena_open(&arena, "bench", 5 * floats + (1u << 20)));
    x.a = dt_arena_reserve(&arena, floats);
    x.b = dt_arena_reserve(&arena, floats);
    x.c = dt_arena_reserve(&arena, floats);
    x.d = dt_arena_reserve(&arena, floats);
    x.h = dt_arena_reserve(&arena, floats / 2);
    x.stats = dt_arena_reserve(&arena, (size_t)rows * sizeof(float));
    x.target = dt_arena_reserve(&arena, (size_t)rows * sizeof(int32_t));
    x.loss = dt_arena_reserve(&arena, (size_t)rows * sizeof(double));
    printf("{\"bench\": \"stream\", \"kernels\": \"%s\", \"elements\": %" PRId64 ", ", dt_k->name,
           x.n);
    measure(&x, 1);
    printf(", ");
    measure(&x, 2);
    printf("}\n");
    dt_arena_close(&arena);
    return DT_OK;
}

int main(int argc, char **argv)
{
    int64_t millions = argc > 1 ? strtol(argv[1], NULL, 10) : 64;
    if (millions < 1 || millions > 4096) {
        fprintf(stderr, "usage: stream [MILLIONS OF ELEMENTS, 1 to 4096]\n");
        return 2;
    }
    int rc = run(millions * 1024);
    if (rc < 0)
        fprintf(stderr, "stream: %s\n", dt_error_message());
    return dt_error_exit_code(rc);
}
