/* Elementwise kernels, norms, casts, rope, activations, loss and AdamW give the bits of the scalar
 * reference in every kernel set, for every size, stride, alignment and team. NaNs count as equal
 * whatever their payload (IEEE leaves it open), except in copies. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "unit/ops/ops_test.h"

/* ---- what an operation wrote ---- */

enum element { F32, F64, H16, RAW16, U64 };

struct output {
    const void *p;
    int64_t n;
    enum element type;
};

struct outputs {
    struct output o[8];
    int n;
};

static void put(struct outputs *out, const void *p, int64_t n, enum element type)
{
    out->o[out->n++] = (struct output){p, n, type};
}

static bool same(const struct output *a, const struct output *b, int64_t i)
{
    static const size_t sizes[] = {4, 8, 2, 2, 8};
    size_t size = sizes[a->type];
    if (memcmp((const char *)a->p + (size_t)i * size, (const char *)b->p + (size_t)i * size,
               size) == 0)
        return true;
    if (a->type == F32)
        return isnan(((const float *)a->p)[i]) && isnan(((const float *)b->p)[i]);
    if (a->type == F64)
        return isnan(((const double *)a->p)[i]) && isnan(((const double *)b->p)[i]);
    if (a->type == H16)
        return (((const uint16_t *)a->p)[i] & 0x7fff) > 0x7f80 &&
               (((const uint16_t *)b->p)[i] & 0x7fff) > 0x7f80;
    return false;
}

/* Number of elements that differ. */
static int64_t differences(const struct outputs *a, const struct outputs *b)
{
    int64_t count = 0;
    for (int k = 0; k < a->n; k++)
        for (int64_t i = 0; i < a->o[k].n; i++)
            count += !same(&a->o[k], &b->o[k], i);
    return count;
}

/* ---- the operations ---- */

struct shape {
    int64_t rows, cols;
    int pad, skew; /* added to the row stride; floats before the first */
    enum values values;
    int variant;
    uint64_t seed;
};

typedef void run_fn(const struct dt_kernels *k, const struct shape *s, struct outputs *out);

static float *in(const struct shape *s, int64_t n, int which)
{
    return floats_at(n, s->skew, s->values, s->seed + (uint64_t)which);
}

static float *plain(const struct shape *s, int64_t n, int which)
{
    return floats_at(n, s->skew, PLAIN, s->seed + (uint64_t)which);
}

static void run_norm(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int v = s->variant; /* 1: LayerNorm, 2: bias, 4: bf16, 8: three vectors a row, 16: in place */
    struct dt_norm n = {.rows = s->rows, .cols = s->cols, .groups = v & 8 ? 3 : 1, .eps = 1e-5f};
    int64_t width = n.cols * n.groups, vectors = n.rows * n.groups;
    n.ldx = width + s->pad;
    n.ldy = v & 16 ? n.ldx : width + 2 * s->pad;
    n.lddx = v & 16 ? n.ldy : width + s->pad;
    int64_t ny = box(n.rows, width, n.ldy), nx = box(n.rows, width, n.ldx);
    float *x = in(s, nx, 1);
    n.x = x;
    n.w = plain(s, n.cols, 2);
    n.b = v & 2 && v & 1 ? plain(s, n.cols, 3) : NULL;
    n.mean = v & 1 ? plain(s, vectors, 4) : NULL;
    n.rstd = plain(s, vectors, 5);
    if (v & 4)
        n.y_bf16 = (uint16_t *)plain(s, ny, 6);
    else
        n.y = plain(s, ny, 6);
    k->norm_forward(&n);
    put(out, v & 4 ? (void *)n.y_bf16 : n.y, ny, v & 4 ? H16 : F32);
    put(out, n.rstd, vectors, F32);
    if (n.mean)
        put(out, n.mean, vectors, F32);
    float *dy = plain(s, ny, 7), *dx = plain(s, box(n.rows, width, n.lddx), 8);
    n.dy = dy;
    n.dx = v & 16 ? dy : dx;
    n.add_dx = !(v & 16) && v & 2;
    n.dw = v & 4 ? NULL : plain(s, n.cols, 9);
    n.db = v & 1 && n.dw ? plain(s, n.cols, 10) : NULL;
    k->norm_backward(&n);
    put(out, n.dx, box(n.rows, width, n.lddx), F32);
    if (n.dw)
        put(out, n.dw, n.cols, F32);
    if (n.db)
        put(out, n.db, n.cols, F32);
}

static void run_rope(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int64_t half = s->cols, D = 2 * half + (s->variant & 1 ? 5 : 0), heads = 2;
    int64_t ld = heads * D + s->pad, n = box(s->rows, heads * D, ld);
    float *x = in(s, n, 1);
    k->rope(x, ld, s->rows, heads, D, half, indices(s->rows, 9, s->seed), plain(s, 18 * half, 2),
            s->variant & 2);
    put(out, x, n, F32);
}

static void run_act(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    enum dt_act_kind kind = (enum dt_act_kind)(s->variant % 5);
    int v = s->variant / 5; /* 1: gated, 2: bf16 and the backward in place */
    int64_t ldg = s->cols + s->pad, ldh = s->cols + 2 * s->pad;
    int64_t ng = box(s->rows, s->cols, ldg), nh = box(s->rows, s->cols, ldh);
    float *g = in(s, ng, 1), *u = v & 1 ? plain(s, ng, 2) : NULL;
    float *h = plain(s, nh, 3), *dh = plain(s, nh, 4);
    uint16_t *h_bf16 = v & 2 ? (uint16_t *)h : NULL;
    k->act_forward(kind, v & 2 ? NULL : h, h_bf16, ldh, g, u, ldg, s->rows, s->cols);
    put(out, h, nh, v & 2 ? H16 : F32);
    float *dg = v & 2 ? g : plain(s, ng, 5), *du = !u ? NULL : v & 2 ? u : plain(s, ng, 6);
    k->act_backward(kind, dg, du, ldg, dh, ldh, g, u, ldg, s->rows, s->cols);
    put(out, dg, ng, F32);
    if (du)
        put(out, du, ng, F32);
}

static void run_embed(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int64_t T = s->rows, C = s->cols, V = 6;
    int32_t *id = indices(T, (int32_t)V, s->seed), *position = indices(T, 5, s->seed + 1);
    float *x = plain(s, T * C, 3), *dE = plain(s, V * C, 4), *dP = plain(s, 5 * C, 5);
    const float *P = s->variant & 1 ? plain(s, 5 * C, 2) : NULL;
    k->embed_forward(x, in(s, V * C, 1), P, id, position, T, C);
    k->embed_backward(s->variant & 2 ? NULL : dE, P ? dP : NULL, in(s, T * C, 6), id, position, T,
                      C);
    put(out, x, T * C, F32);
    put(out, dE, V * C, F32);
    put(out, dP, 5 * C, F32);
}

static void run_loss(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int64_t ld = s->cols + s->pad, n = box(s->rows, s->cols, ld);
    float *logits = in(s, n, 1);
    int32_t *target = indices(s->rows, (int32_t)s->cols, s->seed);
    if (s->rows > 1)
        target[1] = -1;
    double *loss = exact((size_t)s->rows * sizeof *loss);
    k->loss(logits, ld, target, loss, s->rows, s->cols, s->variant);
    put(out, logits, n, F32);
    put(out, loss, s->rows, F64);
}

static void run_sums(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int64_t ld = s->cols + s->pad, ldx = s->cols + 2 * s->pad;
    float *db = plain(s, s->cols, 1), *y = in(s, box(s->rows, s->cols, ld), 3);
    k->bias_backward(db, in(s, box(s->rows, s->cols, ld), 2), ld, s->rows, s->cols);
    k->add(y, ld, in(s, box(s->rows, s->cols, ldx), 4), ldx, s->rows, s->cols);
    put(out, db, s->cols, F32);
    put(out, y, box(s->rows, s->cols, ld), F32);
}

static void run_copy(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    static const enum dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    enum dt_dtype to = types[s->variant % 3], from = types[s->variant / 3];
    int64_t ldd = s->cols + s->pad, lds = s->cols + 2 * s->pad;
    int64_t nd = box(s->rows, s->cols, ldd), ns = box(s->rows, s->cols, lds);
    uint64_t random = s->seed;
    void *src;
    if (from == DT_F32) {
        src = in(s, ns, 1);
    } else { /* any bits */
        uint16_t *h = exact((size_t)(ns + s->skew) * 2);
        for (int64_t i = 0; i < ns + s->skew; i++)
            h[i] = (uint16_t)next_random(&random);
        src = h + s->skew;
    }
    void *dst = exact((size_t)nd * dt_dtype_size(to));
    memset(dst, 0x55, (size_t)nd * dt_dtype_size(to));
    k->copy(dst, to, ldd, src, from, lds, s->rows, s->cols);
    put(out, dst, to == DT_F32 ? 2 * nd : nd, RAW16);
}

static void run_adamw(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    int64_t n = s->rows * s->cols;
    struct dt_adamw p = {.lr = 1e-3f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .bias1 = 0.271f,
                         .bias2 = 0.142625f,
                         .grad_scale = 0.37f};
    float *w = plain(s, n, 1), *m = plain(s, n, 2), *v = plain(s, n, 3);
    for (int64_t i = 0; i < n; i++)
        v[i] = fabsf(v[i]);
    k->adamw(w, m, v, in(s, n, 4), n, &p);
    put(out, w, n, F32);
    put(out, m, n, F32);
    put(out, v, n, F32);
}

static void run_norms(const struct dt_kernels *k, const struct shape *s, struct outputs *out)
{
    uint64_t *sum = exact(3 * sizeof *sum);
    struct dt_u128 total = {UINT64_MAX - 5, 7};
    sum[2] = k->block_norms(in(s, s->rows * s->cols, 1), s->rows * s->cols, -s->variant, &total);
    sum[0] = total.lo;
    sum[1] = total.hi;
    put(out, sum, 3, U64);
}

static const struct op {
    const char *name;
    run_fn *run;
    int variants;
} ops[] = {
    {"norm", run_norm, 32},  {"rope", run_rope, 4},   {"act", run_act, 20},
    {"embed", run_embed, 4}, {"loss", run_loss, 2},   {"sums", run_sums, 1},
    {"copy", run_copy, 9},   {"adamw", run_adamw, 1}, {"norms", run_norms, 2},
};
enum { OPS = sizeof ops / sizeof *ops };

/* ---- comparing ---- */

static void compare_set(const struct op *op, const struct shape *s, const struct outputs *want,
                        const struct dt_kernels *k, int threads)
{
    struct outputs got = {.n = 0};
    dt_ops_set_threads(threads);
    op->run(k, s, &got);
    int64_t bad = differences(want, &got);
    if (bad)
        fail_msg(
            "%s variant %d in %s, [%ld, %ld] pad %d, values %d, %d threads: %ld elements differ",
            op->name, s->variant, k->name, (long)s->rows, (long)s->cols, s->pad, (int)s->values,
            threads, (long)bad);
}

static void compare(const struct op *op, const struct shape *s, const int *teams, int team_count)
{
    struct outputs want = {.n = 0};
    op->run(dt_kernels_find("reference"), s, &want);
    for (int i = 1; i < SETS; i++)
        for (int team = 0; team < team_count && dt_kernels_find(set_names[i]); team++)
            compare_set(op, s, &want, dt_kernels_find(set_names[i]), teams[team]);
    dt_ops_set_threads(1);
    release();
}

static void sizes_of(const struct op *op, int64_t cols, int64_t rows)
{
    for (int variant = 0; variant < op->variants; variant++) {
        for (int values = 0; values < VALUES; values++) {
            struct shape s = {
                .rows = rows,
                .cols = cols,
                .pad = (int)((cols + values) % 3),
                .skew = (int)((cols + variant) % 4),
                .values = (enum values)values,
                .variant = variant,
                .seed = (uint64_t)(cols * 100 + variant),
            };
            compare(op, &s, (const int[]){1}, 1);
        }
    }
}

static void every_size_gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < OPS; i++) {
        for (int64_t cols = 1; cols <= 40; cols++)
            sizes_of(&ops[i], cols, 1 + cols % 4);
        for (int64_t cols = 1023; cols <= 1025; cols++)
            sizes_of(&ops[i], cols, 2);
    }
}

static void every_team_gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const int teams[] = {1, 2, 3, 5};
    static const int64_t shapes[][2] = {{67, 1037}, {1, 70001}, {1301, 33}};
    for (int i = 0; i < OPS; i++)
        for (int shape = 0; shape < 3; shape++)
            for (int variant = 0; variant < ops[i].variants; variant += shape ? 3 : 1) {
                struct shape s = {
                    .rows = shapes[shape][0],
                    .cols = shapes[shape][1],
                    .pad = 1,
                    .skew = 1,
                    .values = PLAIN,
                    .variant = variant,
                    .seed = (uint64_t)variant,
                };
                compare(&ops[i], &s, teams, 4);
            }
}

/* The comparison itself: one bit, one sign of zero, one wrong operation must show. */

static void wrong_add(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows,
                      int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols;
             i++) /* an fma's single rounding, as a wrong kernel would have */
            y[r * ldy + i] = fmaf(x[r * ldx + i], 0.999999f, y[r * ldy + i]);
}

static void a_wrong_kernel_is_noticed(void **state)
{
    (void)state;
    struct shape s = {.rows = 3, .cols = 37, .pad = 1, .seed = 5};
    struct dt_kernels wrong = *dt_kernels_find("portable");
    wrong.add = wrong_add;
    struct outputs want = {.n = 0}, got = {.n = 0}, right = {.n = 0};
    run_sums(dt_kernels_find("reference"), &s, &want);
    run_sums(&wrong, &s, &got);
    run_sums(dt_kernels_find("portable"), &s, &right);
    assert_true(differences(&want, &got) > 30);
    assert_int_equal(differences(&want, &right), 0);

    float *last = (float *)(uintptr_t)right.o[1].p + right.o[1].n - 1;
    uint32_t bits;
    memcpy(&bits, last, 4);
    bits ^= 1;
    memcpy(last, &bits, 4);
    assert_int_equal(differences(&want, &right), 1);
    release();

    float zero = 0, minus = -0.0f, nan1 = NAN, nan2 = -NAN;
    struct outputs a = {.n = 0}, b = {.n = 0};
    put(&a, &zero, 1, F32);
    put(&b, &minus, 1, F32);
    assert_int_equal(differences(&a, &b), 1);
    a.n = b.n = 0;
    put(&a, &nan1, 1, F32);
    put(&b, &nan2, 1, F32);
    assert_int_equal(differences(&a, &b), 0);
    a.o[0] = (struct output){&nan1, 2, RAW16};
    b.o[0] = (struct output){&nan2, 2, RAW16};
    assert_int_equal(differences(&a, &b), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_gives_the_bits_of_the_reference),
        cmocka_unit_test(every_team_gives_the_bits_of_the_reference),
        cmocka_unit_test(a_wrong_kernel_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
