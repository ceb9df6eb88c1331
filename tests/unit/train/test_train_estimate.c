/* `ductile estimate` beside the peak resident size of the same run: four configurations, within 3 %
 * or 20 MB. And a run that may not use what it needs is refused before the first step, with advice
 * that works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

static void write_model(const char *dir, int width, int layers, int vocabulary)
{
    char path[64], text[512];
    if (program_run("mkdir -p %s", dir) != 0)
        abort();
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"num_"
             "attention_heads\":4,"
             "\"num_key_value_heads\":2,\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_"
             "embeddings\":512,"
             "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}",
             width, layers, 3 * width, vocabulary);
    program_write(path, text);
}

static int open_run(void **state)
{
    (void)state;
    program_open("estimate");
    program_tiny_run();
    write_model("small", 256, 2, 4096);
    write_model("middle", 384, 4, 4096);
    write_model("wide", 256, 2, 40000);
    return program_run("for i in $(seq 20000); do echo \"line $i says that $i times $i is "
                       "$((i*i)), or so\"; done > t.txt;"
                       "$D tokenize --train --vocab-size 1000 -o wide t.txt && "
                       "for i in $(seq 30); do cat rows.jsonl; done > many.jsonl && "
                       "sed -i 's/rows.jsonl/many.jsonl/; s/, eval_fraction: 0.1//' run.yaml");
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* The run's peak in bytes: a shell that waits for one child would itself be counted, so this
 * process forks. */
static long long peak_of(const char *options)
{
    char command[1024];
    struct rusage used;
    int status;
    snprintf(command, sizeof command,
             "cd '%s' && rm -rf out && exec '%s' train run.yaml %s --train.steps=3 --eval.every=0 "
             ">/dev/null 2>out.log",
             program_dir, DT_DUCTILE, options);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(wait4(pid, &status, 0, &used), pid);
    if (status != 0)
        program_run("cat out.log");
    if (status != 0)
        fail_msg("the run ended with %x:\n%s", (unsigned)status, program_out);
    return (long long)used.ru_maxrss * 1024;
}

static void test_four_runs(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("skipped: a sanitizer has memory of its own\n");
    skip();
#endif
    static const char *const options[] = {
        "--model=small --batch.tokens=1024 --microbatch.tokens=512",
        "--model=middle --batch.tokens=4096 --microbatch.tokens=2048 --data.max_length=512",
        "--model=middle --train.dtype=bfloat16 --train.recompute=block --batch.tokens=4096 "
        "--microbatch.tokens=2048",
        "--model=wide --train.dtype=bfloat16 --data.train=t.txt --batch.tokens=2048 "
        "--microbatch.tokens=2048 --threads=2",
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        program_expect(0, "$D estimate run.yaml %s --json 2>/dev/null", options[i]);
        const char *at = strstr(program_out, "\"total_bytes\"");
        assert_non_null(at);
        long long estimate = atoll(strchr(at, ':') + 1), peak = peak_of(options[i]);
        long long off = estimate > peak ? estimate - peak : peak - estimate;
        print_message("%s\n  estimated %.1f MB, peak %.1f MB, off %.1f MB\n", options[i],
                      (double)estimate / 1e6, (double)peak / 1e6, (double)(estimate - peak) / 1e6);
        if (i == 0)
            assert_true(peak < 300000000);
        assert_true(off <= 20000000 || off * 100 <= 3 * peak);
    }
}

static void test_too_large(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("skipped: the run that fits takes minutes under a sanitizer\n");
    skip();
#endif
    long long tokens = 0;
    const char *run = "$D train run.yaml --model=middle --batch.tokens=8192 "
                      "--microbatch.tokens=8192 --train.steps=3 "
                      "--memory.limit=500 --output=limited";
    program_expect(2, "%s", run);
    if (!strstr(program_out, "memory.limit allows"))
        fail_msg("refused for another reason:\n%s", program_out);
    assert_null(strstr(program_out, "step     1/"));
    const char *at = strstr(program_out, "microbatch.tokens: ");
    if (!at)
        fail_msg("no advice: %s", program_out);
    tokens = atoll(at + strlen("microbatch.tokens: "));
    assert_in_range(tokens, 64, 4096);
    int block = strstr(program_out, "train.recompute: block") != NULL;
    program_expect(0, "%s --microbatch.tokens=%lld %s", run, tokens,
                   block ? "--train.recompute=block" : "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_four_runs),
                                       cmocka_unit_test(test_too_large)};
    return cmocka_run_group_tests(tests, open_run, close_run);
}
