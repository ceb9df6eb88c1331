/* A run of two workers and two saves, of which one process is killed at every file operation: the
 * coordinator (`train`) or either worker, each of whom writes its ranges of every file. The
 * argument is the distance of the operations that are tried: 1 for all.
 *
 * After each kill: the run has ended, with 75 and the name of a worker that died; what is called a
 * checkpoint is one; the same command ends with the bits of an undisturbed run and leaves nothing
 * half-written. And one writer whose disk is full costs one save, not the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crew.h"

#include <errno.h>

#define TESTERS 2 /* kills are independent of each other */
#define RUN "$D train micro.yaml --workers=2"
#define SAME                                                                                       \
    "{ for f in model.safetensors optimizer/exp_avg.safetensors "                                  \
    "optimizer/exp_avg_sq.safetensors; do "                                                        \
    "cmp ref/checkpoints/step-00000004/$f %s/checkpoints/step-00000004/$f || exit 1; done; }"

/* Whom the shim chooses. */
static const struct role {
    const char *name, *settings;
    int worker; /* its rank: workers start in that order; -1: `train` */
} roles[] = {
    {"train", "DT_FAULT_IN=train", -1},
    {"the first worker", "DT_FAULT_IN=worker DT_FAULT_NTH=0", 0},
    {"the second worker", "DT_FAULT_IN=worker DT_FAULT_NTH=1", 1},
};
enum { ROLES = sizeof roles / sizeof *roles };

static int distance = 7;

/* The run over the shim, in directory `dir`: at operation k of the chosen process `action`. */
static int shimmed(const struct role *r, const char *dir, const char *action, long k,
                   const char *options)
{
    return program_run("rm -rf %s %s.trace; env LD_PRELOAD=" DT_FAULT_SHIM
                       " %s DT_FAULT_UNDER=$PWD/%s DT_FAULT_DO=%s "
                       "DT_FAULT_AT=%ld DT_FAULT_LOG=$PWD/%s.trace " RUN " --output=$PWD/%s %s",
                       dir, dir, r->settings, dir, action, k, dir, dir, options);
}

static long operations_of(const struct role *r)
{
    if (shimmed(r, "traced", "kill", 0, "") != 0 || program_run("wc -l < traced.trace") != 0)
        return 0;
    return atol(program_out);
}

/* Number of the first operation in the last trace that has `words`. */
static long operation(const char *dir, const char *words)
{
    program_run("grep -m 1 '%s' %s.trace", words, dir);
    return atol(program_out);
}

static int open_reference(void **state)
{
    (void)state;
    live_open("fault-writers");
    live_micro_run();
    /* Wide enough for pages of either worker in every file. */
    int rc = program_run("sed -i 's/\"hidden_size\":16/\"hidden_size\":32/; "
                         "s/\"vocab_size\":64/\"vocab_size\":256/' micro/config.json && " RUN
                         " --output=ref");
    if (rc != 0)
        fputs(program_out, stderr);
    return rc == 0 ? 0 : -1;
}

static int close_reference(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* ---- Kills ---- */

/* A worker that has said that its part is done may die: the run ends well. */
static bool ended_well(const struct role *r, int code, bool *was_named)
{
    char words[64];
    if (r->worker < 0)
        return code == 128 + SIGKILL;
    snprintf(words, sizeof words, "worker %d (host ", r->worker);
    const char *who = strstr(program_out, words);
    *was_named = who && strstr(who, ") was killed by signal 9 (SIGKILL); ");
    return code == 0 || (code == 75 && *was_named);
}

/* NULL when all is well; else what is not, with more in program_out. In a forked tester: no cmocka
 * here. */
static const char *kill_at(const struct role *r, const char *dir, long k, const char *action,
                           long first_saved, bool *was_named)
{
    if (!ended_well(r, shimmed(r, dir, action, k, ""), was_named))
        return "it did not end as it should";
    if (r->worker < 0 && k > first_saved && program_run("ls -d %s/checkpoints/step-*", dir) != 0)
        return "a complete checkpoint is lost";
    if (program_run("! ls -d %s/checkpoints/step-* || $D ckpt verify %s", dir, dir) != 0)
        return "what is called a checkpoint is none";
    if (program_run(RUN " --output=%s", dir) != 0)
        return "the same command does not go on";
    if (program_run(SAME " && $D ckpt verify %s", dir, dir) != 0)
        return "the result is not the same";
    return *crew_rubbish(dir, true) ? "something is left" : NULL;
}

static int try_every(const struct role *r, int tester, long operations, long first_saved,
                     const char *action)
{
    char dir[32];
    int bad = 0, names = 0, tries = 0;
    snprintf(dir, sizeof dir, "t%d", tester);
    for (long k = 1 + tester * distance; k <= operations; k += TESTERS * distance) {
        bool was_named = false;
        const char *wrong = kill_at(r, dir, k, action, first_saved, &was_named);
        if (wrong)
            fprintf(stderr, "%s, %s at operation %ld of %ld: %s:\n%s\n", r->name, action, k,
                    operations, wrong, program_out);
        bad += wrong != NULL;
        names += was_named;
        tries++;
    }
    if (r->worker >= 0 && 2 * names < tries) {
        fprintf(stderr, "%s: only %d of %d kills were noticed\n", r->name, names, tries);
        bad++;
    }
    return bad;
}

static void kill_everywhere(const struct role *r, const char *action)
{
    pid_t pid[TESTERS];
    long operations = operations_of(r);
    long first_saved = operation("traced", "rename .*/step-00000002$");
    print_message("%s: %ld operations\n", r->name, operations);
    assert_true(operations > (r->worker < 0 ? 100 : 30));
    assert_true(r->worker >= 0 || first_saved > 0);
    for (int t = 0; t < TESTERS; t++) {
        pid[t] = fork();
        if (pid[t] == 0)
            _exit(try_every(r, t, operations, first_saved, action) ? 1 : 0);
    }
    int failed = 0;
    for (int t = 0; t < TESTERS; t++) {
        int status;
        assert_int_equal(waitpid(pid[t], &status, 0), pid[t]);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

static void test_killed_before_operations(void **state)
{
    (void)state;
    for (int i = 0; i < ROLES; i++)
        kill_everywhere(&roles[i], "kill");
}

static void test_killed_in_the_middle_of_writes(void **state)
{
    (void)state;
    for (int i = 0; i < ROLES; i++)
        kill_everywhere(&roles[i], "half");
}

/* ---- A disk that is full for one writer ---- */

static void expect_named_save(const char *step, int worker)
{
    char words[64], who[32];
    snprintf(words, sizeof words, "saving step %s failed: ", step);
    const char *at = strstr(program_out, words);
    if (!at)
        fail_msg("\"%s\" is not in:\n%s", words, program_out);
    static char line[4096];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    snprintf(who, sizeof who, "worker %d ", worker);
    assert_non_null(strstr(line, who)); /* one line tells it all */
    assert_non_null(strstr(line, "the disk is full"));
    assert_non_null(strstr(line, "training goes on"));
    assert_null(strstr(at + strlen(words), words));
}

static void test_full_once(void **state)
{
    (void)state;
    char full[16];
    snprintf(full, sizeof full, "%d", ENOSPC);
    for (int i = 1; i < ROLES; i++) {
        assert_true(operations_of(&roles[i]) > 0);
        long k = operation("traced", "pwrite .*step-00000002/");
        assert_true(k > 0);
        int code = shimmed(&roles[i], "full", full, k, "");
        if (code != 0)
            fail_msg("exit code %d:\n%s", code, program_out);
        expect_named_save("2", roles[i].worker);
        program_expect(0, SAME " && $D ckpt verify full && ! ls -d full/checkpoints/step-00000002",
                       "full");
        assert_string_equal(crew_rubbish("full", true), "");
    }
}

static void test_full_at_the_end(void **state)
{
    (void)state;
    char full[16];
    snprintf(full, sizeof full, "%d", ENOSPC);
    for (int i = 1; i < ROLES; i++) {
        assert_true(operations_of(&roles[i]) > 0);
        long k = operation("traced", "pwrite .*step-00000004/");
        assert_true(k > 0);
        int code = shimmed(&roles[i], "full", full, k, "");
        if (code != 74)
            fail_msg("exit code %d instead of 74:\n%s", code, program_out);
        expect_named_save("4", roles[i].worker);
        assert_non_null(strstr(program_out, "all 4 steps are done, but the last save failed"));
        program_expect(0, "$D ckpt verify full && " RUN " --output=full && " SAME, "full");
        assert_string_equal(crew_rubbish("full", true), "");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_once),
        cmocka_unit_test(test_full_at_the_end),
        cmocka_unit_test(test_killed_before_operations),
    };
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test(test_killed_before_operations),
        cmocka_unit_test(test_killed_in_the_middle_of_writes),
    };
    if (argc > 1)
        distance = atoi(argv[1]);
    return argc > 1 ? cmocka_run_group_tests(long_tests, open_reference, close_reference)
                    : cmocka_run_group_tests(tests, open_reference, close_reference);
}
