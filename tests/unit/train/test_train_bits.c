/* Same bits: any number of threads, stop and resume, recomputation; another kernel set may differ,
 * but trains the same model. What is compared are the files of the last checkpoint, weights and
 * both moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#define SAME_FILES                                                                                 \
    "for f in model.safetensors optimizer/exp_avg.safetensors optimizer/exp_avg_sq.safetensors; "  \
    "do "                                                                                          \
    "cmp %s/checkpoints/step-00000020/$f %s/checkpoints/step-00000020/$f || exit 1; done"

static void expect_same(const char *a, const char *b)
{
    program_expect(0, SAME_FILES, a, b);
}

static int open_run(void **state)
{
    (void)state;
    program_open("bits");
    program_tiny_run();
    return program_run("$D train run.yaml --output=one") == 0 ? 0
                                                              : (fputs(program_out, stderr), -1);
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static void test_threads(void **state)
{
    (void)state;
    program_expect(0, "$D train run.yaml --output=two --threads=2");
    expect_same("one", "two");
    program_expect(0, "$D train run.yaml --output=five --threads=5");
    expect_same("one", "five");
}

static void test_resume(void **state)
{
    (void)state;
    /* The schedule knows 20 steps from the start; the run is stopped by losing what came after
     * step 10. */
    program_expect(0, "cp -r one half && rm -r half/checkpoints/step-00000020 && $D train run.yaml "
                      "--output=half");
    assert_non_null(strstr(program_out, "going on from"));
    expect_same("one", "half");
}

static void test_recompute(void **state)
{
    (void)state;
    program_expect(0, "$D train run.yaml --output=again --train.recompute=block --threads=2");
    expect_same("one", "again");
}

static void test_bfloat16(void **state)
{
    (void)state;
    program_expect(0, "$D train run.yaml --output=b1 --train.dtype=bfloat16");
    program_expect(
        0,
        "$D train run.yaml --output=b2 --train.dtype=bfloat16 --threads=3 --train.recompute=block");
    expect_same("b1", "b2");
    program_expect(1, SAME_FILES, "b1", "one"); /* and this comparison can fail */
}

/* Every set that this machine can run, forced by name; the last loss stays near. */
static void test_forced_sets(void **state)
{
    (void)state;
    static const char *const sets[] = {"reference", "portable", "avx2", "avx512", "avx512bf16"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int code = program_run("$D train run.yaml --output=set-%s --kernels=%s", sets[i], sets[i]);
        if (code == 2 && i > 1 && strstr(program_out, sets[i]))
            continue; /* this CPU lacks it, and the message names it */
        assert_int_equal(code, 0);
        program_expect(0,
                       "a=$(grep eval_loss one/metrics.jsonl | tail -n 1 | sed "
                       "'s/.*eval_loss\":\\([0-9.]*\\).*/\\1/');"
                       "b=$(grep eval_loss set-%s/metrics.jsonl | tail -n 1 | sed "
                       "'s/.*eval_loss\":\\([0-9.]*\\).*/\\1/');"
                       "awk -v a=$a -v b=$b 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-4 * a && -d "
                       "< 1e-4 * a) }'",
                       sets[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),     cmocka_unit_test(test_resume),
        cmocka_unit_test(test_recompute),   cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_forced_sets),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
