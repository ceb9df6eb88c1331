/* SIGTERM, SIGINT and SIGUSR1 at every stage of a run: while text is tokenized, before the first
 * step, between steps, in an evaluation, in a save. Exit code 75, words that name the signal, and
 * the same command goes on to the bits of an undisturbed run. The shim stops the program at a file
 * operation, so the moment is exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "live.h"

#define STEPS 300 /* long enough to be caught in the middle, some seconds on a slow machine */
#define LAST "checkpoints/step-00000300"
#define RUN "$D train tiny.yaml --train.steps=300 --checkpoint.every=100 --eval.every=0"
#define SAME(a, b)                                                                                 \
    "for f in model.safetensors optimizer/exp_avg.safetensors optimizer/exp_avg_sq.safetensors; "  \
    "do "                                                                                          \
    "cmp " a "/$f " b "/$f || exit 1; done"

static struct live l;

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}};

static int open_run(void **state)
{
    (void)state;
    live_open("fault-signals");
    program_tiny_run();
    live_micro_run();
    int rc = program_run("mv run.yaml tiny.yaml && " RUN
                         " --output=ref && $D train micro.yaml --output=micro-ref");
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

static void test_between_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char words[64];
        int saved = 0;
        snprintf(words, sizeof words, "stopped by %s after step ", signals[i].name);
        live_start(&l, RUN " --output=s%zu", i);
        assert_true(live_wait_for(&l, "step    20/"));
        kill(l.pid, signals[i].number);
        live_expect(&l, 75);
        live_expect_words(&l, words);
        live_expect_words(&l, "the same command goes on");
        assert_int_equal(sscanf(strstr(l.text, words) + strlen(words), "%d", &saved), 1);
        assert_in_range(saved, 20, STEPS - 1);
        program_expect(0, "$D ckpt verify s%zu && grep '\"event\":\"stopped\"' s%zu/metrics.jsonl",
                       i, i);
        assert_non_null(strstr(program_out, signals[i].name));
        program_expect(0, RUN " --output=s%zu", i);
        assert_non_null(strstr(program_out, "going on from"));
        program_expect(0, SAME("ref/" LAST, "s%zu/" LAST), i);
    }
}

/* An evaluation that takes long is left in the middle, after a save of the step it stood at. */
static void test_in_an_evaluation(void **state)
{
    (void)state;
    program_expect(0, "for i in $(seq 400); do cat rows.jsonl; done > many.jsonl");
    live_start(&l, "$D train tiny.yaml --train.steps=20 --eval.every=5 --data.eval=many.jsonl "
                   "--data.eval_fraction=0 "
                   "--output=e");
    assert_true(live_wait_for(&l, "step     5/"));
    struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    nanosleep(&pause, NULL);
    kill(l.pid, SIGTERM);
    live_expect(&l, 75);
    live_expect_words(&l, "stopped by SIGTERM after step 5,");
    assert_null(strstr(l.text, "eval      5/")); /* it was not finished first */
    program_expect(0, "$D ckpt verify e");
    program_expect(
        0,
        "$D train tiny.yaml --train.steps=20 --data.eval_fraction=0 --eval.every=0 --output=e && "
        "$D train tiny.yaml --train.steps=20 --data.eval_fraction=0 --eval.every=0 --output=e-ref "
        "&& " SAME("e-ref/checkpoints/step-00000020", "e/checkpoints/step-00000020"));
}

/* Operation number of the first line of a trace of the micro run that has `words`. */
static long operation(const char *words)
{
    program_run(
        "rm -rf t trace; ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=" DT_FAULT_SHIM
        " DT_FAULT_UNDER=$PWD/t DT_FAULT_LOG=$PWD/trace $D train micro.yaml --output=$PWD/t");
    program_run("grep -m 1 '%s' trace", words);
    return atol(program_out);
}

/* Stops the micro run at operation k, sends the signals, lets it go on. */
static void stop_at(const char *dir, long k, int number, int second)
{
    assert_true(k > 0);
    live_start(&l,
               "$SHIM DT_FAULT_UNDER=$PWD/%s DT_FAULT_AT=%ld DT_FAULT_DO=stop $D train micro.yaml "
               "--output=$PWD/%s",
               dir, k, dir);
    assert_true(live_stopped(&l));
    kill(l.pid, number);
    if (second)
        kill(l.pid, second);
    kill(l.pid, SIGCONT);
}

static void goes_on(const char *dir)
{
    program_expect(0,
                   "$D train micro.yaml --output=%s && " SAME(
                       "micro-ref/checkpoints/step-00000004",
                       "%s/checkpoints/step-00000004") " && test -z \"$(find %s -name '*.tmp*' -o "
                                                       "-name '.tmp-*')\"",
                   dir, dir, dir);
}

static void test_in_a_save(void **state)
{
    (void)state;
    stop_at("v", operation("pwrite .*step-00000002/model.safetensors"), SIGINT, 0);
    live_expect(&l, 75);
    live_expect_words(
        &l, "stopped by SIGINT after step 2, saved"); /* the save that it came in is finished */
    program_expect(0, "$D ckpt verify v");
    goes_on("v");
}

static void test_second_signal(void **state)
{
    (void)state;
    stop_at("w", operation("pwrite .*step-00000002/model.safetensors"), SIGTERM, SIGINT);
    live_expect(&l, 75);
    live_expect_words(&l, "second signal, leaving now");
    assert_null(strstr(l.text, "saved /")); /* at once: the save was left in the middle */
    goes_on("w");
}

static void test_before_the_first_step(void **state)
{
    (void)state;
    static const char *const moments[] = {"create .*/.lock", "write .*/cache/.*\\.bin\\.tmp",
                                          "rename .*/cache/.*\\.bin", "write .*/config.yaml"};
    for (size_t m = 0; m < sizeof moments / sizeof *moments; m++) {
        char dir[16], words[64];
        snprintf(dir, sizeof dir, "b%zu", m);
        snprintf(words, sizeof words, "stopped by %s before the first step", signals[m % 3].name);
        stop_at(dir, operation(moments[m]), signals[m % 3].number, 0);
        live_expect(&l, 75);
        live_expect_words(&l, words);
        goes_on(dir);
    }
}

/* Tokenizing megabytes of text is left promptly, without the shim: the time between signal and end
 * is measured. */
static void test_while_tokenizing(void **state)
{
    (void)state;
    struct timespec before, after;
    program_expect(0, "for i in $(seq 60000); do echo \"line $i says that $i times $i is $((i*i)), "
                      "or so\"; done > lines.txt;"
                      "for i in $(seq 20); do cat lines.txt; done > long.txt; mkdir -p words; cp "
                      "micro/config.json words/; "
                      "sed -i 's/\"vocab_size\":64/\"vocab_size\":512/' words/config.json; "
                      "$D tokenize --train --vocab-size 400 -o words lines.txt");
    live_start(&l, "$D train micro.yaml --model=words --data.train=long.txt --output=k");
    assert_true(live_wait_for(&l, "model:"));
    struct timespec pause = {.tv_nsec = 200 * 1000 * 1000};
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_MONOTONIC, &before);
    kill(l.pid, SIGTERM);
    live_expect(&l, 75);
    clock_gettime(CLOCK_MONOTONIC, &after);
    live_expect_words(&l, "stopped by SIGTERM before the first step");
    assert_true(after.tv_sec - before.tv_sec <= 2);
    assert_null(strstr(l.text, "data:")); /* it was in the middle */
    program_expect(0, "ls k/cache/*.tmp.*");
    program_expect(0, "$D train micro.yaml --model=words --data.train=long.txt --output=k && ! ls "
                      "k/cache/*.tmp.*");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_steps),
        cmocka_unit_test(test_in_an_evaluation),
        cmocka_unit_test(test_in_a_save),
        cmocka_unit_test(test_second_signal),
        cmocka_unit_test(test_before_the_first_step),
        cmocka_unit_test(test_while_tokenizing),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
