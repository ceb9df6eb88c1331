/* RUN.yaml: the example of the documentation, cross-checks, names of other programs, refusals, what
 * is printed, and what may change when a run goes on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/log.h"
#include "data/data.h"
#include "train/run_config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MINIMAL "model: m\noutput: o\ndata: {train: [t.txt]}\n"

static const char example[] = "model: models/tiny\n"
                              "output: runs/bible\n"
                              "seed: 1\n"
                              "data:       {train: [a.jsonl, b.bin], eval: [c.txt], max_length: "
                              "1024, shuffle: true, on_bad_row: fail}\n"
                              "batch:      {tokens: 16384}\n"
                              "microbatch: {tokens: 4096}\n"
                              "train:      {steps: 500, dtype: bfloat16}\n"
                              "optimizer:  {lr: 3.0e-4, schedule: cosine, warmup: 20, "
                              "min_lr_ratio: 0.1, betas: [0.9, 0.95],\n"
                              "             eps: 1.0e-8, weight_decay: 0.1, clip: 1.0}\n"
                              "eval:       {every: 50}\n"
                              "checkpoint: {every: 100, keep: 3}\n"
                              "workers:    1\n"
                              "threads:    1\n"
                              "reduction:  float\n";

static int parse(const char *text, const char *const *overrides, int n, struct dt_run_config *cfg)
{
    return dt_run_config_parse("run.yaml", "/runs", text, strlen(text), overrides, n, cfg);
}

static void refused(const char *text, int code, const char *part)
{
    struct dt_run_config cfg;
    assert_int_equal(parse(text, NULL, 0, &cfg), code);
    if (!strstr(dt_error_message(), part))
        fail_msg("for <%s>\nexpected: %s\nfound:    %s", text, part, dt_error_message());
    assert_null(cfg.model); /* emptied */
    dt_run_config_free(&cfg);
}

static void test_example(void **state)
{
    (void)state;
    struct dt_run_config c;
    assert_int_equal(parse(example, NULL, 0, &c), 0);
    assert_string_equal(c.model, "/runs/models/tiny");
    assert_string_equal(c.output, "/runs/runs/bible");
    assert_int_equal(c.data.train.count, 2);
    assert_string_equal(c.data.train.items[1], "/runs/b.bin");
    assert_int_equal(c.data.eval.count, 1);
    assert_true(c.data.shuffle && c.data.max_length == 1024 &&
                c.data.on_bad_row == DT_BAD_ROW_FAIL);
    assert_true(c.batch.tokens == 16384 && c.batch.sequences == 0 && c.microbatch.tokens == 4096);
    assert_true(c.train.steps == 500 && c.train.epochs == 0 && c.train.dtype == DT_RUN_BFLOAT16);
    assert_true(c.optimizer.lr == 3e-4 && c.optimizer.schedule == DT_LR_COSINE);
    assert_true(c.optimizer.betas[0] == 0.9 && c.optimizer.betas[1] == 0.95);
    assert_int_equal(dt_run_config_warmup(&c, 500), 20);
    assert_int_equal(dt_run_config_decay(&c, 500), 0); /* not wsd */
    assert_true(c.eval.every == 50 && c.checkpoint.every == 100 && c.checkpoint.keep == 3);
    assert_true(c.workers == 1 && c.threads == 1 && c.seed == 1 && c.log.every == 1);
    assert_string_equal(c.data.format, "auto");
    assert_string_equal(c.kernels, "auto");
    assert_null(c.data.cache);
    dt_run_config_free(&c);
}

static void test_defaults(void **state)
{
    (void)state;
    struct dt_run_config c;
    assert_int_equal(parse(MINIMAL "train: {epochs: 2}", NULL, 0, &c), 0);
    assert_true(c.batch.tokens == 16384 && c.microbatch.tokens == 4096);
    dt_run_config_free(&c);
    assert_int_equal(
        parse("model: m\noutput: o\ndata: {train: t, max_length: 9000}\nbatch: {sequences: 3}\n"
              "train: {steps: 100}\noptimizer: {schedule: wsd, warmup: 3%}",
              NULL, 0, &c),
        0);
    assert_true(c.batch.tokens == 0 && c.batch.sequences == 3 && c.microbatch.tokens == 9000);
    assert_int_equal(dt_run_config_warmup(&c, 100), 3);
    assert_int_equal(dt_run_config_decay(&c, 100), 10);
    dt_run_config_free(&c);
}

static void test_checks(void **state)
{
    (void)state;
    refused(MINIMAL, DT_E_CONFIG, "run.yaml: neither train.steps nor train.epochs is given");
    refused(MINIMAL "train: {steps: 1, epochs: 1}", DT_E_CONFIG,
            "run.yaml:4: train.steps and train.epochs are both given");
    refused(MINIMAL "train: {steps: 1}\nbatch: {tokens: 1, sequences: 1}", DT_E_CONFIG,
            "run.yaml:5: batch.tokens and batch.sequences are both given");
    refused(MINIMAL "train: {steps: 1}\nmicrobatch: {tokens: 512}", DT_E_CONFIG,
            "run.yaml:5: microbatch.tokens (512) is less than data.max_length (1024)");
    refused(MINIMAL "train: {steps: 10}\noptimizer:\n  warmup: 11", DT_E_CONFIG,
            "run.yaml:6: optimizer.warmup (11) is more than train.steps (10)");
    refused(MINIMAL "train: {steps: 10}\noptimizer: {warmup: 6, decay: 5, schedule: wsd}",
            DT_E_CONFIG, "together are more than train.steps (10)");
    refused(MINIMAL "train: {epochs: 1}\noptimizer: {warmup: 60%, decay: 50%, schedule: wsd}",
            DT_E_CONFIG, "together are more than the whole run");
    refused(
        "model: m\noutput: o\ndata: {train: [t], eval: [e], eval_fraction: 0.1}\ntrain: {steps: 1}",
        DT_E_CONFIG, "data.eval and data.eval_fraction are both given");
    refused(MINIMAL "train: {steps: 1}\noptimizer: {min_lr_ratio: 1.1}", DT_E_CONFIG,
            "from 0 to 1");
    refused(MINIMAL "train: {steps: 1}\noptimizer: {betas: [0.9, 1]}", DT_E_CONFIG,
            "from 0 below 1");
    refused(MINIMAL "train: {steps: 0}", DT_E_CONFIG,
            "train.steps: found \"0\", expected an integer from 1");
    refused(MINIMAL "train: {steps: 1}\nworkers: 3\nrates: [1, 2]", DT_E_CONFIG,
            "run.yaml:6: rates has 2 numbers for 3 workers");
    refused(MINIMAL "train: {steps: 1}\nworkers: 2\nrates: [1, fast]", DT_E_CONFIG,
            "rates: 'fast' is not a number");
    refused("model: m\noutput: o\ndata: {train: []}\ntrain: {steps: 1}", DT_E_CONFIG,
            "data.train: found an empty list");
}

static void test_all_at_once(void **state)
{
    (void)state;
    struct dt_run_config c;
    const char *text =
        "modle: m\noutput: o\ndata: {train: [t], max_lenght: 5}\ntrain: {steps: many}\n"
        "optimizer: {lr: -1}\nmicro_batch_size: 4\nplan: p.json\n";
    assert_int_equal(parse(text, NULL, 0, &c), DT_E_CONFIG);
    assert_string_equal(
        dt_error_message(),
        "7 problems in the configuration\n"
        "run.yaml:1: unknown key \"modle\"; did you mean model?\n"
        "run.yaml:3: unknown key \"data.max_lenght\"; did you mean data.max_length?\n"
        "run.yaml:4: train.steps: found \"many\", expected an integer from 1\n"
        "run.yaml:5: optimizer.lr: found \"-1\", expected a number from 0 to 10\n"
        "run.yaml:6: unknown key \"micro_batch_size\": it counts sequences; write "
        "microbatch.tokens, the "
        "most tokens held at once\n"
        "run.yaml:7: \"plan\": plans are not built into this version\n"
        "run.yaml: missing key model (required): Hugging Face directory or checkpoint; with `init: "
        "random` "
        "only its config.json and tokenizer are used");
    assert_int_equal(dt_error_exit_code(DT_E_CONFIG), 2);
}

static void test_refused_by_name(void **state)
{
    (void)state;
    static const char *const lines[] = {"plan: x",
                                        "plans: [x]",
                                        "parallel: {tensor: 2}",
                                        "parallelism: {tensor_parallel_degree: 2}",
                                        "adapters: [a]",
                                        "lora: {rank: 8}",
                                        "lora_r: 8",
                                        "context_parallel_degree: 2",
                                        "moe: {}",
                                        "num_experts: 8",
                                        "fp8: true",
                                        "train.dtype: fp8",
                                        "deepspeed: x.json"};
    char text[512];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(text, sizeof text, MINIMAL "train.steps: 1\n%s\n", lines[i]);
        refused(text, DT_E_UNSUPPORTED, "not built into this version");
    }
    assert_int_equal(dt_error_exit_code(DT_E_UNSUPPORTED), 2);
    refused(MINIMAL "train: {steps: 1, dtype: fp16}", DT_E_CONFIG, "there is no float16 training");
}

static void test_synonyms(void **state)
{
    (void)state;
    struct dt_run_config c;
    assert_int_equal(
        parse("model_name_or_path: m\noutput_dir: o\ndata.train: t\nlearning_rate: 1e-3\n"
              "max_steps: 7\nmax_grad_norm: 0.5\ncutoff_len: 128\nsave_steps: 5\n"
              "lr_scheduler_type: linear\nwarmup_steps: 2\ntorch_dtype: float32\nmax-seq-len: 5",
              NULL, 0, &c),
        DT_E_CONFIG); /* the length twice */
    assert_non_null(strstr(dt_error_message(),
                           "run.yaml:12: data.max_length is given twice, first at run.yaml:7"));
    assert_int_equal(
        parse("base_model: m\noutput_dir: o\ndata.train: t\nlearning_rate: 1e-3\ntrain_iters: 7\n"
              "optimizer: {max_norm: 0.5}\nsequence_len: 128\ntrain: {torch_dtype: fp32}",
              NULL, 0, &c),
        0);
    assert_true(c.optimizer.lr == 1e-3 && c.train.steps == 7 && c.optimizer.clip == 0.5);
    assert_true(c.data.max_length == 128 && c.train.dtype == DT_RUN_FLOAT32);
    assert_string_equal(c.model, "/runs/m");
    dt_run_config_free(&c);
}

static void test_overrides(void **state)
{
    (void)state;
    struct dt_run_config c;
    const char *const good[] = {
        "train.steps=9", "--data.train=[x.txt, y.txt]", "no-data.shuffle",
        "lr=0.5",        "optimizer.betas=[0.5, 0.6]",  "train.freeze=model.embed*"};
    assert_int_equal(parse(example, good, 6, &c), DT_E_CONFIG); /* warm-up of 20 in 9 steps */
    assert_non_null(strstr(dt_error_message(),
                           "run.yaml:8: optimizer.warmup (20) is more than train.steps (9)"));
    const char *const more[] = {"train.steps=9",      "--data.train=[x.txt, y.txt]",
                                "no-data.shuffle",    "lr=0.5",
                                "optimizer.warmup=3", "train.freeze=model.embed*"};
    assert_int_equal(parse(example, more, 6, &c), 0);
    assert_true(c.train.steps == 9 && !c.data.shuffle && c.optimizer.lr == 0.5);
    assert_int_equal(c.data.train.count, 2);
    assert_null(strstr(c.data.train.items[0], "/runs/"));
    assert_string_equal(c.train.freeze.items[0], "model.embed*");
    dt_run_config_free(&c);
    const char *const bad[] = {"train.stpes=9"};
    assert_int_equal(parse(example, bad, 1, &c), DT_E_CONFIG);
    assert_string_equal(dt_error_message(),
                        "--train.stpes: unknown key \"train.stpes\"; did you mean train.steps?");
}

static char *printed(const struct dt_run_config *c)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    dt_run_config_print(c, f);
    fclose(f);
    return text;
}

static void test_print_and_hash(void **state)
{
    (void)state;
    struct dt_run_config a, b;
    uint64_t ha, hb;
    assert_int_equal(parse(example, NULL, 0, &a), 0);
    char *text = printed(&a);
    assert_int_equal(dt_run_config_parse("x", "/elsewhere", text, strlen(text), NULL, 0, &b), 0);
    char *again = printed(&b);
    assert_string_equal(text, again);
    assert_int_equal(dt_run_config_hash(&a, &ha), 0);
    assert_int_equal(dt_run_config_hash(&b, &hb), 0);
    assert_true(ha == hb);
    dt_run_config_free(&b);
    const char *const free_change[] = {"threads=2", "checkpoint.every=7"};
    assert_int_equal(parse(example, free_change, 2, &b), 0);
    assert_int_equal(dt_run_config_hash(&b, &hb), 0);
    assert_true(ha == hb);
    dt_run_config_free(&b);
    const char *const change[] = {"seed=2"};
    assert_int_equal(parse(example, change, 1, &b), 0);
    assert_int_equal(dt_run_config_hash(&b, &hb), 0);
    assert_true(ha != hb);
    dt_run_config_free(&b);
    dt_run_config_free(&a);
    free(text);
    free(again);
}

/* The example's run goes on with overrides: 0 or the failure. */
static int go_on(const char *const *overrides, int n, const char *const *allowed, int allowed_count)
{
    char path[] = "/tmp/dt-run-config-XXXXXX";
    struct dt_run_config c;
    assert_int_equal(parse(example, NULL, 0, &c), 0);
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    assert_non_null(f);
    dt_run_config_print(&c, f);
    fclose(f);
    dt_run_config_free(&c);
    assert_int_equal(parse(example, overrides, n, &c), 0);
    int rc = dt_run_config_diff(path, &c, allowed, allowed_count);
    dt_run_config_free(&c);
    unlink(path);
    return rc;
}

static void test_resume(void **state)
{
    (void)state;
    const char *const same[] = {"threads=2"};
    assert_int_equal(go_on(NULL, 0, NULL, 0), 0);
    assert_int_equal(go_on(same, 1, NULL, 0), 0);
    const char *const where[] = {
        "microbatch.tokens=2048", "checkpoint.every=1", "log.every=9", "eval.every=0",
        "train.recompute=block",  "train.steps=501",    "kernels=avx2"};
    assert_int_equal(go_on(where, 7, NULL, 0), 0);
    const char *const shorter[] = {"train.steps=499"};
    assert_int_equal(go_on(shorter, 1, NULL, 0), DT_E_CONFIG);
    assert_non_null(
        strstr(dt_error_message(),
               "train.steps: may only grow; was 500, now 499 (--allow-change=train.steps)"));
    const char *const other[] = {"seed=7", "optimizer.lr=1e-3", "model=/other", "train.freeze=a*"};
    assert_int_equal(go_on(other, 4, NULL, 0), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "\n  seed: was 1, now 7 (--allow-change=seed)"));
    assert_non_null(
        strstr(dt_error_message(),
               "\n  optimizer.lr: was 0.0003, now 0.001 (--allow-change=optimizer.lr)"));
    assert_non_null(strstr(dt_error_message(), "\n  model: was /runs/models/tiny, now /other"));
    assert_non_null(strstr(dt_error_message(), "\n  train.freeze: was not set, now [\"a*\"]"));
    const char *const some[] = {"seed", "learning_rate"};
    assert_int_equal(go_on(other, 4, some, 2), DT_E_CONFIG);
    assert_null(strstr(dt_error_message(), "seed"));
    const char *const all[] = {"seed", "optimizer", "model", "train"};
    assert_int_equal(go_on(other, 4, all, 4), 0);
    const char *const typo[] = {"sede"};
    assert_int_equal(go_on(other, 4, typo, 1), DT_E_USAGE);
    assert_string_equal(dt_error_message(), "--allow-change=sede: no such key; did you mean seed?");
}

int main(void)
{
    dt_log_set_level(DT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),         cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_checks),          cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_refused_by_name), cmocka_unit_test(test_synonyms),
        cmocka_unit_test(test_overrides),       cmocka_unit_test(test_print_and_hash),
        cmocka_unit_test(test_resume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
