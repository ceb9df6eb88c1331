/* Torchrun's variables, as its users set them by hand or in a pod: NODE_RANK and NNODES for one
 * process a machine, RANK, WORLD_SIZE and LOCAL_WORLD_SIZE for one a worker. Whichever form, the
 * tasks become one run that trains like one worker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"

/* Two tasks at once with the variables first and second; both must end with `code`. */
static void run_two(int code, const char *first, const char *second, int port, const char *run,
                    const char *options)
{
    program_expect(0,
                   "export MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; %s " LAUNCH_TRAIN " %s & task=$!;"
                   "%s " LAUNCH_TRAIN " %s; a=$?; wait $task; b=$?;"
                   "echo \"exit codes $a and $b\"; [ $a = %d ] && [ $b = %d ]",
                   port, second, run, options, first, run, options, code, code);
}

static void test_by_machine(void **state)
{
    (void)state;
    run_two(0, "NNODES=2 NODE_RANK=0", "NNODES=2 NODE_RANK=1", launch_free_port(), "nodes",
            "--workers=3");
    launch_expect_same("nodes");
    assert_non_null(strstr(program_out, "3 workers, peak"));
    /* torchrun itself gives its processes GROUP_RANK. */
    run_two(0, "GROUP_WORLD_SIZE=2 GROUP_RANK=0", "GROUP_WORLD_SIZE=2 GROUP_RANK=1",
            launch_free_port(), "groups", "--workers=2");
    launch_expect_same("groups");
}

/* One process a worker: their number is the number of workers, whatever the configuration says. */
static void test_by_worker(void **state)
{
    (void)state;
    run_two(0, "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK=0", "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK=1",
            launch_free_port(), "ranks", "--workers=7");
    launch_expect_same("ranks");
    assert_non_null(strstr(program_out, "2 workers, peak"));
}

/* Torchrun's own store listens on MASTER_PORT: the run takes another port, and .control tells it.
 */
static void test_port_taken(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int port = launch_free_port(), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_port = htons((uint16_t)port);
    assert_return_code(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_return_code(listen(fd, 1), 0);
    run_two(0, "NNODES=2 NODE_RANK=0", "NNODES=2 NODE_RANK=1", port, "taken", "--workers=2");
    close(fd);
    launch_expect_same("taken");
}

static void test_mistakes(void **state)
{
    (void)state;
    run_two(2, "NNODES=2 NODE_RANK=0", "NNODES=2 NODE_RANK=1", launch_free_port(), "few",
            "--workers=1");
    assert_non_null(strstr(program_out, "set workers to at least 2"));
    program_expect(2, "MASTER_ADDR=127.0.0.1 NNODES=2 NODE_RANK=2 " LAUNCH_TRAIN, "bad");
    assert_non_null(strstr(program_out, "NODE_RANK=2, but NNODES=2"));
    program_expect(2, "MASTER_ADDR=127.0.0.1 NNODES=two NODE_RANK=0 " LAUNCH_TRAIN, "bad");
    assert_non_null(strstr(program_out, "NNODES=two"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_machine),
        cmocka_unit_test(test_by_worker),
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, launch_open, launch_close);
}
