/* `ductile estimate` beside the peak resident size of every worker of the same run, and of the
 * `train` process that starts them: within 3 % or 20 MB, for two sizes of model and 2 and 4
 * workers.
 *
 * Peaks are read from /proc while the workers live: their high-water mark only grows, and the last
 * one that was seen is within milliseconds of their end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault/crew.h"

#include <jansson.h>

static struct live l;

static void write_model(const char *dir, int width, int layers)
{
    char path[64], text[512];
    if (program_run("mkdir -p %s", dir) != 0)
        abort();
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":%d,"
             "\"vocab_size\":8192,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
             "\"tie_word_embeddings\":false}",
             width, layers, 3 * width);
    program_write(path, text);
}

static int open_run(void **state)
{
    (void)state;
    program_open("dist-estimate");
    program_tiny_run();
    write_model("small", 256, 2);
    write_model("large", 640, 6);
    return program_run("for i in $(seq 30); do cat rows.jsonl; done > many.jsonl && "
                       "sed -i 's/rows.jsonl/many.jsonl/; s/, eval_fraction: 0.1//' run.yaml");
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

/* VmHWM in bytes, 0 when the process is gone. */
static long long peak_of(pid_t pid)
{
    char path[64], line[256];
    long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static void keep_peak(long long *peak, pid_t pid)
{
    long long now = peak_of(pid);
    *peak = now > *peak ? now : *peak;
}

/* Peaks of the workers of a run, and of `train` in peak[CREW_MOST]. */
static void run(const char *options, int workers, long long peak[CREW_MOST + 1])
{
    struct crew crew;
    memset(peak, 0, (CREW_MOST + 1) * sizeof *peak);
    program_expect(0, "rm -rf out");
    live_start(&l,
               "$D train run.yaml %s --workers=%d --train.steps=3 --checkpoint.every=2 "
               "--eval.every=0",
               options, workers);
    assert_true(crew_wait(l.pid, workers, &crew));
    do {
        for (int i = 0; i < workers; i++)
            keep_peak(&peak[i], crew.pid[i]);
        keep_peak(&peak[CREW_MOST], l.pid);
        crew_sleep(0.002);
    } while (!crew_gone(&crew));
    live_expect(&l, 0);
}

/* Estimates in the same places. */
static void estimate(const char *options, int workers, long long bytes[CREW_MOST + 1])
{
    program_expect(0, "$D estimate run.yaml %s --workers=%d --json 2>/dev/null", options, workers);
    json_t *o = json_loads(program_out, 0, NULL), *list = json_object_get(o, "workers");
    assert_int_equal(json_array_size(list), workers);
    bytes[CREW_MOST] = json_integer_value(json_object_get(o, "total_bytes"));
    for (int i = 0; i < workers; i++) {
        json_t *worker = json_array_get(list, (size_t)i);
        bytes[i] = json_integer_value(json_object_get(worker, "total_bytes"));
        bytes[CREW_MOST] -= bytes[i];
    }
    json_decref(o);
}

static void expect_near(const char *what, long long estimate, long long peak)
{
    long long off = estimate > peak ? estimate - peak : peak - estimate;
    print_message("  %s: estimated %.1f MB, peak %.1f MB, off %.1f MB\n", what,
                  (double)estimate / 1e6, (double)peak / 1e6, (double)(estimate - peak) / 1e6);
    assert_true(peak > 0);
    assert_true(off <= 20000000 || off * 100 <= 3 * peak);
}

static void try_run(const char *options, int workers)
{
    long long peak[CREW_MOST + 1], bytes[CREW_MOST + 1];
    estimate(options, workers, bytes);
    run(options, workers, peak);
    print_message("%s, %d workers\n", options, workers);
    for (int w = 0; w < workers; w++)
        expect_near("a worker", bytes[w], peak[w]);
    expect_near("train itself", bytes[CREW_MOST], peak[CREW_MOST]);
}

static void test_every_worker(void **state)
{
    (void)state;
    try_run("--model=small --batch.tokens=2048 --microbatch.tokens=512", 2);
    try_run("--model=small --batch.tokens=2048 --microbatch.tokens=512 --reduction=exact "
            "--rates=[1,2,1,3]",
            4);
    try_run("--model=large --batch.tokens=768 --microbatch.tokens=384", 2);
    try_run("--model=large --batch.tokens=512 --microbatch.tokens=128 --reduction=exact "
            "--train.dtype=bfloat16 --train.recompute=block",
            4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_worker)};
    return cmocka_run_group_tests(tests, open_run, close_run);
}
