/* A real pre-trained model: SmolLM2 135M, made by tests/golden/smollm2.py. Skipped, with a word,
 * unless DT_SMOLLM2 names its directory; `make test-long` sets it where the model is at hand.
 *
 * transformers' loss on 50 KB of English within 1e-4 relative, its greedy continuations (as ids: no
 * tokenizer is involved), and fine-tuning that does not blow the model up. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/safetensors.h"

#include "unit/train/run_ductile.h"

#include <math.h>
#include <zlib.h>

#define GOLDEN DT_TEST_DIR "/golden/smollm2"
#define LOSS_TOLERANCE 1e-4
#define STEPS 20
#define ROWS 2 /* of 512 tokens, the same ones in every step, so that losses can be compared */

static char scratch[DT_PATH];
static const char *model;

static json_t *parse(const char *text)
{
    json_t *root;
    require(dt_json_parse(text, strlen(text), "ductile", DT_E_DATA, &root));
    return root;
}

static json_t *golden(void)
{
    json_t *root;
    require(dt_json_load(GOLDEN "/golden.json", (size_t)1 << 20, DT_E_DATA, &root));
    return root;
}

static double real(const json_t *object, const char *key)
{
    double value = NAN;
    require(dt_json_need_real((struct dt_json_in){object, "ductile", DT_E_DATA}, key, &value));
    return value;
}

static void loss_on_english(void **state)
{
    (void)state;
    if (!model)
        skip();
    char *text =
        run_ductile(scratch, (const char *[]){"eval", model, "--data", GOLDEN "/rows.jsonl.gz",
                                              "--json", "--dtype", "float32", NULL});
    json_t *got = parse(text), *want = golden();
    assert_true(real(got, "tokens") == real(want, "tokens"));
    assert_true(real(got, "sequences") == real(want, "sequences"));
    if (!(fabs(real(got, "loss") / real(want, "loss") - 1) <= LOSS_TOLERANCE))
        fail_msg("loss %.7f, transformers has %.7f", real(got, "loss"), real(want, "loss"));
    json_decref(got);
    json_decref(want);
    free(text);
}

/* Greedy: each id of the continuation is the largest logit after those before it. One forward over
 * prompt and continuation shows all of them. */
static void check_continuation(const json_t *prompt)
{
    const json_t *ids = json_object_get(prompt, "ids");
    const json_t *tail = json_object_get(prompt, "continuation");
    size_t head = json_array_size(ids), all = head + json_array_size(tail), used = 0;
    char list[2048] = "", out[DT_PATH + 32];
    for (size_t i = 0; i < all; i++) {
        const json_t *id = i < head ? json_array_get(ids, i) : json_array_get(tail, i - head);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%lld", i ? "," : "",
                                 (long long)json_integer_value(id));
        assert_true(used < sizeof list);
    }
    snprintf(out, sizeof out, "%s/logits.safetensors", scratch);
    free(run_ductile(scratch, (const char *[]){"logits", model, "--ids", list, "-o", out, "--dtype",
                                               "float32", NULL}));
    struct dt_tensor_set set;
    const struct dt_stored *logits; /* [all, V] */
    require(dt_tensors_open(out, &set));
    require(dt_tensors_need(&set, "logits", &logits));
    size_t V = (size_t)logits->shape[1];
    for (size_t t = head - 1; t + 1 < all; t++) {
        float best = -INFINITY, x;
        size_t at = 0;
        for (size_t v = 0; v < V; v++) {
            memcpy(&x, logits->data + (t * V + v) * sizeof x, sizeof x);
            if (x > best) {
                best = x;
                at = v;
            }
        }
        assert_int_equal(at, json_integer_value(json_array_get(tail, t + 1 - head)));
    }
    dt_tensors_close(&set);
}

static void greedy_continuations(void **state)
{
    (void)state;
    if (!model)
        skip();
    json_t *want = golden(), *prompt;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(want, "prompts")), 5);
    json_array_foreach(json_object_get(want, "prompts"), i, prompt) check_continuation(prompt);
    json_decref(want);
}

/* The same through the tokenizer and the KV cache. */
static void generates_text(void **state)
{
    (void)state;
    if (!model)
        skip();
    json_t *want = golden(), *prompt;
    size_t i;
    json_array_foreach(json_object_get(want, "prompts"), i, prompt)
    {
        char *text = run_ductile(
            scratch, (const char *[]){"generate", model, "--prompt",
                                      json_string_value(json_object_get(prompt, "text")),
                                      "--max-new-tokens", "32", "--temperature", "0",
                                      "--ignore-eos", "--dtype", "float32", NULL});
        const char *tail = json_string_value(json_object_get(prompt, "continuation_text"));
        if (strncmp(text, tail, strlen(tail)) != 0)
            fail_msg("generated '%s', transformers '%s'", text, tail);
        free(text);
    }
    json_decref(want);
}

static void write_rows(const char *path)
{
    char line[16384];
    gzFile from = gzopen(GOLDEN "/rows.jsonl.gz", "rb");
    FILE *to = fopen(path, "w");
    assert_true(from && to);
    for (int i = 0; i < ROWS; i++) {
        assert_non_null(gzgets(from, line, sizeof line));
        assert_true(fputs(line, to) >= 0);
    }
    gzclose(from);
    assert_int_equal(fclose(to), 0);
}

static void fine_tunes_calmly(void **state)
{
    (void)state;
    if (!model)
        skip();
    char config[DT_PATH + 32], path[DT_PATH + 32], yaml[4 * DT_PATH], *text, *save = NULL;
    size_t size;
    snprintf(path, sizeof path, "%s/rows.jsonl", scratch);
    write_rows(path);
    snprintf(config, sizeof config, "%s/run.yaml", scratch);
    snprintf(yaml, sizeof yaml,
             "model: %s\noutput: %s/out\ndata: {train: [%s], max_length: 512}\n"
             "batch: {sequences: %d}\nmicrobatch: {tokens: 1024}\n"
             "train: {steps: %d, dtype: bfloat16}\n"
             "optimizer: {lr: 2.0e-5, schedule: constant, warmup: 4}\n"
             "checkpoint: {every: 1000}\n",
             model, scratch, path, ROWS, STEPS);
    require(dt_file_write(config, yaml, strlen(yaml)));
    free(run_ductile(scratch, (const char *[]){"train", config, NULL}));
    snprintf(path, sizeof path, "%s/out/metrics.jsonl", scratch);
    require(dt_file_read(path, (size_t)1 << 24, &text, &size));
    double first = 0; /* of the untouched model */
    int steps = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *o = parse(line);
        if (json_object_get(o, "loss")) {
            double loss = real(o, "loss");
            if (steps == 0)
                first = loss;
            if (!(loss <= first + 0.05))
                fail_msg("step %d: loss %.4f, the first was %.4f", steps + 1, loss, first);
            steps++;
        }
        json_decref(o);
    }
    assert_int_equal(steps, STEPS);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_on_english),
        cmocka_unit_test(greedy_continuations),
        cmocka_unit_test(generates_text),
        cmocka_unit_test(fine_tunes_calmly),
    };
    model = getenv("DT_SMOLLM2");
    if (!model)
        fprintf(stderr, "skipped: DT_SMOLLM2 does not name a directory made by smollm2.py build\n");
    scratch_open(scratch);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_close(scratch);
    return failed;
}
