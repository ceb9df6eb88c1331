/* Disks that are full or read-only, and directories that are taken: what `ductile train` says and
 * how it ends. The disks are real small ones in memory; where mounting is not allowed, those tests
 * are skipped and say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "live.h"

#include <sys/mount.h>

#define RUN "$D train tiny.yaml --train.steps=300 --checkpoint.every=100 --eval.every=0"

static struct live l;
static char disk[300];

static int open_run(void **state)
{
    (void)state;
    live_open("fault-disk");
    program_tiny_run();
    live_micro_run();
    snprintf(disk, sizeof disk, "%s/disk", program_dir);
    return program_run("mv run.yaml tiny.yaml && mkdir disk");
}

static int close_run(void **state)
{
    (void)state;
    umount2(disk, MNT_DETACH);
    program_close();
    return 0;
}

static int free_disk(void **state)
{
    (void)state;
    umount2(disk, MNT_DETACH);
    return 0;
}

static void mount_disk(const char *size)
{
    if (mount("none", disk, "tmpfs", 0, size) == 0)
        return;
    print_message("skipped: mounting a small disk needs root\n");
    skip();
}

/* Takes all that is left. */
static void fill_disk(void)
{
    program_run("cat /dev/zero > disk/ballast; cat /dev/zero > disk/ballast.2; true");
}

/* Full after the first save; freed before the last one. */
static void test_full_and_freed(void **state)
{
    (void)state;
    mount_disk("size=4m");
    live_start(&l, RUN " --output=disk/run");
    assert_true(live_wait_for(&l, "saved "));
    fill_disk();
    assert_true(live_wait_for(&l, "saving step 200 failed"));
    program_expect(0, "rm disk/ballast*");
    live_expect(&l, 0);
    live_expect_words(&l, "the disk is full");
    live_expect_words(&l, "training goes on, the newest checkpoint is intact");
    live_expect_words(&l, "metrics.jsonl cannot be written");
    live_expect_words(&l, "done: 300 steps");
    /* A full disk has cost lines of the metrics, not their form; what fitted again is there. */
    program_expect(0, "$D ckpt verify disk/run && $D ckpt ls disk/run");
    assert_null(strstr(program_out, "00000200"));
    assert_non_null(strstr(program_out, "00000100"));
    assert_non_null(strstr(program_out, "00000300"));
    program_expect(0, "! grep -v '^{\".*}$' disk/run/metrics.jsonl && grep -c '\"step\":' "
                      "disk/run/metrics.jsonl && "
                      "grep '\"step\":300,' disk/run/metrics.jsonl && ! grep -c '\"step\":150,' "
                      "disk/run/metrics.jsonl");
    program_expect(0, RUN " --output=ref && cmp ref/checkpoints/step-00000300/model.safetensors "
                          "disk/run/checkpoints/step-00000300/model.safetensors");
}

static void test_full_to_the_end(void **state)
{
    (void)state;
    mount_disk("size=4m");
    live_start(&l, RUN " --output=disk/run");
    assert_true(live_wait_for(&l, "saved "));
    fill_disk();
    live_expect(&l, 74);
    live_expect_words(&l, "saving step 200 failed");
    live_expect_words(&l, "saving step 300 failed");
    live_expect_words(
        &l, "all 300 steps are done, but the last save failed; free space and start again");
    program_expect(0, "rm disk/ballast* && $D ckpt verify disk/run && " RUN " --output=disk/run");
    assert_non_null(strstr(program_out, "going on from"));
    program_expect(0, "cmp ref/checkpoints/step-00000300/model.safetensors "
                      "disk/run/checkpoints/step-00000300/model.safetensors");
}

/* Asked to stop while the disk is full: 74, not 75, since requeueing loses the work since the
 * newest checkpoint. */
static void test_stopped_while_full(void **state)
{
    (void)state;
    mount_disk("size=4m");
    live_start(&l, RUN " --output=disk/run");
    assert_true(live_wait_for(&l, "saved "));
    fill_disk();
    kill(l.pid, SIGTERM);
    live_expect(&l, 74);
    live_expect_words(&l, "stopped by SIGTERM, and the last save failed");
    program_expect(0, "rm disk/ballast* && $D ckpt verify disk/run");
}

static void test_full_from_the_start(void **state)
{
    (void)state;
    mount_disk("size=64k");
    fill_disk();
    program_expect(1, RUN " --output=disk/run");
    assert_non_null(strstr(program_out, "the disk is full"));
    /* Room for the tokenized data, none for a checkpoint. */
    program_expect(74, "rm disk/ballast*; " RUN " --output=disk/run");
    assert_non_null(strstr(program_out, "the newest checkpoint is still to come"));
}

static void test_read_only(void **state)
{
    (void)state;
    mount_disk("size=4m");
    program_expect(0, "$D train micro.yaml --output=disk/run");
    assert_int_equal(mount("none", disk, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=4m"), 0);
    program_expect(1, "$D train micro.yaml --output=disk/other");
    assert_non_null(strstr(program_out, "disk/other"));
    assert_non_null(strstr(program_out, "read-only"));
    program_expect(1, "$D train micro.yaml --output=disk/run --train.steps=8");
    assert_non_null(strstr(program_out, "read-only"));
    /* Reading is all right. */
    program_expect(0, "$D ckpt verify disk/run && $D eval disk/run --data=micro.jsonl");
}

static void test_lock(void **state)
{
    (void)state;
    char host[256] = "", words[300];
    live_start(&l, "$SHIM DT_FAULT_UNDER=$PWD/run DT_FAULT_AT=60 DT_FAULT_DO=stop $D train "
                   "micro.yaml --output=$PWD/run");
    assert_true(live_stopped(&l));
    program_expect(1, "$D train micro.yaml --output=run");
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "process %d on %s", (int)l.pid, host);
    if (!strstr(program_out, words))
        fail_msg("\"%s\" is not in: %s", words, program_out);
    assert_non_null(strstr(program_out, "in use by another run"));
    program_expect(1,
                   "$D train micro.yaml --output=run --start-over"); /* nor may that move it away */
    program_expect(1, "$D ckpt gc run --keep 1");
    program_expect(0, "ls run/checkpoints && ! ls -d run/checkpoints.aside-1");
    /* A killed run's lock blocks nobody. */
    kill(l.pid, SIGKILL);
    kill(l.pid, SIGCONT);
    live_expect(&l, 128 + SIGKILL);
    program_expect(0, "test -s run/.lock && $D train micro.yaml --output=run");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_full_and_freed, free_disk),
        cmocka_unit_test_teardown(test_full_to_the_end, free_disk),
        cmocka_unit_test_teardown(test_stopped_while_full, free_disk),
        cmocka_unit_test_teardown(test_full_from_the_start, free_disk),
        cmocka_unit_test_teardown(test_read_only, free_disk),
        cmocka_unit_test(test_lock),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
