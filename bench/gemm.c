/* How near the matrix multiplication comes to the machine's peak, on the shapes of a GPT-2 124M
 * step with 1024 tokens (and a few thinner ones): prints one JSON line. The peak is measured beside
 * each shape, since the clock rate and other work on the machine change; the best of many runs
 * counts. Where oneDNN was found when the build was configured, its matmul primitive runs beside
 * ours on the same data.
 *
 *     bench/gemm [--threads N] [--set NAME] [--seconds S]        S: for each shape and type */
#include "base/clock.h"
#include "base/error.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef DT_BENCH_DNNL
#include <dnnl.h>
#endif

struct shape {
    const char *name;
    int64_t M, N, K;
    bool a_trans, b_trans;
};

static const struct shape shapes[] = {
    {"fwd qkv", 1024, 2304, 768, false, true},
    {"fwd qkv, GPT-2 weights", 1024, 2304, 768, false, false},
    {"fwd proj", 1024, 768, 768, false, true},
    {"fwd fc", 1024, 3072, 768, false, true},
    {"fwd fcproj", 1024, 768, 3072, false, true},
    {"fwd head", 1024, 50257, 768, false, true},
    {"dX qkv", 1024, 768, 2304, false, false},
    {"dX qkv, GPT-2 weights", 1024, 768, 2304, false, true},
    {"dX proj", 1024, 768, 768, false, false},
    {"dX fc", 1024, 768, 3072, false, false},
    {"dX fcproj", 1024, 3072, 768, false, false},
    {"dX head", 1024, 768, 50257, false, false},
    {"dW qkv", 2304, 768, 1024, true, false},
    {"dW qkv, GPT-2 weights", 768, 2304, 1024, true, false},
    {"dW proj", 768, 768, 1024, true, false},
    {"dW fc", 3072, 768, 1024, true, false},
    {"dW fcproj", 768, 3072, 1024, true, false},
    {"dW head", 50257, 768, 1024, true, false},
    {"M=16 fc", 16, 3072, 768, false, true},
    {"M=64 fc", 64, 3072, 768, false, true},
    {"M=256 fc", 256, 3072, 768, false, true},
    {"M=256 head", 256, 50257, 768, false, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void *memory(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    void *p = NULL;
    bytes = (bytes + huge - 1) / huge * huge;
    if (posix_memalign(&p, huge, bytes) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static void fill(float *p, int64_t n)
{
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = (float)(x >> 8) * 0x1p-23f - 1.0f;
    }
}

/* One way to multiply */
struct runner {
    void (*run)(void *context);
    void *context;
};

static void run_ours(void *context)
{
    dt_k->gemm(context);
}

/* GFLOP/s */
struct result {
    double ours, dnnl, peak;
};

/* The best of each of n runners, taking turns with each other and with the peak */
static struct result measure(const struct runner *runners, int n, double flops,
                             enum dt_dtype compute, double seconds)
{
    double until = dt_clock_seconds() + seconds, best[2] = {0}, peak = 0;
    for (int round = 0; round < 3 || dt_clock_seconds() < until; round++) {
        for (int i = 0; i < n; i++) {
            double t = dt_clock_seconds();
            runners[i].run(runners[i].context);
            t = dt_clock_seconds() - t;
            if (flops / t * 1e-9 > best[i])
                best[i] = flops / t * 1e-9;
        }
        if (round % 4 == 0) {
            double p = dt_ops_peak_gflops(compute, 0.003);
            peak = p > peak ? p : peak;
        }
    }
    return (struct result){best[0], best[1], peak};
}

/* ---- oneDNN ------------------------------------------------------------------------------------
 */

#ifdef DT_BENCH_DNNL
struct dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_exec_arg_t args[3];
};

static void need(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
        exit(1);
    }
}

static void describe(dnnl_memory_desc_t *d, int64_t rows, int64_t cols, bool trans,
                     dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : cols, trans ? rows : 1};
    need(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides), "describe");
}

static struct dnnl dnnl_begin(const struct shape *s, const void *a, const void *b, float *c,
                              bool bf16)
{
    struct dnnl x;
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t md[3];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    union {
        const void *in;
        void *out;
    } data[3] = {{a}, {b}, {c}}; /* the library's handles are not const */
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    need(dnnl_engine_create(&x.engine, dnnl_cpu, 0), "engine");
    need(dnnl_stream_create(&x.stream, x.engine, dnnl_stream_default_flags), "stream");
    describe(&md[0], s->M, s->K, s->a_trans, type);
    describe(&md[1], s->K, s->N, s->b_trans, type);
    describe(&md[2], s->M, s->N, false, dnnl_f32);
    need(dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]), "matmul");
    need(dnnl_primitive_desc_create(&pd, &desc, NULL, x.engine, NULL), "primitive");
    need(dnnl_primitive_create(&x.matmul, pd), "primitive");
    dnnl_primitive_desc_destroy(pd);
    for (int i = 0; i < 3; i++) {
        x.args[i].arg = names[i];
        need(dnnl_memory_create(&x.args[i].memory, &md[i], x.engine, data[i].out), "memory");
    }
    return x;
}

static void dnnl_run(void *context)
{
    struct dnnl *x = context;
    need(dnnl_primitive_execute(x->matmul, x->stream, 3, x->args), "execute");
    need(dnnl_stream_wait(x->stream), "wait");
}

static void dnnl_end(struct dnnl *x)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(x->args[i].memory);
    dnnl_primitive_destroy(x->matmul);
    dnnl_stream_destroy(x->stream);
    dnnl_engine_destroy(x->engine);
}
#endif

/* ---- The shapes --------------------------------------------------------------------------------
 */

struct data {
    float *a, *b, *c;
    uint16_t *a16, *b16;
    void *work;
};

static struct result bench_shape(const struct shape *s, const struct data *d, enum dt_dtype compute,
                                 double seconds)
{
    struct dt_gemm g = {
        .M = s->M,
        .N = s->N,
        .K = s->K,
        .a = {d->a, s->a_trans ? s->M : s->K, DT_F32, s->a_trans},
        .b = {d->b, s->b_trans ? s->K : s->N, DT_F32, s->b_trans},
        .c = d->c,
        .ldc = s->N,
        .compute = compute,
        .work = d->work,
    };
    struct runner runners[2] = {{run_ours, &g}};
    double flops = 2.0 * (double)s->M * (double)s->N * (double)s->K;
#ifdef DT_BENCH_DNNL
    bool bf16 = compute == DT_BF16;
    struct dnnl x =
        dnnl_begin(s, bf16 ? (void *)d->a16 : d->a, bf16 ? (void *)d->b16 : d->b, d->c, bf16);
    runners[1] = (struct runner){dnnl_run, &x};
    struct result r = measure(runners, 2, flops, compute, seconds);
    dnnl_end(&x);
    return r;
#else
    return measure(runners, 1, flops, compute, seconds);
#endif
}

/* bf16 copies for the other library; ours rounds fp32 while it packs */
static struct data prepare(void)
{
    int64_t most = 0;
    for (int i = 0; i < SHAPES; i++) {
        int64_t sizes[3] = {shapes[i].M * shapes[i].K, shapes[i].K * shapes[i].N,
                            shapes[i].M * shapes[i].N};
        for (int j = 0; j < 3; j++)
            most = sizes[j] > most ? sizes[j] : most;
    }
    size_t bytes = (size_t)most * 4;
    struct data d = {memory(bytes),     memory(bytes),     memory(bytes),
                     memory(bytes / 2), memory(bytes / 2), memory(dt_gemm_work_bytes())};
    fill(d.a, most);
    fill(d.b, most);
    for (int64_t i = 0; i < most; i++) {
        memcpy(&d.a16[i], (char *)&d.a[i] + 2, 2);
        memcpy(&d.b16[i], (char *)&d.b[i] + 2, 2);
    }
    return d;
}

static void print_result(const char *type, const struct result *r)
{
    printf(",\"%s\":%.1f,\"%s_of_peak\":%.3f", type, r->ours, type, r->ours / r->peak);
    if (r->dnnl > 0)
        printf(",\"%s_onednn\":%.1f,\"%s_to_onednn\":%.3f", type, r->dnnl, type, r->ours / r->dnnl);
}

int main(int argc, char **argv)
{
    int threads = 2;
    const char *set = "auto";
    double seconds = 0.3;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--set") == 0)
            set = argv[i + 1];
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
        else {
            fprintf(stderr, "unknown argument %s; known: --threads N, --set NAME, --seconds S\n",
                    argv[i]);
            return 2;
        }
    }
    if (dt_kernels_select(set) < 0) {
        fprintf(stderr, "%s\n", dt_error_message());
        return 2;
    }
    dt_ops_set_threads(threads);
    struct data d = prepare();
    static struct result results[SHAPES][2];
    double peak[2] = {0};
    for (int i = 0; i < SHAPES; i++)
        for (int t = 0; t < 2; t++) {
            results[i][t] = bench_shape(&shapes[i], &d, t ? DT_BF16 : DT_F32, seconds);
            peak[t] = results[i][t].peak > peak[t] ? results[i][t].peak : peak[t];
        }
    printf(
        "{\"bench\":\"gemm\",\"set\":\"%s\",\"threads\":%d,\"peak_f32\":%.1f,\"peak_bf16\":%.1f,",
        dt_k->name, dt_ops_threads(), peak[0], peak[1]);
    printf("\"shapes\":[");
    for (int i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        printf("%s{\"name\":\"%s\",\"M\":%lld,\"N\":%lld,\"K\":%lld", i ? "," : "", s->name,
               (long long)s->M, (long long)s->N, (long long)s->K);
        print_result("f32", &results[i][0]);
        print_result("bf16", &results[i][1]);
        printf("}");
    }
    printf("]}\n");
    return 0;
}
