/* Checkpoints between different numbers of workers: saved on 4, gone on with on 1, 2, 3 and 7, with
 * the bits of the run that never stopped (`reduction: exact`). A checkpoint's data files do not
 * show how many wrote them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dist.h"
#include "fault/live.h"

/* 30 steps with saves at 10, 20 and 30; uneven homes: GPT-2's tensors are many and of odd sizes. */
#define TRAIN                                                                                      \
    "$D train run.yaml --model=gpt2 --reduction=exact --train.steps=30 --eval.every=0 "            \
    "--checkpoint.every=10 --checkpoint.keep=0 "
/* Name and hash of every tensor, weights and both moments. */
#define HASHES                                                                                     \
    "for f in model optimizer/exp_avg optimizer/exp_avg_sq; do "                                   \
    "$D inspect %s/$f.safetensors --hash --json | grep -e '\"name\"' -e '\"hash\"'; done"

static struct live l;

static int open_run(void **state)
{
    (void)state;
    dist_open("dist-resume");
    int rc = program_run(TRAIN "--output=four --workers=4 && " TRAIN "--output=one");
    if (rc != 0)
        fputs(program_out, stderr);
    return rc == 0 ? 0 : -1;
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static void expect_same(const char *a, const char *b)
{
    if (program_run(DIST_SAME, a, b) != 0)
        fail_msg("%s and %s differ: %s", a, b, program_out);
}

static void expect_same_hashes(const char *a, const char *b)
{
    static char first[sizeof program_out];
    program_expect(0, HASHES, a);
    assert_true(strlen(program_out) > 1000); /* some dozen tensors */
    memcpy(first, program_out, sizeof first);
    program_expect(0, HASHES, b);
    assert_string_equal(first, program_out);
}

static void test_on_other_numbers(void **state)
{
    (void)state;
    static const int workers[] = {1, 2, 3, 7};
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        program_expect(0,
                       "rm -rf go && cp -r four go && rm -r go/checkpoints/step-00000020 "
                       "go/checkpoints/step-00000030 && " TRAIN "--output=go --workers=%d",
                       workers[i]);
        assert_non_null(strstr(program_out, "going on from"));
        expect_same_hashes(DIST_STEP("four", "20"), DIST_STEP("go", "20"));
        expect_same_hashes(DIST_STEP("four", "30"), DIST_STEP("go", "30"));
        expect_same(DIST_STEP("four", "30"), DIST_STEP("go", "30"));
        program_expect(0, "$D ckpt verify go");
    }
    /* The hashes do tell states apart. */
    program_expect(0, HASHES " > a.txt", DIST_STEP("four", "10"));
    program_expect(1, "{ " HASHES "; } > b.txt; cmp a.txt b.txt", DIST_STEP("four", "20"));
}

static void test_written_by_any_number(void **state)
{
    (void)state;
    program_expect(0, TRAIN "--output=three --workers=3");
    static const char *const steps[] = {"10", "20", "30"};
    for (int i = 0; i < 3; i++) {
        char a[64], b[64];
        snprintf(a, sizeof a, "one/checkpoints/step-000000%s", steps[i]);
        snprintf(b, sizeof b, "three/checkpoints/step-000000%s", steps[i]);
        expect_same(a, b);
        snprintf(b, sizeof b, "four/checkpoints/step-000000%s", steps[i]);
        expect_same(a, b);
    }
}

/* Interrupted somewhere in the middle on 4, gone on with on 2; the places of saves differ, the
 * bits at the end do not. */
static void test_stopped(void **state)
{
    (void)state;
    live_start(&l, TRAIN "--output=stop --workers=4");
    assert_true(live_wait_for(&l, "step    12/"));
    kill(l.pid, SIGTERM);
    live_expect(&l, 75);
    live_expect_words(&l, "stopped by SIGTERM after step ");
    program_expect(0, "$D ckpt verify stop && ! test -d " DIST_STEP(
                          "stop", "30") " && " TRAIN "--output=stop --workers=2");
    assert_non_null(strstr(program_out, "going on from"));
    expect_same(DIST_STEP("four", "30"), DIST_STEP("stop", "30"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_other_numbers),
        cmocka_unit_test(test_written_by_any_number),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
