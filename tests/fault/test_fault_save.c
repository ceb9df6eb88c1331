/* Kills and fails a save at every single file operation, and looks at what is left each time.
 *
 * Asserted after each: the run starts, finds a complete checkpoint whose checksums hold and whose
 * bytes are all of one save, no older than before; the next save works and leaves no rubbish. */
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "state/checkpoint.h"
#include "tests_fault_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64]; /* in memory where there is such a place: thousands of fsyncs */
static char output[DT_PATH], checkpoints[DT_PATH], words_path[DT_PATH], trace_path[DT_PATH];

struct fault {
    long at;
    const char *action; /* of DT_FAULT_DO; NULL: only count */
    bool sticky, no_exchange, trace;
};

struct scenario {
    const char *name;
    int first_step, first_generation; /* saved before, in peace */
    int step, generation, keep;       /* the save that meets faults */
    bool no_exchange;
};

static const struct scenario scenarios[] = {
    {"next step", 1, 1, 2, 1, 0, false},
    {"same step", 1, 1, 1, 2, 0, false},
    {"same step without exchange", 1, 1, 1, 2, 0, true},
    {"retention of one", 1, 1, 2, 1, 1, false},
};

/* Runs the saver; returns its wait status. */
static int run(const char *where, int step, int generation, int keep, const struct fault *f)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char a[16], b[16], c[16], at[16];
        int words = open(words_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(words, STDERR_FILENO);
        snprintf(a, sizeof a, "%d", step);
        snprintf(b, sizeof b, "%d", generation);
        snprintf(c, sizeof c, "%d", keep);
        if (f) {
            snprintf(at, sizeof at, "%ld", f->at);
            setenv("LD_PRELOAD", DT_FAULT_SHIM, 1);
            setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
            setenv("DT_FAULT_UNDER", where, 1);
            setenv("DT_FAULT_AT", at, 1);
            if (f->action)
                setenv("DT_FAULT_DO", f->action, 1);
            if (f->sticky)
                setenv("DT_FAULT_STICKY", "1", 1);
            if (f->no_exchange)
                setenv("DT_FAULT_NO_EXCHANGE", "1", 1);
            if (f->trace)
                setenv("DT_FAULT_LOG", trace_path, 1);
        }
        execl(DT_FAULT_SAVER, "fault_saver", where, a, b, c, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void assert_ok(int status)
{
    if (status != 0) {
        char *words;
        size_t size;
        if (dt_file_read(words_path, 1 << 20, &words, &size) == DT_OK)
            print_message("status %x: %s\n", (unsigned)status, words);
    }
    assert_int_equal(status, 0);
}

static void prepare(const struct scenario *s)
{
    assert_int_equal(dt_remove_tree(output), DT_OK);
    assert_ok(run(output, s->first_step, s->first_generation, 0, NULL));
}

/* Starts as a run does and returns the newest step; the bytes must be all of one save. */
static int64_t check_start(int *generation)
{
    struct dt_run_lock lock;
    struct dt_checkpoint c;
    char path[DT_PATH];
    int64_t step;
    static float want[FAULT_ELEMENTS];
    assert_int_equal(dt_run_lock(output, &lock), DT_OK);
    assert_int_equal(dt_checkpoint_clean(checkpoints), DT_OK);
    int rc = dt_checkpoint_newest(checkpoints, path, &step);
    if (rc < 0)
        print_message("%s\n", dt_error_message());
    assert_int_equal(rc, DT_OK);
    assert_true(step >= 0);
    assert_int_equal(dt_checkpoint_open(path, &c), DT_OK);
    *generation = (int)json_integer_value(json_object_get(c.trainer, "generation"));
    const struct dt_tensor_set *sets[3] = {&c.model, &c.exp_avg, &c.exp_avg_sq};
    for (int which = 0; which < 3; which++) {
        fault_fill(want, step, *generation, which);
        assert_int_equal(sets[which]->count, FAULT_TENSORS);
        assert_int_equal(sets[which]->bytes, sizeof want);
        assert_memory_equal(sets[which]->tensors[0].data, want, sizeof want);
    }
    dt_checkpoint_close(&c);
    dt_run_unlock(&lock);
    return step;
}

static void assert_no_leftovers(void)
{
    struct dt_checkpoint_list list;
    assert_int_equal(dt_checkpoint_scan(checkpoints, &list), DT_OK);
    assert_int_equal(list.leftovers, 0);
    dt_checkpoint_list_free(&list);
}

/* What must hold after any fault in scenario s; then one more save. */
static void check_after(const struct scenario *s)
{
    int generation;
    int64_t step = check_start(&generation);
    assert_true(step >= s->first_step);
    if (step == s->first_step)
        assert_true(generation == s->first_generation ||
                    (s->step == s->first_step && generation == s->generation));
    assert_no_leftovers();
    assert_ok(run(output, 5, 1, s->keep, NULL));
    assert_int_equal(check_start(&generation), 5);
    assert_no_leftovers();
}

static long count_operations(const struct scenario *s)
{
    struct fault f = {.no_exchange = s->no_exchange, .trace = true};
    char *text;
    size_t size;
    prepare(s);
    unlink(trace_path);
    assert_ok(run(output, s->step, s->generation, s->keep, &f));
    assert_int_equal(dt_file_read(trace_path, 1 << 20, &text, &size), DT_OK);
    long lines = 0;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    free(text);
    assert_true(lines > 30); /* fewer would mean that the shim does not see them */
    return lines;
}

static void kill_everywhere(const struct scenario *s, const char *action)
{
    long n = count_operations(s);
    for (long k = 1; k <= n; k++) {
        struct fault f = {.at = k, .action = action, .no_exchange = s->no_exchange};
        prepare(s);
        int status = run(output, s->step, s->generation, s->keep, &f);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            print_message("%s: operation %ld of %ld did not kill\n", s->name, k, n);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check_after(s);
    }
    print_message("%s, %s: %ld operations\n", s->name, action, n);
}

static void killed_before_every_operation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        kill_everywhere(&scenarios[i], "kill");
}

static void killed_in_the_middle_of_every_write(void **state)
{
    (void)state;
    kill_everywhere(&scenarios[0], "half");
    kill_everywhere(&scenarios[2], "half");
}

/* A kill while the next start cleans up after a kill. */
static void killed_while_cleaning(void **state)
{
    (void)state;
    const struct scenario *s = &scenarios[2];
    long n = count_operations(s);
    for (long k = n / 2; k <= n; k += 5) {
        for (long j = 1; j <= 24; j++) {
            struct fault f = {.at = k, .action = "kill", .no_exchange = true};
            prepare(s);
            run(output, s->step, s->generation, s->keep, &f);
            f.at = j;
            run(output, s->step, s->generation, s->keep, &f);
            check_after(s);
        }
    }
}

static void fail_everywhere(const struct scenario *s, int error, const char *words, bool sticky)
{
    long n = count_operations(s);
    char action[16];
    snprintf(action, sizeof action, "%d", error);
    for (long k = 1; k <= n; k++) {
        struct fault f = {
            .at = k, .action = action, .sticky = sticky, .no_exchange = s->no_exchange};
        char *text;
        size_t size;
        prepare(s);
        int status = run(output, s->step, s->generation, s->keep, &f);
        assert_true(WIFEXITED(status));
        int code = WEXITSTATUS(status);
        assert_true(code == 0 || code == 10 || code == 11 || code == 12);
        if (code == 11) /* one fault must not spoil the next save */
            assert_true(sticky);
        assert_int_equal(dt_file_read(words_path, 1 << 20, &text, &size), DT_OK);
        if (code != 0 && !strstr(text, words))
            print_message("operation %ld: %s\n", k, text);
        assert_true(code == 0 || strstr(text, words) != NULL);
        free(text);
        check_after(s);
    }
    print_message("%s, %s%s: %ld operations\n", s->name, words, sticky ? ", lasting" : "", n);
}

static void disk_full_at_every_operation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        fail_everywhere(&scenarios[i], ENOSPC, "the disk is full", false);
    fail_everywhere(&scenarios[0], ENOSPC, "the disk is full", true);
    fail_everywhere(&scenarios[2], ENOSPC, "the disk is full", true);
}

static void read_only_at_every_operation(void **state)
{
    (void)state;
    fail_everywhere(&scenarios[0], EROFS, "read-only", true);
    fail_everywhere(&scenarios[1], EROFS, "read-only", true);
}

/* ---- The order that survives a power failure ---- */

/* Position of the last line `operation` on a path that ends in `path`; -1 if none. */
static long last(const char *text, const char *operation, const char *path)
{
    long found = -1, line = 0;
    char copy[1024];
    for (const char *p = text; *p; p = strchr(p, '\n') + 1, line++) {
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(p, "\n"), p);
        char *name = strchr(copy, ' ') + 1, *where = strchr(name, ' ');
        *where++ = '\0';
        if (strcmp(name, operation) == 0 && dt_path_ends_with(where, path))
            found = line;
    }
    return found;
}

static void data_is_durable_before_the_name(void **state)
{
    (void)state;
    static const char *const data[] = {"/model.safetensors", "optimizer/exp_avg.safetensors",
                                       "optimizer/exp_avg_sq.safetensors", "/config.json",
                                       "/trainer.json"};
    char *t;
    size_t size;
    count_operations(&scenarios[0]);
    assert_int_equal(dt_file_read(trace_path, 1 << 20, &t, &size), DT_OK);
    long manifest = last(t, "write", "/manifest.json"), named = last(t, "rename", "/step-00000002");
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        long written = last(t, "pwrite", data[i]), synced = last(t, "fsync", data[i]);
        assert_true(written >= 0 && written < synced && synced < manifest);
    }
    assert_true(last(t, "fsync", "/optimizer") > 0 && last(t, "fsync", "/optimizer") < manifest);
    assert_true(manifest < last(t, "fsync", "/manifest.json"));
    assert_true(last(t, "fsync", "/manifest.json") < last(t, "fsync", "-step-00000002"));
    assert_true(last(t, "fsync", "-step-00000002") < named);
    assert_true(named < last(t, "fsync", "/checkpoints"));
    free(t);
}

/* ---- A real small disk ---- */

static void a_disk_that_is_really_full(void **state)
{
    (void)state;
    char disk[128], path[DT_PATH], ballast[DT_PATH], newest[DT_PATH];
    static char zeros[72 << 10]; /* a save needs about 40 KiB */
    int64_t step_full, step;
    snprintf(disk, sizeof disk, "%s/disk", root);
    assert_int_equal(dt_mkdirs(disk), DT_OK);
    if (mount("none", disk, "tmpfs", 0, "size=128k") != 0) {
        print_message("skipped: mounting a small disk needs root\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/checkpoints", disk);
    snprintf(ballast, sizeof ballast, "%s/ballast", disk);
    /* Collect first, unmount, then assert: a failure must not leave a mount behind. */
    int before = run(disk, 1, 1, 0, NULL);
    int filled = dt_file_write(ballast, zeros, sizeof zeros);
    int full = run(disk, 2, 1, 0, NULL);
    int rc_full = dt_checkpoint_newest(path, newest, &step_full);
    dt_unlink(ballast);
    int after = run(disk, 2, 1, 0, NULL);
    int rc_after = dt_checkpoint_newest(path, newest, &step);
    umount(disk);
    assert_int_equal(before, 0);
    assert_int_equal(filled, DT_OK);
    assert_true(WIFEXITED(full) && WEXITSTATUS(full) == 11);
    assert_int_equal(rc_full, DT_OK);
    assert_int_equal(step_full, 1);
    assert_int_equal(after, 0);
    assert_int_equal(rc_after, DT_OK);
    assert_int_equal(step, 2);
}

static int setup(void **state)
{
    (void)state;
    bool memory = access("/dev/shm", W_OK) == 0;
    snprintf(root, sizeof root, "%s/dt_fault_XXXXXX", memory ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root))
        return -1;
    snprintf(output, sizeof output, "%s/run", root);
    snprintf(checkpoints, sizeof checkpoints, "%s/run/checkpoints", root);
    snprintf(words_path, sizeof words_path, "%s/words", root);
    snprintf(trace_path, sizeof trace_path, "%s/trace", root);
    dt_log_set_level(DT_LOG_ERROR);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dt_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_before_every_operation),
        cmocka_unit_test(killed_in_the_middle_of_every_write),
        cmocka_unit_test(killed_while_cleaning),
        cmocka_unit_test(disk_full_at_every_operation),
        cmocka_unit_test(read_only_at_every_operation),
        cmocka_unit_test(data_is_durable_before_the_name),
        cmocka_unit_test(a_disk_that_is_really_full),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
