/* Fixed-point gradients: every kernel set gives the integers and the flags of the reference, the
 * reference those of the definition, and no order of the addends shows. And the switch that keeps
 * a thread away from the team. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "unit/ops/ops_test.h"

#include <dirent.h>
#include <pthread.h>

#define EACH_SET(k)                                                                                \
    for (int set_ = 0; set_ < SETS; set_++)                                                        \
        for (const struct dt_kernels *k = dt_kernels_find(set_names[set_]); k; k = NULL)

static int64_t *integers(int64_t n, uint64_t seed) /* any bits */
{
    int64_t *p = exact((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        p[i] = (int64_t)next_random(&seed);
    return p;
}

/* One addend through a kernel set, every lane of a vector and of a tail the same. */
static int64_t one(const struct dt_kernels *k, float g, int scale, int limit, int *flags)
{
    int64_t acc[37];
    float x[37];
    int lanes[2] = {0, 0};
    for (int i = 0; i < 37; i++) {
        acc[i] = 0;
        x[i] = g;
    }
    k->fixed_add(acc, 37, x, 37, 1, 37, scale, limit, &lanes[0]);
    for (int i = 1; i < 37; i++)
        assert_true(acc[i] == acc[0]);
    int64_t first = acc[0];
    k->fixed_add(acc, 37, x, 37, 1, 1, scale, limit, &lanes[1]);
    assert_true((uint64_t)acc[0] == 2 * (uint64_t)first && acc[1] == first);
    assert_int_equal(lanes[0], lanes[1]);
    *flags = lanes[0];
    return first;
}

static void an_addend_is_the_nearest_integer(void **state)
{
    (void)state;
    static const struct {
        float g;
        int scale, limit;
        int64_t want;
        int flags;
    } cases[] = {
        {1, 0, 62, 1, 0},
        {-1.5f, 0, 62, -2, 0}, /* ties to even */
        {2.5f, 0, 62, 2, 0},
        {0.5f, 0, 62, 0, 0},
        {-0.49999997f, 0, 62, 0, 0},
        {3, 30, 62, (int64_t)3 << 30, 0},
        {-1.00000012f, 52, 62, -(((int64_t)1 << 52) + ((int64_t)1 << 29)), 0},
        {1e-45f, 126, 62, 0, 0}, /* 2^-23 */
        {1.1754944e-38f, 126, 62, 1, 0},
        {3e-38f, -126, 62, 0, 0},
        /* from 2^limit on, below it not, on both sides of zero */
        {0x1p40f, 22, 62, 0, DT_FIXED_OVERFLOW},
        {-0x1p40f, 22, 62, 0, DT_FIXED_OVERFLOW},
        {0x1.fffffep39f, 22, 62, ((int64_t)1 << 62) - ((int64_t)1 << 38), 0},
        {-0x1.fffffep39f, 22, 62, -(((int64_t)1 << 62) - ((int64_t)1 << 38)), 0},
        {0x1p31f, 0, 31, 0, DT_FIXED_OVERFLOW},
        {0x1p31f, 0, 32, (int64_t)1 << 31, 0},
        /* rounding decides: 7.5 becomes 8 */
        {7.5f, 0, 3, 0, DT_FIXED_OVERFLOW},
        {7.4999995f, 0, 3, 7, 0},
        {8388607.5f, 0, 23, 0, DT_FIXED_OVERFLOW},
        {8388607.0f, 0, 23, 8388607, 0},
        {16777215, 0, 24, 16777215, 0},
        {16777216, 0, 24, 0, DT_FIXED_OVERFLOW},
        {3e38f, 52, 62, 0, DT_FIXED_OVERFLOW}, /* finite, though not in float times 2^52 */
        {0x1.8p127f, -80, 62, (int64_t)3 << 46, 0},
        {INFINITY, 0, 62, 0, DT_FIXED_NONFINITE},
        {-INFINITY, -126, 62, 0, DT_FIXED_NONFINITE},
        {NAN, 52, 62, 0, DT_FIXED_NONFINITE},
    };
    EACH_SET(k)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int flags;
        int64_t a = one(k, cases[i].g, cases[i].scale, cases[i].limit, &flags);
        if (a != cases[i].want || flags != cases[i].flags)
            fail_msg("%s: %a at scale %d, limit %d gives %lld, flags %d", k->name,
                     (double)cases[i].g, cases[i].scale, cases[i].limit, (long long)a, flags);
    }
}

static void flags_add_up(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        int64_t acc[3] = {5, INT64_MAX, INT64_MIN};
        int flags = 0;
        k->fixed_add(acc, 3, (const float[]){INFINITY, 1, 1e30f}, 3, 1, 3, 0, 62, &flags);
        assert_int_equal(flags, DT_FIXED_NONFINITE | DT_FIXED_OVERFLOW);
        assert_true(acc[0] == 5 && acc[1] == INT64_MIN && acc[2] == INT64_MIN); /* modulo 2^64 */
        k->fixed_add(acc, 3, (const float[]){1, -1, -1}, 3, 1, 3, 0, 62, &flags);
        assert_int_equal(flags, DT_FIXED_NONFINITE | DT_FIXED_OVERFLOW); /* they stay */
        assert_true(acc[0] == 6 && acc[1] == INT64_MAX && acc[2] == INT64_MAX);
    }
}

/* ---- every set against the reference ---- */

struct shape {
    int64_t rows, cols;
    int pad, skew, scale, limit;
    enum values values;
    uint64_t seed;
};

struct result {
    int64_t *acc, *dE, *dP;
    float *g;
    int64_t n, nE, nP;
    int flags[4];
};

static void run(const struct dt_kernels *k, const struct shape *s, struct result *r)
{
    int64_t lda = s->cols + s->pad, ldg = s->cols + 2 * s->pad, C = s->cols;
    r->n = box(s->rows, s->cols, lda);
    r->nE = 6 * C, r->nP = 5 * C;
    r->acc = integers(r->n, s->seed);
    r->dE = integers(r->nE, s->seed + 1);
    r->dP = integers(r->nP, s->seed + 2);
    r->g = floats(r->n, PLAIN, s->seed + 3);
    memset(r->flags, 0, sizeof r->flags);
    const float *g = floats_at(box(s->rows, s->cols, ldg), s->skew, s->values, s->seed + 4);
    const float *dx = floats_at(s->rows * C, s->skew, s->values, s->seed + 5);
    const int32_t *id = indices(s->rows, 6, s->seed), *position = indices(s->rows, 5, s->seed + 1);
    k->fixed_add(r->acc, lda, g, ldg, s->rows, s->cols, s->scale, s->limit, &r->flags[0]);
    k->fixed_get(r->g, r->acc, r->n, s->scale, s->seed % 2 ? 1 : 1234567.0);
    k->fixed_sum(r->acc, integers(r->n, s->seed + 6), r->n);
    k->embed_backward_fixed(r->dE, r->dP, dx, id, position, s->rows, C, s->scale, s->limit,
                            &r->flags[1]);
    k->embed_backward_fixed(r->dE, NULL, dx, id, position, s->rows, C, s->scale, s->limit,
                            &r->flags[2]);
    k->embed_backward_fixed(NULL, r->dP, dx, id, position, s->rows, C, s->scale, s->limit,
                            &r->flags[3]);
}

static bool same(const struct result *a, const struct result *b)
{
    return memcmp(a->acc, b->acc, (size_t)a->n * sizeof *a->acc) == 0 &&
           memcmp(a->g, b->g, (size_t)a->n * sizeof *a->g) == 0 &&
           memcmp(a->dE, b->dE, (size_t)a->nE * sizeof *a->dE) == 0 &&
           memcmp(a->dP, b->dP, (size_t)a->nP * sizeof *a->dP) == 0 &&
           memcmp(a->flags, b->flags, sizeof a->flags) == 0;
}

static int compare(const struct shape *s, int most_threads)
{
    struct result want, got;
    run(dt_kernels_find("reference"), s, &want);
    EACH_SET(k)
    for (int threads = 1; threads <= most_threads; threads++) {
        dt_ops_set_threads(threads);
        run(k, s, &got);
        if (!same(&want, &got))
            fail_msg("%s, %d threads, [%ld, %ld] pad %d, values %d, scale %d, limit %d: not the "
                     "bits of the reference",
                     k->name, threads, (long)s->rows, (long)s->cols, s->pad, (int)s->values,
                     s->scale, s->limit);
    }
    dt_ops_set_threads(1);
    release();
    return want.flags[0] | want.flags[1];
}

static void every_set_gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const int scales[] = {52, 31, 0, -40, 126, -126}, limits[] = {62, 58, 40, 3};
    int seen = 0;
    for (int64_t cols = 1; cols <= 40; cols++)
        for (int scale = 0; scale < 6; scale++)
            for (int values = 0; values < VALUES; values++) {
                struct shape s = {
                    .rows = 1 + cols % 4,
                    .cols = cols,
                    .pad = (int)((cols + values) % 3),
                    .skew = (int)((cols + scale) % 4),
                    .scale = scales[scale],
                    .limit = limits[(cols + values) % 4],
                    .values = (enum values)values,
                    .seed = (uint64_t)(cols * 100 + scale),
                };
                seen |= compare(&s, 1);
            }
    assert_int_equal(seen, DT_FIXED_NONFINITE | DT_FIXED_OVERFLOW);
}

static void every_team_gives_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{67, 1037}, {1, 70001}, {1301, 33}};
    for (int shape = 0; shape < 3; shape++)
        for (int values = 0; values < VALUES; values++)
            compare(&(struct shape){.rows = shapes[shape][0],
                                    .cols = shapes[shape][1],
                                    .pad = 1,
                                    .skew = 1,
                                    .scale = 40,
                                    .limit = 55,
                                    .values = (enum values)values,
                                    .seed = (uint64_t)shape},
                    5);
}

/* ---- order ---- */

static void no_order_shows(void **state)
{
    (void)state;
    enum { N = 97, ADDENDS = 50 };
    EACH_SET(k)
    {
        int flags = 0;
        uint64_t seed = 9;
        float *g = floats(ADDENDS * N, WIDE, 3);
        int64_t *forth = exact(N * sizeof *forth), *back = exact(N * sizeof *back);
        int64_t *halves = exact(N * sizeof *halves), *other = exact(N * sizeof *other);
        for (int64_t *a[] = {forth, back, halves, other}, **p = a; p < a + 4; p++)
            memset(*p, 0, N * sizeof **p);
        for (int i = 0; i < ADDENDS; i++) {
            int64_t *half = next_random(&seed) % 2 ? halves : other;
            k->fixed_add(forth, N, g + i * N, N, 1, N, 20, 62, &flags);
            k->fixed_add(back, N, g + (ADDENDS - 1 - i) * N, N, 1, N, 20, 62, &flags);
            k->fixed_add(half, N, g + i * N, N, 1, N, 20, 62, &flags);
        }
        k->fixed_sum(halves, other, N);
        assert_memory_equal(forth, back, N * sizeof *forth);
        assert_memory_equal(forth, halves, N * sizeof *forth);
        assert_int_equal(flags, 0);
        release();
    }
}

static void a_gradient_comes_back(void **state)
{
    (void)state;
    EACH_SET(k)
    {
        static const int64_t acc[] = {0, 1, -3, INT64_MAX, INT64_MIN, (1ll << 53) + 1, 30};
        float g[7];
        k->fixed_get(g, acc, 7, 1, 1);
        const float plain[] = {0, 0.5f, -1.5f, 0x1p62f, -0x1p62f, 0x1p52f, 15};
        assert_memory_equal(g, plain, sizeof g);
        k->fixed_get(g, acc, 7, 0, 3);
        for (int i = 0; i < 7; i++)
            assert_true(g[i] == (float)((double)acc[i] / 3));
    }
}

/* ---- the switch ---- */

static long threads_now(void)
{
    long n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

struct other {
    bool serial;
    long opened;
    int threads;
};

/* A thread that opens a region gets workers of its own, so they can be counted. */
static void *on_another_thread(void *arg)
{
    enum { N = 100000 };
    struct other *o = arg;
    static float y[N], x[N], g[N];
    static int64_t acc[N], more[N];
    int flags = 0;
    long before = threads_now();
    dt_ops_serial(o->serial);
    o->threads = dt_ops_threads();
    EACH_SET(k)
    {
        k->add(y, N, x, N, 1, N);
        k->zero(acc, sizeof acc);
        k->copy(y, DT_F32, N, x, DT_F32, N, 1, N);
        k->fixed_add(acc, N, x, N, 1, N, 30, 60, &flags);
        k->fixed_sum(acc, more, N);
        k->fixed_get(g, acc, N, 30, 1);
        k->block_norms(g, N, 0, &(struct dt_u128){0, 0});
    }
    o->opened = threads_now() - before;
    dt_ops_serial(false);
    return NULL;
}

static struct other elsewhere(bool serial)
{
    struct other o = {.serial = serial};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, on_another_thread, &o), 0);
    pthread_join(thread, NULL);
    return o;
}

static void a_serial_thread_opens_no_team(void **state)
{
    (void)state;
    enum { TEAM = 7 }; /* more than before, so that no idle worker is left over to be taken */
    dt_ops_set_threads(TEAM);
    struct other serial = elsewhere(true), parallel = elsewhere(false);
    assert_int_equal(serial.threads, 1);
    assert_int_equal(serial.opened, 0);
    assert_int_equal(parallel.threads, TEAM);
    assert_int_equal(parallel.opened, TEAM - 1);
    assert_int_equal(dt_ops_threads(), TEAM); /* this thread's switch was never touched */
    dt_ops_set_threads(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_addend_is_the_nearest_integer),
        cmocka_unit_test(flags_add_up),
        cmocka_unit_test(every_set_gives_the_bits_of_the_reference),
        cmocka_unit_test(every_team_gives_the_bits_of_the_reference),
        cmocka_unit_test(no_order_shows),
        cmocka_unit_test(a_gradient_comes_back),
        cmocka_unit_test(a_serial_thread_opens_no_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
