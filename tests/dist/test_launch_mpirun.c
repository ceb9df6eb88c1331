/* A real mpirun (Debian's openmpi-bin): -np N gives N workers, and an end of one is the end of all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"

#define MPIRUN "mpirun --allow-run-as-root --oversubscribe --bind-to none"

static void test_three(void **state)
{
    (void)state;
    program_expect(0, MPIRUN " -np 3 " LAUNCH_TRAIN, "three");
    assert_non_null(strstr(program_out, "3 workers, peak"));
    launch_expect_same("three");
    /* Each task has brought one worker. */
    assert_non_null(strstr(program_out, "workers 2 to 2"));
}

/* With a single task the number still is mpirun's. */
static void test_one(void **state)
{
    (void)state;
    program_expect(0, MPIRUN " -np 1 " LAUNCH_TRAIN " --workers=2", "single");
    assert_null(strstr(program_out, "workers, peak"));
    launch_expect_same("single");
}

/* mpirun passes SIGUSR1 on to every task (its answer to SIGTERM is to kill them a second later):
 * saved once, code 75, nobody left. */
static void test_stop(void **state)
{
    (void)state;
    program_expect(75,
                   MPIRUN
                   " -np 2 " LAUNCH_TRAIN " --train.steps=100000 & run=$!;"
                   "for i in $(seq 200); do grep -q '\"step\":2' stop/metrics.jsonl && break;"
                   "sleep 0.05; done 2>/dev/null; kill -USR1 $run; wait $run",
                   "stop");
    assert_non_null(strstr(program_out, "saved"));
    program_expect(0, "$D ckpt verify stop");
    launch_expect_nobody();
}

int main(void)
{
    launch_need("command -v mpirun", "there is no mpirun (Debian's openmpi-bin)");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, launch_open, launch_close);
}
