/* Two and three machines, made of network namespaces (machines.sh), each with its own agent. They
 * train as one worker does, listen in the named network only, and send a stranger away. A link
 * that is cut ends the run on both sides, by the clock that the configuration sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"

#define MOST 3
#define PORT "29870"
#define TIMEOUT 3.0
#define TIMEOUT_TEXT "3"
/* Seconds that the rest of the end may take: noticing between two pulses, killing, last words. */
#define END_SECONDS 2.0

/* M K COMMAND: on machine K. task K COMMAND: the same in the background, with its output in
 * K.log and "CODE TIME" at its end in K.end. */
#define PRELUDE                                                                                    \
    "M() { " DT_TEST_DIR "/dist/machines.sh on %s \"$@\"; };"                                      \
    "task() { k=$1; { M \"$@\"; echo $? $(date +%%s.%%N); } >$k.log 2>&1 & };"
#define COORDINATE                                                                                 \
    "$D train run.yaml --cluster.network=10.77.0.0/16 --cluster.port=" PORT                        \
    " --cluster.timeout=" TIMEOUT_TEXT " --eval.every=0"
#define JOIN "$D agent --join 10.77.0.1:" PORT

static char name[32];

static void test_train(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST; n++) {
        char run[16];
        snprintf(run, sizeof run, "on%d", n);
        program_expect(0,
                       PRELUDE "for k in $(seq 2 %d); do "
                               "task $k " JOIN
                               " $([ $k = 2 ] || echo --network 10.77.0.0/16); done;"
                               "M 1 " COORDINATE " --output=%s --workers=%d --cluster.agents=%d "
                               "--train.steps=4; code=$?; wait; tail -n 2 [23].log; exit $code",
                       name, n, run, n, n);
        launch_expect_same(run);
        assert_non_null(strstr(program_out, "host machine2 is there"));
        program_expect(0, "grep -q '^0 ' 2.log && { [ %d = 2 ] || grep -q '^0 ' 3.log; }", n);
    }
}

/* "CODE TIME", the last line of a task's log. */
static void read_end(int k, int *code, double *time)
{
    program_expect(0, "tail -n 1 %d.log", k);
    assert_int_equal(sscanf(program_out, "%d %lf", code, time), 2);
}

/* Every listening socket of the machine has its address in the network. */
static void expect_listening_inside(int k)
{
    program_expect(0, PRELUDE "M %d ss -Hltn; M %d ss -Hlun", name, k, k);
    int lines = 0;
    for (char *line = strtok(program_out, "\n"); line; line = strtok(NULL, "\n"), lines++)
        if (!strstr(line, " 10.77.0."))
            fail_msg("machine %d listens outside of the network: %s", k, line);
    assert_true(lines > 0); /* workers can be reached, so the look was at a run */
}

static void start_long_run(const char *run)
{
    program_expect(0,
                   PRELUDE "task 1 " COORDINATE " --output=%s --workers=3 --cluster.agents=3 "
                           "--train.steps=1000000 --checkpoint.every=5 --checkpoint.keep=2;"
                           "for k in 2 3; do task $k " JOIN "; done;"
                           "for i in $(seq 300); do [ -d %s/checkpoints/step-00000005 ] && exit 0;"
                           "sleep 0.1; done; cat [123].log; exit 1",
                   name, run, run);
}

static void test_cut(void **state)
{
    (void)state;
    double cut, time;
    int code;
    start_long_run("cut");
    for (int k = 1; k <= MOST; k++)
        expect_listening_inside(k);
    program_expect(0, "ip -n %sm2 link set e0 down && date +%%s.%%N", name);
    cut = atof(program_out);
    program_expect(0, "for i in $(seq 100); do [ \"$(tail -q -n 1 [123].log | grep -c '^75 ')\" = "
                      "3 ] && exit 0; sleep 0.1; done; cat [123].log; exit 1");
    for (int k = 1; k <= MOST; k++) {
        read_end(k, &code, &time);
        print_message("machine %d ended %.2f s after the cut\n", k, time - cut);
        assert_int_equal(code, 75);
        assert_true(time - cut <= TIMEOUT + END_SECONDS);
    }
    /* Each side names the other, and who hears of it from the coordinator names the lost too. */
    program_expect(0, "grep 'agent on host machine2 .* silent for' 1.log");
    program_expect(0, "grep 'no word from the coordinator (10.77.0.1:" PORT ")' 2.log");
    program_expect(0, "grep 'agent on host machine2 .* silent for' 3.log");
    program_expect(0, "$D ckpt verify cut");
    launch_expect_nobody();
    program_expect(0, "ip -n %sm2 link set e0 up", name);
}

/* A machine with another secret is refused and told of, and does no harm to those that belong. */
static void test_stranger(void **state)
{
    (void)state;
    program_write("other", "5e77e75e77e75e77e75e77e75e77e75e77e75e77e75e77e75e77e75e77e75e77\n");
    program_expect(0,
                   PRELUDE "chmod 600 other; task 1 " COORDINATE
                           " --output=stranger --workers=2 --cluster.agents=2 --train.steps=4;"
                           "for i in $(seq 100); do [ -f stranger/.control ] && break; sleep 0.1;"
                           "done; sleep 0.2;"
                           "(unset DUCTILE_SECRET; M 3 " JOIN " --secret other --timeout 5);"
                           "echo stranger $?; task 2 " JOIN "; wait; cat 1.log",
                   name);
    assert_non_null(strstr(program_out, "stranger 2"));
    assert_non_null(strstr(program_out, "control port: "));
    assert_non_null(strstr(program_out, "10.77.0.3"));
    launch_expect_same("stranger");
    program_expect(0, "grep -q '^0 ' 1.log && grep -q '^0 ' 2.log");
    /* A secret that others may read is none. */
    program_expect(2, PRELUDE "unset DUCTILE_SECRET; chmod 644 other; M 2 " JOIN " --secret other",
                   name);
}

static int open_machines(void **state)
{
    /* SysV and CMA work between these processes, which are on one machine after all. */
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("DUCTILE_SECRET", "5ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5", 1);
    snprintf(name, sizeof name, "dt%d", getpid());
    int rc = launch_open(state);
    if (rc == 0 && program_run(DT_TEST_DIR "/dist/machines.sh up %s %d", name, MOST) != 0) {
        fputs(program_out, stderr);
        rc = -1;
    }
    return rc;
}

static int close_machines(void **state)
{
    program_run(DT_TEST_DIR "/dist/machines.sh down %s %d", name, MOST);
    return launch_close(state);
}

int main(void)
{
    launch_need("[ $(id -u) = 0 ]", "network namespaces need root");
    launch_need("command -v ip && command -v ss", "there is no ip or ss (Debian's iproute2)");
    launch_need("ip netns add dtprobe$$ && ip -n dtprobe$$ link add s0 type bridge; code=$?;"
                "ip netns del dtprobe$$; exit $code",
                "this machine does not let root make network namespaces");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_stranger),
    };
    return cmocka_run_group_tests(tests, open_machines, close_machines);
}
