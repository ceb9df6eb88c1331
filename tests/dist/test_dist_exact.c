/* `reduction: exact`: weights and both moments after 20 steps are the same bytes, whatever the
 * number of workers, the size of micro-batches, the workers' rates and threads. With float sums
 * they are not, so the comparison means something. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dist.h"

#define TRAIN "$D train run.yaml --eval.every=0 --checkpoint.every=0 "
#define SAME_AS_ONE DIST_SAME, DIST_STEP("one", "20"), DIST_STEP("many", "20")

static int open_run(void **state)
{
    (void)state;
    dist_open("dist-exact");
    return 0;
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* `same` are options that both runs have. */
static void expect_same(const char *same, const char *options)
{
    program_expect(0, "rm -rf many && " TRAIN "%s %s --output=many", same, options);
    int code = program_run(SAME_AS_ONE);
    if (code != 0)
        fail_msg("%s %s: not the bits of one worker: %s", same, options, program_out);
}

static void test_any_number(void **state)
{
    (void)state;
    static const char *const options[] = {
        "--workers=2",
        "--workers=3",
        "--workers=5",
        "--workers=8",
        "--workers=1 --microbatch.tokens=64",
        "--workers=2 --microbatch.tokens=512",
        "--workers=3 --microbatch.tokens=64",
        "--workers=5 --microbatch.tokens=512",
        "--workers=8 --microbatch.tokens=64",
        "--workers=3 --rates=[1,3,2]",
        "--workers=2 --rates=[5,1] --microbatch.tokens=64",
        "--workers=1 --threads=2",
        "--workers=2 --threads=2",
        "--workers=3 --threads=2 --rates=[1,3,2] --microbatch.tokens=512",
        "--workers=2 --train.recompute=block",
    };
    program_expect(0, TRAIN "--reduction=exact --output=one");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_same("--reduction=exact", options[i]);
}

static void test_models(void **state)
{
    (void)state;
    static const char *const same[] = {
        "--reduction=exact --model=tied --train.dtype=bfloat16",
        "--reduction=exact --model=gpt2",
        "--reduction=exact --model=gpt2 --train.dtype=bfloat16",
        "--reduction=exact --train.freeze=[model.embed_tokens.*]",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        program_expect(0, "rm -rf one && " TRAIN "%s --output=one", same[i]);
        expect_same(same[i], "--workers=3");
        expect_same(same[i], "--workers=5 --microbatch.tokens=64");
    }
}

/* Of four changes of plan at least one shows when sums are float: here all do. */
static void test_float_sums_differ(void **state)
{
    (void)state;
    static const char *const options[] = {"--workers=2", "--workers=3", "--workers=8",
                                          "--workers=1 --microbatch.tokens=64"};
    int different = 0;
    program_expect(0, "rm -rf one && " TRAIN "--output=one");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        program_expect(0, "rm -rf many && " TRAIN "%s --output=many", options[i]);
        different += program_run(SAME_AS_ONE) == 1;
    }
    assert_true(different > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_float_sums_differ),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
