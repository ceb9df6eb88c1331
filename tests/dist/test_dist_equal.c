/* One step on N workers is one step on one worker: the loss, the norm of the gradient, and every
 * tensor's gradient, within the tolerances of numerics.md.
 *
 * The gradient is read from the checkpoint after one step without clipping: Adam's first moment is
 * then (1 − β₁) g, so relative differences are those of g. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dist.h"

/* numerics.md: gradients of one step ‖Δ_t‖ ≤ 1e-6 (‖g_t‖ + ‖g‖_global), loss 1e-6 relative. Sums
 * over workers have another order; what enters a GEMM, bfloat16 or not, is the same. */
#define TOLERANCE 1e-6
#define ONE_STEP                                                                                   \
    "$D train --optimizer.clip=0 --optimizer.warmup=0 --train.steps=1 --eval.every=0 "             \
    "--microbatch.tokens=128"
#define MOMENT DIST_STEP("%s", "01") "/optimizer/exp_avg.safetensors"

static const char *const models[] = {"model", "tied", "gpt2"};
static const char *const dtypes[] = {"float32", "bfloat16"};

static int open_run(void **state)
{
    (void)state;
    dist_open("dist-equal");
    return program_run("sed '/^batch:/d' run.yaml > rows.yaml");
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static double moments_apart(const char *a, const char *b, char *tensor, size_t size)
{
    char path[2][256];
    snprintf(path[0], sizeof path[0], MOMENT, a);
    snprintf(path[1], sizeof path[1], MOMENT, b);
    struct dist_far far = dist_compare(path[0], path[1]);
    snprintf(tensor, size, "%s", far.tensor);
    return far.worst;
}

static void expect_near(const char *dir, const char *name)
{
    double one = dist_metric("one", 1, name), many = dist_metric(dir, 1, name);
    if (!(one > 0) || !(fabs(one - many) <= TOLERANCE * one))
        fail_msg("%s: %s %.9g, on one worker %.9g", dir, name, many, one);
}

/* One worker's step stands in "one". Removes what it makes. */
static void expect_equal(const char *options, int workers)
{
    char tensor[128];
    program_expect(0, ONE_STEP " %s --output=many --workers=%d", options, workers);
    expect_near("many", "loss");
    expect_near("many", "grad_norm");
    double apart = moments_apart("one", "many", tensor, sizeof tensor);
    print_message("%s, %d workers: gradients %.1e apart\n", options, workers, apart);
    if (!(apart <= TOLERANCE))
        fail_msg("%s, %d workers: the gradient of %s is %.2e off", options, workers, tensor, apart);
    program_expect(0, "rm -r many");
}

static void try_workers(const char *options, const int *workers, int count)
{
    program_expect(0, ONE_STEP " %s --output=one --workers=1", options);
    for (int i = 0; i < count; i++)
        expect_equal(options, workers[i]);
    program_expect(0, "rm -r one");
}

/* A batch of 512 tokens is 18 rows of uneven length: neither divides by 4 or 8. */
static void test_models(void **state)
{
    (void)state;
    static const int workers[] = {2, 3, 4, 8};
    char options[128];
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            snprintf(options, sizeof options, "run.yaml --model=%s --train.dtype=%s", models[m],
                     dtypes[t]);
            try_workers(options, workers, 4);
        }
}

/* 7 rows on 2, 3, 4 and 8 workers; 3 rows on 8, of whom 5 have nothing to compute. */
static void test_uneven_batches(void **state)
{
    (void)state;
    static const int workers[] = {8, 4, 3, 2};
    try_workers("rows.yaml --batch.sequences=7", workers, 4);
    try_workers("rows.yaml --batch.sequences=3", workers, 2);
    try_workers("rows.yaml --batch.sequences=1", workers, 1);
}

static void test_rates(void **state)
{
    (void)state;
    program_expect(0, ONE_STEP " run.yaml --output=one --workers=1");
    expect_equal("run.yaml --rates=[1,3,2]", 3);
    program_expect(0, "rm -r one");
}

/* The comparison sees what it is for: one row of 18 that is missing, or counted twice. */
static void test_it_can_fail(void **state)
{
    (void)state;
    char tensor[128];
    program_expect(0,
                   ONE_STEP " rows.yaml --batch.sequences=18 --output=one --workers=1 && " ONE_STEP
                            " rows.yaml --batch.sequences=17 --output=many --workers=2");
    assert_true(moments_apart("one", "many", tensor, sizeof tensor) > 1000 * TOLERANCE);
    assert_true(fabs(dist_metric("one", 1, "loss") - dist_metric("many", 1, "loss")) >
                10 * TOLERANCE);
    program_expect(0, "rm -r one many");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_uneven_batches),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_it_can_fail),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
