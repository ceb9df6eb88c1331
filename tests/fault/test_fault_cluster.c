/* Several workers of which one dies, hangs, or is left alone: SIGKILL and SIGSTOP of workers and of
 * `ductile train` itself at random instants (seeded: the argument is how many), and CTRL-C. Each
 * time: everybody is gone and the culprit named in time, the exit code is 75, the newest checkpoint
 * holds, nothing is left behind, and the same command ends with the bits of an undisturbed run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "crew.h"

#define WORKERS 4
#define KILLED_BEFORE 90 /* of 150 steps: a test that is late still meets a living run */
#define KILL_BY 1.0      /* seconds from a kill until all are gone and the culprit is named */
#define TIMEOUT 1.0      /* cluster.timeout where a process hangs */
#define HANG_BY 2.0      /* timeout + 1 */
#define ALONE_BY 3.0     /* timeout + 2: workers whose coordinator hangs */
#define RUN                                                                                        \
    "$D train run.yaml --workers=4 --reduction=exact --train.steps=150 --checkpoint.every=20 "     \
    "--eval.every=0 --data.eval_fraction=0"
#define SAME                                                                                       \
    "{ for f in model.safetensors optimizer/exp_avg.safetensors "                                  \
    "optimizer/exp_avg_sq.safetensors; do "                                                        \
    "cmp ref/checkpoints/step-00000150/$f k/checkpoints/step-00000150/$f || exit 1; done; }"

static struct live l;
static struct crew crew;
static int rounds = 5;
static unsigned long long seed = 20240607;

static unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed >> 33) % below;
}

static int open_run(void **state)
{
    (void)state;
    live_open("fault-cluster");
    program_tiny_run();
    int rc = program_run(RUN " --output=ref");
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

/* ---- An instant, and what must hold after it ---- */

/* A third of the time while processes start and meet, else between or in steps, saves included. */
static void wait_for_an_instant(int rank, const char *options)
{
    char words[32];
    program_expect(0, "rm -rf k");
    live_start(&l, RUN " --output=k %s", options);
    if (draw(3) == 0) {
        assert_true(crew_wait(l.pid, rank + 1, &crew));
        crew_sleep(draw(400) * 1e-3);
    } else {
        snprintf(words, sizeof words, "step %5u/", 1 + draw(KILLED_BEFORE));
        assert_true(live_wait_for(&l, words));
        crew_sleep(draw(6000) * 1e-6);
    }
    crew_look(l.pid, &crew);
}

static void expect_gone(double since, double limit)
{
    bool gone = crew_gone_by(l.pid, &crew, since + limit);
    double took = crew_clock() - since;
    if (!gone || took > limit)
        fail_msg("%s after %.2f s, expected %.2f s, with %d segments of shared memory:\n%s",
                 gone ? "gone" : "still there", took, limit, crew_segments(l.pid, &crew), l.text);
    print_message("    gone after %.3f s\n", took);
}

static void end_in_time(double since, double limit, int code)
{
    live_expect(&l, code);
    expect_gone(since, limit);
}

static void named(int rank, const char *what)
{
    char words[64];
    snprintf(words, sizeof words, "worker %d (host ", rank);
    live_expect_words(&l, words);
    snprintf(words, sizeof words, "process %d) ", (int)crew.pid[rank]);
    live_expect_words(&l, words);
    live_expect_words(&l, what);
}

static void goes_on(bool orderly)
{
    if (orderly)
        assert_string_equal(crew_rubbish("k", true), "");
    program_expect(0, "! ls k/checkpoints/step-* || $D ckpt verify k");
    program_expect(0, RUN " --output=k && " SAME);
    assert_string_equal(crew_rubbish("k", true), "");
}

/* ---- Kills ---- */

static void test_worker_killed(void **state)
{
    (void)state;
    for (int i = 0; i < rounds; i++) {
        int rank = (int)draw(WORKERS);
        wait_for_an_instant(rank, "");
        assert_true(crew.count > rank);
        double now = crew_clock();
        kill(crew.pid[rank], SIGKILL);
        end_in_time(now, KILL_BY, 75);
        named(rank, "was killed by signal 9 (SIGKILL)");
        live_expect_words(&l, "the same command ");
        goes_on(true);
    }
}

/* Nobody is left to tell but the workers. */
static void test_train_killed(void **state)
{
    (void)state;
    for (int i = 0; i < rounds; i++) {
        wait_for_an_instant(0, "");
        assert_true(crew.count > 0);
        double now = crew_clock();
        kill(l.pid, SIGKILL);
        end_in_time(now, KILL_BY, 128 + SIGKILL);
        live_expect_words(&l, "ductile worker ");
        live_expect_words(&l, "its agent is gone; last decided step ");
        live_expect_words(&l, "the same command goes on");
        goes_on(false);
    }
}

/* ---- Hangs ---- */

static void test_worker_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < (rounds + 4) / 5; i++) {
        int rank = (int)draw(WORKERS);
        wait_for_an_instant(rank, "--cluster.timeout=1");
        assert_true(crew.count > rank);
        double now = crew_clock();
        kill(crew.pid[rank], SIGSTOP);
        end_in_time(now, HANG_BY, 75);
        named(rank, "has been silent for ");
        goes_on(true);
    }
}

static void test_short_stop_is_no_alarm(void **state)
{
    (void)state;
    program_expect(0, "rm -rf k");
    live_start(&l, RUN " --output=k --cluster.timeout=2");
    assert_true(live_wait_for(&l, "step    30/"));
    crew_look(l.pid, &crew);
    assert_int_equal(crew.count, WORKERS);
    kill(crew.pid[1], SIGSTOP);
    crew_sleep(0.8);
    kill(crew.pid[1], SIGCONT);
    live_expect(&l, 0);
    program_expect(0, SAME);
    assert_string_equal(crew_rubbish("k", true), "");
}

static void test_train_stopped(void **state)
{
    (void)state;
    program_expect(0, "rm -rf k");
    live_start(&l, RUN " --output=k --cluster.timeout=1");
    assert_true(live_wait_for(&l, "step    30/"));
    crew_look(l.pid, &crew);
    assert_int_equal(crew.count, WORKERS);
    double now = crew_clock();
    kill(l.pid, SIGSTOP);
    expect_gone(now, ALONE_BY);
    kill(l.pid, SIGCONT);
    end_in_time(crew_clock(), KILL_BY, 75);
    live_expect_words(&l, "no word from its agent for 1.0 s");
    goes_on(true);
}

/* ---- A terminal's CTRL-C reaches the whole process group ---- */

static void test_interrupted(void **state)
{
    (void)state;
    program_expect(0, "rm -rf k");
    live_start(&l, "setsid " RUN " --output=k");
    assert_true(live_wait_for(&l, "step    30/"));
    crew_look(l.pid, &crew);
    assert_int_equal(crew.count, WORKERS);
    kill(-l.pid, SIGINT);
    live_expect(&l, 75);
    expect_gone(crew_clock(), KILL_BY);
    live_expect_words(&l, "stopped by SIGINT after step ");
    live_expect_words(&l, "saved; the same command goes on");
    goes_on(true);
}

/* Steps of a second, so that the first signal cannot have done its work. */
static void test_interrupted_twice(void **state)
{
    (void)state;
    program_expect(0, "rm -rf k; for i in $(seq 40); do cat rows.jsonl; done > many.jsonl");
    live_start(&l, "setsid $D train run.yaml --workers=4 --data.train=many.jsonl --output=k "
                   "--batch.tokens=65536 --microbatch.tokens=64 --data.eval_fraction=0");
    assert_true(live_wait_for(&l, "step     1/"));
    crew_look(l.pid, &crew);
    assert_int_equal(crew.count, WORKERS);
    kill(-l.pid, SIGINT);
    crew_sleep(0.05);
    double now = crew_clock();
    kill(-l.pid, SIGINT);
    end_in_time(now, KILL_BY, 75);
    live_expect_words(&l, "second signal, leaving now");
    assert_string_equal(crew_rubbish("k", false), "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_killed),     cmocka_unit_test(test_train_killed),
        cmocka_unit_test(test_worker_stopped),    cmocka_unit_test(test_short_stop_is_no_alarm),
        cmocka_unit_test(test_train_stopped),     cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_interrupted_twice),
    };
    if (argc > 1)
        rounds = atoi(argv[1]);
    return cmocka_run_group_tests(tests, open_run, close_run);
}
