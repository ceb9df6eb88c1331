/* Limits that a user can run into and that must not turn into wrong numbers or wrong exit codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#define MODELS DT_TEST_DIR "/golden/models"

static int open_run(void **state)
{
    (void)state;
    program_open("limits");
    program_tiny_run();
    return 0;
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* Beyond the positions of the model the table of learned ones ends, and dynamic RoPE would stretch every
 * sequence by the longest one. */
static void test_eval_stays_within_positions(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int positions;
    } bounded[] = {{"gpt2", 96}, {"llama_dynamic", 48}};
    program_expect(0, "i=0; r=1; while [ $i -lt 120 ]; do r=$r,$((i %% 50)); i=$((i + 1)); done; "
                      "echo \"{\\\"input_ids\\\": [$r]}\" > ids.jsonl");
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) {
        program_expect(0, "$D eval " MODELS "/%s --data ids.jsonl --max-length %d", bounded[i].model,
                       bounded[i].positions);
        program_expect(2, "$D eval " MODELS "/%s --data ids.jsonl --max-length %d", bounded[i].model,
                       bounded[i].positions + 1);
        assert_non_null(strstr(program_out, "positions; give at most that"));
    }
    program_expect(0, "$D eval " MODELS "/llama_default --data ids.jsonl --max-length 97");
}

/* A scheduler may start a run that is done as often as it likes. */
static void test_done_stays_done(void **state)
{
    (void)state;
    program_expect(0, "$D train run.yaml");
    for (int i = 0; i < 12; i++)
        program_expect(0, "$D train run.yaml");
    assert_non_null(strstr(program_out, "nothing to do"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_stays_within_positions),
        cmocka_unit_test(test_done_stays_done),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
