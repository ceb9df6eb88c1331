/* Moves overlap with computing: two machines (network namespaces) on a link slowed by a token-bucket
 * filter. A step may take 1.1 times the larger of what computing alone takes (a fast link) and what
 * communication alone takes (the slow link, sequences of four tokens). Where both are about equal
 * that cannot hold for any schedule (weights can only travel during a forward, gradients during a
 * backward), so one link is slow enough to be what counts, and one fast enough not to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launch.h"

#define PORT "29871"
#define MOST_RATIO 1.1
#define PRELUDE "M() { " DT_TEST_DIR "/dist/machines.sh on %s \"$@\"; };"

static char name[32];

static void write_files(void)
{
    program_write("model/config.json",
                  "{\"model_type\":\"llama\",\"hidden_size\":256,\"num_hidden_layers\":8,\"num_"
                  "attention_heads\":4,\"num_key_value_heads\":4,\"intermediate_size\":768,\"vocab_"
                  "size\":512,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"tie_word_"
                  "embeddings\":false}");
    program_write("slow.yaml",
                  "model: model\ninit: random\noutput: out\ndata: {train: [long.jsonl], max_length: "
                  "256}\nbatch: {sequences: 16}\nmicrobatch: {tokens: 2048}\ntrain: {steps: 12, "
                  "dtype: float32}\noptimizer: {lr: 0.0003}\ncheckpoint: {every: 0}\nworkers: 2\n"
                  "threads: 1\ncluster: {network: 10.77.0.0/16, agents: 2, port: " PORT "}\n");
    program_expect(
        0, "awk 'BEGIN { for (r = 0; r < 64; r++) { printf \"{\\\"input_ids\\\": [\" "
           ">\"long.jsonl\"; "
           "for (i = 0; i < 256; i++) printf \"%%s%%d\", i ? \", \" : \"\", (r * 7 + i * i) %% 512 "
           ">\"long.jsonl\"; print \"]}\" >\"long.jsonl\"; "
           "print \"{\\\"input_ids\\\": [1, 2, 3, 4]}\" >\"short.jsonl\" } }'");
}

/* Bits a second in both directions; 0: as fast as it goes. */
static void set_rate(const char *rate)
{
    program_run("tc -n %sm1 qdisc del dev p2 root; tc -n %sm2 qdisc del dev e0 root", name, name);
    if (rate)
        program_expect(0,
                       "tc -n %sm1 qdisc add dev p2 root tbf rate %s burst 128kb latency 20ms && "
                       "tc -n %sm2 qdisc add dev e0 root tbf rate %s burst 128kb latency 20ms",
                       name, rate, name, rate);
}

/* Median seconds of the steps after the third. */
static double step_seconds(const char *data)
{
    program_expect(0,
                   PRELUDE "rm -rf out; M 2 $D agent --join 10.77.0.1:" PORT
                           " --network 10.77.0.0/16 >2.log 2>&1 & "
                           "M 1 $D train slow.yaml --data.train=%s >1.log 2>&1; code=$?; wait;"
                           "[ $code = 0 ] || { cat 1.log 2.log; exit $code; }",
                   name, data);
    program_expect(0, "sed -n 's/.*\"step\":\\([0-9]*\\),.*\"seconds\":\\([0-9.e-]*\\).*/\\1 \\2/p' "
                      "out/metrics.jsonl | awk '$1 > 3 { print $2 }' | sort -g | "
                      "awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'");
    double seconds = atof(program_out);
    assert_true(seconds > 0);
    return seconds;
}

static void check(const char *rate)
{
    set_rate(NULL);
    double compute = step_seconds("long.jsonl");
    set_rate(rate);
    double communicate = step_seconds("short.jsonl");
    double both = step_seconds("long.jsonl");
    double larger = compute > communicate ? compute : communicate;
    print_message("%s: compute %.3f s, communication %.3f s, step %.3f s: %.3f of the larger\n", rate,
                  compute, communicate, both, both / larger);
    assert_true(both <= MOST_RATIO * larger);
}

static void test_slow_link(void **state)
{
    (void)state;
    check("100mbit");
}

static void test_faster_link(void **state)
{
    (void)state;
    check("1gbit");
}

static int open_machines(void **state)
{
    (void)state;
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("DUCTILE_SECRET", "5ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5e75ec5", 1);
    program_open("overlap");
    if (program_run("mkdir model") != 0)
        return -1;
    write_files();
    snprintf(name, sizeof name, "do%d", getpid());
    return program_run(DT_TEST_DIR "/dist/machines.sh up %s 2", name);
}

static int close_machines(void **state)
{
    (void)state;
    program_run(DT_TEST_DIR "/dist/machines.sh down %s 2", name);
    program_close();
    return 0;
}

int main(void)
{
    launch_need("[ $(id -u) = 0 ]", "network namespaces need root");
    launch_need("command -v ip && command -v tc", "there is no ip or tc (Debian's iproute2)");
    launch_need("ip netns add dtprobe$$ && ip -n dtprobe$$ link add s0 type bridge; code=$?;"
                "ip netns del dtprobe$$; exit $code",
                "this machine does not let root make network namespaces");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_link),
        cmocka_unit_test(test_faster_link),
    };
    return cmocka_run_group_tests(tests, open_machines, close_machines);
}
