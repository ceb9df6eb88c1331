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

/* Beyond the positions of the model the table of learned ones ends, and dynamic RoPE would stretch
 * every sequence by the longest one. */
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
        program_expect(0, "$D eval " MODELS "/%s --data ids.jsonl --max-length %d",
                       bounded[i].model, bounded[i].positions);
        program_expect(2, "$D eval " MODELS "/%s --data ids.jsonl --max-length %d",
                       bounded[i].model, bounded[i].positions + 1);
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

/* Weights that are no numbers: said, never dressed up as a token or as a lack of memory. */
static void test_nan_weights(void **state)
{
    (void)state;
    /* Every byte behind the header becomes 0xff, which is NaN in every dtype. */
    program_expect(0,
                   "mkdir -p nan && cp " MODELS "/llama_default/config.json nan && "
                   "f=" MODELS
                   "/llama_default/model.safetensors && n=$(od -An -t u8 -N 8 $f | tr -d ' ') && "
                   "all=$(stat -c %%s $f) && { head -c $((n + 8)) $f; head -c $((all - n - 8)) "
                   "/dev/zero | tr '\\0' '\\377'; "
                   "} > nan/model.safetensors && echo '{\"input_ids\": [1, 2, 3]}' > three.jsonl");
    program_expect(0, "$D eval nan --data three.jsonl --json");
    assert_non_null(strstr(program_out, "\"loss\": null"));
    program_expect(1, "$D generate nan --ids 1,2 --print-ids");
    assert_non_null(strstr(program_out, "not numbers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_stays_within_positions),
        cmocka_unit_test(test_done_stays_done),
        cmocka_unit_test(test_nan_weights),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
