/* Kills the real `ductile train` at every file operation of a run of two saves, from the first
 * mkdir to the deletion of the older checkpoint. After each: a checkpoint that was complete is
 * still found and its checksums hold, the same command goes on and ends with the bits of an
 * undisturbed run, and nothing half-written is left.
 *
 * Each kill starts from a fresh directory: ten starts that bring no newer checkpoint are one of the
 * things tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "live.h"

#define WORKERS 2 /* kills are independent of each other */

#define SAME                                                                                       \
    "{ for f in model.safetensors optimizer/exp_avg.safetensors "                                  \
    "optimizer/exp_avg_sq.safetensors; do "                                                        \
    "cmp ref/checkpoints/step-00000004/$f %s/checkpoints/step-00000004/$f || exit 1; done; }"
#define NO_RUBBISH                                                                                 \
    "test -z \"$(find %s -name '*.tmp*' -o -name '.tmp-*' -o -name '.old-*' -o -name '.del-*' | "  \
    "tee /dev/stderr)\""
#define SHIM(dir, action, at)                                                                      \
    "ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=" DT_FAULT_SHIM " DT_FAULT_UNDER=$PWD/" dir  \
    " DT_FAULT_DO=" action " DT_FAULT_AT=" at

static long operations, first_saved, second_saved;

/* Number of the operation `what` whose path ends in `path`. */
static long operation(const char *trace, const char *what, const char *path)
{
    char line[1024];
    long found = 0;
    program_run("cat %s", trace);
    for (const char *p = program_out; *p; p = strchr(p, '\n') + 1) {
        long k;
        char name[32], where[512];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        size_t n = strlen(path);
        if (sscanf(line, "%ld %31s %511s", &k, name, where) == 3 && strcmp(name, what) == 0 &&
            strlen(where) >= n && strcmp(where + strlen(where) - n, path) == 0)
            found = k;
    }
    return found;
}

static int open_reference(void **state)
{
    (void)state;
    live_open("fault-train");
    live_micro_run();
    if (program_run("DT_FAULT_LOG=$PWD/trace " SHIM(
            "ref", "kill", "0") " $D train micro.yaml --output=$PWD/ref") != 0 ||
        program_run("wc -l < trace") != 0) {
        fputs(program_out, stderr);
        return -1;
    }
    operations = atol(program_out);
    first_saved = operation("trace", "rename", "/checkpoints/step-00000002");
    second_saved = operation("trace", "rename", "/checkpoints/step-00000004");
    return 0;
}

static int close_reference(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* 0 when all is well; else program_out says what is not. In a forked worker: no cmocka here. */
static int kill_at(int worker, long k, const char *action)
{
    char dir[32];
    int code;
    snprintf(dir, sizeof dir, "w%d", worker);
    code =
        program_run("rm -rf %s; " SHIM("%s", "%s", "%ld") " $D train micro.yaml --output=$PWD/%s",
                    dir, dir, action, k, dir);
    if (code != 128 + SIGKILL)
        return 1;
    if (k > first_saved &&
        program_run("$D ckpt ls %s | grep -q '%d .* complete' && $D ckpt verify %s", dir,
                    k > second_saved ? 4 : 2, dir) != 0)
        return 2;
    if (program_run("$D train micro.yaml --output=%s", dir) != 0)
        return 3;
    return program_run(SAME " && " NO_RUBBISH " && $D ckpt verify %s", dir, dir, dir) != 0 ? 4 : 0;
}

static void kill_everywhere(const char *action)
{
    static const char *const words[] = {
        "", "it was not killed", "the newest complete checkpoint is not found",
        "the same command does not go on", "the result is not the same"};
    pid_t pid[WORKERS];
    for (int w = 0; w < WORKERS; w++) {
        pid[w] = fork();
        if (pid[w] != 0)
            continue;
        int bad = 0;
        for (long k = 1 + w; k <= operations; k += WORKERS) {
            int what = kill_at(w, k, action);
            if (what)
                fprintf(stderr, "%s at operation %ld of %ld: %s:\n%s\n", action, k, operations,
                        words[what], program_out);
            bad += what != 0;
        }
        _exit(bad ? 1 : 0);
    }
    int failed = 0;
    for (int w = 0; w < WORKERS; w++) {
        int status;
        assert_int_equal(waitpid(pid[w], &status, 0), pid[w]);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

static void test_operations_are_seen(void **state)
{
    (void)state;
    assert_true(operations > 150);
    assert_true(first_saved > 0 && second_saved > first_saved && operations > second_saved);
    assert_true(operation("trace", "unlinkat", "model.safetensors") > second_saved); /* retention */
    print_message("%ld operations, checkpoints complete at %ld and %ld\n", operations, first_saved,
                  second_saved);
}

static void test_killed_before_every_operation(void **state)
{
    (void)state;
    kill_everywhere("kill");
}

static void test_killed_in_the_middle_of_every_write(void **state)
{
    (void)state;
    kill_everywhere("half");
}

static void test_no_progress(void **state)
{
    (void)state;
    for (int start = 1; start <= 10; start++)
        program_expect(128 + SIGKILL,
                       SHIM("stuck", "kill", "%ld") " $D train micro.yaml --output=$PWD/stuck",
                       start == 1 ? first_saved : (long)(first_saved - 40));
    program_expect(93, "$D train micro.yaml --output=stuck");
    assert_non_null(strstr(program_out, "10 starts from step 0"));
    assert_non_null(strstr(program_out, "/stuck/.starts"));
    program_expect(93, "$D train micro.yaml --output=stuck");
    program_expect(0, "rm stuck/.starts && $D train micro.yaml --output=stuck && " SAME, "stuck");
    /* A newer checkpoint is progress: the count begins again. */
    program_expect(
        0,
        "printf '0 10\\n' > stuck/.starts && $D train micro.yaml --output=stuck --train.steps=6");
}

int main(int argc, char **argv)
{
    (void)argv;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_are_seen),
        cmocka_unit_test(test_no_progress),
        cmocka_unit_test(test_killed_before_every_operation),
    };
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test(test_killed_in_the_middle_of_every_write),
    };
    return argc > 1 ? cmocka_run_group_tests(long_tests, open_reference, close_reference)
                    : cmocka_run_group_tests(tests, open_reference, close_reference);
}
