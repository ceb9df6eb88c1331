/* What may change when a run goes on, what happens to checkpoints that are broken, and that nothing
 * is deleted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

static int open_run(void **state)
{
    (void)state;
    program_open("resume");
    program_tiny_run();
    return program_run(
        "$D train run.yaml && cp -r model model2 && sed -i 's/1e-5/1e-6/' model2/config.json && "
        "cp rows.jsonl rows2.jsonl");
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static void test_refused_changes(void **state)
{
    (void)state;
    static const struct {
        const char *option, *key, *old, *now;
    } changes[] = {
        {"--optimizer.lr=0.02", "optimizer.lr", "0.01", "0.02"},
        {"--seed=4", "seed", "3", "4"},
        {"--batch.tokens=256", "batch.tokens", "512", "256"},
        {"--model=model2", "model", "/model", "/model2"},
        {"--data.train=rows2.jsonl", "data.train", "rows.jsonl", "rows2.jsonl"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        program_expect(
            2, "rm -rf c && cp -r out c && $D train run.yaml --output=c --train.steps=21 %s",
            changes[i].option);
        char line[64];
        snprintf(line, sizeof line, "%s: was ", changes[i].key);
        const char *at = strstr(program_out, line);
        if (!at || !strstr(at, changes[i].old) || !strstr(at, changes[i].now))
            fail_msg("no key with both values:\n%s", program_out);
        program_expect(0, "$D train run.yaml --output=c --train.steps=21 %s --allow-change=%s",
                       changes[i].option, changes[i].key);
        assert_non_null(strstr(program_out, "going on from"));
    }
    program_expect(2, "$D train run.yaml --output=c --allow-change=optimizer.lrr");
}

static void test_free_changes(void **state)
{
    (void)state;
    program_expect(
        0, "rm -rf c && cp -r out c && $D train run.yaml --output=c --train.steps=22 --threads=2 "
           "--microbatch.tokens=128 --log.every=5 --checkpoint.every=3 --checkpoint.keep=5");
    assert_non_null(strstr(program_out, "going on from"));
}

#define FLIP "printf 'X' | dd of=%s bs=1 seek=9000 conv=notrunc status=none"

static void test_broken(void **state)
{
    (void)state;
    program_expect(0, "rm -rf c && cp -r out c && " FLIP " && $D train run.yaml --output=c",
                   "c/checkpoints/step-00000020/model.safetensors");
    assert_non_null(strstr(program_out, "do not match their checksum"));
    assert_non_null(strstr(program_out, "falling back to the checkpoint of step 10"));
    program_expect(0, "cmp c/checkpoints/step-00000020/model.safetensors "
                      "out/checkpoints/step-00000020/model.safetensors");
    program_expect(
        3,
        "rm -rf c && cp -r out c && for s in 10 20; do f=c/checkpoints/step-000000$s/optimizer/"
        "exp_avg.safetensors; " FLIP "; done; $D train run.yaml --output=c",
        "$f");
    assert_non_null(strstr(program_out, "--start-over"));
    program_expect(
        0,
        "$D train run.yaml --output=c --start-over && ls -d c/checkpoints.aside-1/step-00000010 "
        "c/checkpoints.aside-1/step-00000020 && cmp c/checkpoints/step-00000020/model.safetensors "
        "out/checkpoints/step-00000020/model.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_changes),
                                       cmocka_unit_test(test_free_changes),
                                       cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, open_run, close_run);
}
