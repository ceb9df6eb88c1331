/* A real Slurm with two nodes (slurm.sh): srun starts one run; scancel, the signal before the time
 * limit, a killed task and a run that gets nowhere each end as examples/slurm/train.sbatch says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"

/* For the scripts below, inside of that Slurm. `submit RUN OPTION...` queues a run without an end
 * and sets $job; `until_ SECONDS CONDITION` waits. */
#define PRELUDE                                                                                    \
    "set -u; export DUCTILE=$D\n"                                                                  \
    "until_() { for i in $(seq $(($1 * 10))); do eval \"$2\" && return; sleep 0.1; done;\n"        \
    "    echo \"not within $1 s: $2\"; grep -hv ^step *.log | tail -n 5; squeue; exit 1; }\n"      \
    "submit() { run=$1; shift; rm -f ductile-*.log; job=$(sbatch --parsable --cpus-per-task=1 "    \
    "\"$@\" \\\n"                                                                                  \
    "    " DT_TEST_DIR "/../examples/slurm/train.sbatch run.yaml --output=$run --workers=2 \\\n"   \
    "    --train.steps=1000000) || exit 1; log=ductile-$job.log; }\n"                              \
    "running() { until_ 20 \"grep -qs '\\\"step\\\":5,' $run/metrics.jsonl\"; }\n"                 \
    "state() { scontrol show job $job; }\n"

/* Runs the script inside of a Slurm of its own, in the test's directory. */
static void in_slurm(const char *script)
{
    char text[8192];
    snprintf(text, sizeof text, "%s%s", PRELUDE, script);
    program_write("script", text);
    program_expect(0, DT_TEST_DIR "/dist/slurm.sh $PWD/slurm 'sh script'");
    launch_expect_nobody();
}

static void test_srun(void **state)
{
    (void)state;
    in_slurm("srun -N2 --ntasks-per-node=1 $D train run.yaml --output=srun --workers=2 "
             "--train.steps=4 --eval.every=0");
    launch_expect_same("srun");
}

/* scancel is SIGTERM to every task, and SIGKILL after KillWait: the checkpoint is made, the code is
 * 75 for each, and a job that the user cancels is not queued again. */
static void test_scancel(void **state)
{
    (void)state;
    in_slurm(
        "submit cancel; running; scancel $job\n"
        "until_ 20 'state | grep -q JobState=CANCELLED && ! squeue -h | grep -q .'\n"
        "tail -n 9 $log; state; ps ax | grep '[d]uctile [tw]' && exit 1; $D ckpt verify cancel\n");
    assert_non_null(strstr(program_out, "stopped by SIGTERM after step"));
    assert_non_null(strstr(program_out, "task 0: Exited with exit code 75"));
    assert_non_null(strstr(program_out, "task 1: Exited with exit code 75"));
    assert_non_null(strstr(program_out, "Restarts=0"));
}

/* Slurm's signal before the time limit (a minute, the least): saved, 75, queued again; the second
 * start goes on. Slurm lets a requeued job rest for two minutes, of which the test waits those
 * seconds in which a node still tidies up behind the first start. */
static void test_time_limit(void **state)
{
    (void)state;
    in_slurm("submit limit --time=1 --signal=TERM@30; running\n"
             "until_ 90 'state | grep -q Restarts=1'; sleep 6\n"
             "scontrol update jobid=$job StartTime=now\n"
             "until_ 30 'grep \"going on from\" $log'\n"
             "state; grep -v '^step' $log; scancel $job\n"
             "until_ 20 '! squeue -h | grep -q .'\n");
    assert_non_null(strstr(program_out, "stopped by SIGTERM after step"));
    assert_non_null(strstr(program_out, "ductile ended with exit code 75"));
    assert_non_null(strstr(program_out, "JobState=RUNNING"));
}

/* The agent of the second node is killed, as if its machine had gone: the coordinator says so, and
 * the job goes back to the queue. */
static void test_killed_task(void **state)
{
    (void)state;
    in_slurm("submit killed --time=10; running\n"
             "for p in /proc/[0-9]*; do grep -qs '^ductile\\|/ductile' $p/cmdline || continue\n"
             "    grep -qsz '^SLURM_PROCID=1' $p/environ && ! grep -qsz '^worker' $p/cmdline &&\n"
             "        kill -KILL ${p#/proc/}; done\n"
             "until_ 20 'state | grep -q Restarts=1'; cat $log; scancel $job\n"
             "until_ 20 '! squeue -h | grep -q .'\n");
    assert_non_null(strstr(program_out, "the agent on host"));
    assert_non_null(strstr(program_out, "newest checkpoint"));
}

/* 93 is not queued again. */
static void test_no_progress(void **state)
{
    (void)state;
    program_write("stuck", "#!/bin/sh\nexit 93\n");
    in_slurm("chmod +x stuck; DUCTILE=$PWD/stuck; submit none\n"
             "until_ 20 'state | grep -q JobState=FAILED'; state; cat $log\n");
    assert_non_null(strstr(program_out, "Restarts=0"));
    assert_non_null(strstr(program_out, "ExitCode=93:0"));
}

static int open_slurm(void **state)
{
    int rc = launch_open(state);
    /* Checkpoints often enough that a killed run has one. */
    return rc ? rc : program_run("sed -i 's/every: 10, keep/every: 5, keep/' run.yaml");
}

int main(void)
{
    launch_need("[ $(id -u) = 0 ]", "a Slurm in namespaces of its own needs root");
    launch_need("for c in munged slurmctld slurmd srun sbatch; do command -v $c || exit 1; done",
                "there is no Slurm (Debian's munge, slurmctld, slurmd, slurm-client)");
    launch_need("unshare --net --uts --mount --pid --fork --mount-proc true",
                "this machine does not let root make namespaces");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_srun),        cmocka_unit_test(test_scancel),
        cmocka_unit_test(test_killed_task), cmocka_unit_test(test_no_progress),
        cmocka_unit_test(test_time_limit),
    };
    return cmocka_run_group_tests(tests, open_slurm, launch_close);
}
