/* The table of kernel sets, how one is chosen, the team, and that no operation allocates. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "unit/ops/ops_test.h"

#if defined(__SANITIZE_ADDRESS__)
#define COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 1
#endif

static long allocations; /* of this program, libraries included */

#if COUNTS_ALLOCATIONS
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t bytes)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t bytes)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, bytes);
}
#endif

static void every_set_is_complete(void **state)
{
    (void)state;
    int found = 0;
    for (int i = 0; i < SETS; i++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[i]);
        if (!k)
            continue;
        found++;
        assert_string_equal(k->name, set_names[i]);
        /* the table holds pointers only, none of them may be missing */
        const void *entry[sizeof *k / sizeof(void *)];
        memcpy(entry, k, sizeof *k);
        for (size_t e = 0; e < sizeof *k / sizeof(void *); e++)
            assert_non_null(entry[e]);
    }
    assert_true(found >= 2);
    assert_null(dt_kernels_find("avx3"));
}

static void sets_are_chosen_by_name(void **state)
{
    (void)state;
    unsetenv("DUCTILE_KERNELS");
    assert_int_equal(dt_kernels_select("auto"), DT_OK);
    const struct dt_kernels *best = dt_k;
    int last = SETS - 1; /* the fastest that runs; the bf16 dot product may be found not to pay */
    while (!dt_kernels_find(set_names[last]))
        last--;
    assert_true(best == dt_kernels_find(set_names[last]) ||
                (last == SETS - 1 && best == dt_kernels_find(set_names[last - 1])));
    for (int i = 0; i < SETS; i++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[i]);
        setenv("DUCTILE_KERNELS", set_names[i], 1);
        assert_int_equal(dt_kernels_select("auto"), k ? DT_OK : DT_E_UNSUPPORTED);
        if (k)
            assert_ptr_equal(dt_k, k);
        assert_int_equal(dt_kernels_select(set_names[i]), k ? DT_OK : DT_E_UNSUPPORTED);
    }
    setenv("DUCTILE_KERNELS", "reference", 1); /* "auto" only: a name that was given wins */
    assert_int_equal(dt_kernels_select("portable"), DT_OK);
    assert_string_equal(dt_k->name, "portable");
    setenv("DUCTILE_KERNELS", "", 1);
    assert_int_equal(dt_kernels_select("auto"), DT_OK);
    assert_ptr_equal(dt_k, best);
    unsetenv("DUCTILE_KERNELS");
}

static void an_unknown_set_is_refused_in_words(void **state)
{
    (void)state;
    const struct dt_kernels *was = dt_k;
    assert_int_equal(dt_kernels_select("sse9"), DT_E_UNSUPPORTED);
    assert_non_null(strstr(dt_error_message(), "'sse9'"));
    assert_non_null(strstr(dt_error_message(), "portable reference"));
    setenv("DUCTILE_KERNELS", "neon", 1);
    assert_int_equal(dt_kernels_select("auto"), DT_E_UNSUPPORTED);
    assert_non_null(strstr(dt_error_message(), "DUCTILE_KERNELS: kernel set 'neon'"));
    unsetenv("DUCTILE_KERNELS");
    assert_ptr_equal(dt_k, was);
}

static void the_team_has_the_size_asked_for(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        dt_ops_set_threads(n);
        assert_int_equal(dt_ops_threads(), n);
    }
    dt_ops_set_threads(-3);
    assert_int_equal(dt_ops_threads(), 1);
}

enum { T = 64, C = 768 };

static void every_operation(const struct dt_kernels *k, float *p[6], uint16_t *h, int32_t *ids,
                            double *loss, int64_t *fixed)
{
    int flags = 0;
    struct dt_norm n = {.rows = T,
                        .cols = C,
                        .groups = 1,
                        .x = p[0],
                        .ldx = C,
                        .w = p[1],
                        .mean = p[2],
                        .rstd = p[3],
                        .eps = 1e-5f,
                        .y = p[4],
                        .ldy = C,
                        .dy = p[4],
                        .dx = p[5],
                        .lddx = C,
                        .dw = p[3] + T,
                        .db = p[3] + T + C};
    struct dt_adamw a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1};
    struct dt_u128 sum = {0, 0};
    k->norm_forward(&n);
    k->norm_backward(&n);
    k->rope(p[0], C, T, 12, 64, 32, ids, p[1], false);
    k->act_forward(DT_ACT_SILU, NULL, h, C, p[0], p[1], C, T, C);
    k->act_backward(DT_ACT_SILU, p[2], p[3], C, p[4], C, p[0], p[1], C, T, C);
    k->embed_forward(p[0], p[1], p[2], ids, ids, T, C);
    k->embed_backward(p[1], p[2], p[0], ids, ids, T, C);
    k->loss(p[0], C, ids, loss, T, C, false);
    k->sum(loss, T);
    k->bias_backward(p[1], p[0], C, T, C);
    k->add(p[0], C, p[1], C, T, C);
    k->copy(h, DT_BF16, C, p[0], DT_F32, C, T, C);
    k->adamw(p[0], p[1], p[2], p[3], T * C, &a);
    k->block_norms(p[3], T * C, 0, &sum);
    k->fixed_add(fixed, C, p[3], C, T, C, 30, 60, &flags);
    k->fixed_sum(fixed, fixed + T * C, T * C);
    k->fixed_get(p[0], fixed, T * C, 30, 7);
    k->embed_backward_fixed(fixed, fixed + T * C, p[3], ids, ids, T, C, 30, 60, &flags);
    k->fill_normal(p[0], T * C, 0, 1, 1, 1);
    k->fill(p[0], T * C, 1);
    k->zero(p[2], T * C * sizeof(float));
    k->add(p[0], C, p[1], C, 1, 16); /* too small for the team, between two that are not */
    k->zero(p[1], T * C * sizeof(float));
}

static void no_operation_allocates(void **state)
{
    (void)state;
    if (!COUNTS_ALLOCATIONS)
        skip();
    float *p[6];
    for (int i = 0; i < 6; i++)
        p[i] = floats(T * C, PLAIN, (uint64_t)i);
    uint16_t *h = exact(T * C * sizeof *h);
    int32_t *ids = indices(T, T, 1);
    double *loss = exact(T * sizeof *loss);
    int64_t *fixed = exact(2 * T * C * sizeof *fixed);
    memset(fixed, 0, 2 * T * C * sizeof *fixed);
    for (int i = 0; i < SETS; i++) {
        const struct dt_kernels *k = dt_kernels_find(set_names[i]);
        for (int threads = 1; k && threads <= 3; threads++) {
            dt_ops_set_threads(threads);
            long before = allocations;
            every_operation(k, p, h, ids, loss, fixed);
            if (allocations != before)
                fail_msg("%s, %d threads: %ld allocations", k->name, threads, allocations - before);
        }
    }
    assert_true(allocations > 8); /* the count itself counts */
    dt_ops_set_threads(1);
    release();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_is_complete),
        cmocka_unit_test(sets_are_chosen_by_name),
        cmocka_unit_test(an_unknown_set_is_refused_in_words),
        cmocka_unit_test(the_team_has_the_size_asked_for),
        cmocka_unit_test(no_operation_allocates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
