/* Parity with transformers: logits, loss and every gradient of every family and variant, and ten
 * AdamW steps, through the program's own verbs.
 *
 * Tolerances are those of docs/numerics.md: transformers runs in float64, and PyTorch's own float32
 * is within 9e-7 of it on these models. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/safetensors.h"

#include "unit/train/run_ductile.h"

#include <math.h>

#define MODELS DT_TEST_DIR "/golden/models"
#define LOGITS_TOLERANCE 5e-6
#define GRADIENT_TOLERANCE 5e-6 /* of the tensor's own gradient ... */
#define GLOBAL_TOLERANCE 1e-6   /* ... plus this much of the global one */
#define LOSS_TOLERANCE 1e-6
#define STEP_LOSS_TOLERANCE 1e-5 /* over ten steps, as the weights' */

static char scratch[DT_PATH];

static double element(const struct dt_stored *s, int64_t i)
{
    float f;
    double d;
    if (s->dtype == DT_F64) {
        memcpy(&d, s->data + (size_t)i * sizeof d, sizeof d);
        return d;
    }
    assert_int_equal(s->dtype, DT_F32);
    memcpy(&f, s->data + (size_t)i * sizeof f, sizeof f);
    return (double)f;
}

static double norm(const struct dt_stored *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->elements; i++)
        sum += element(s, i) * element(s, i);
    return sqrt(sum);
}

/* Norm of the difference; columns [skip, skip_end) of every row are left out. */
static double distance(const struct dt_stored *a, const struct dt_stored *b, int64_t skip,
                       int64_t skip_end)
{
    double sum = 0;
    assert_int_equal(a->elements, b->elements);
    for (int64_t i = 0; i < a->elements; i++) {
        double d = element(a, i) - element(b, i);
        if (i < skip || i >= skip_end)
            sum += d * d;
    }
    return sqrt(sum);
}

static const struct dt_stored *need(const struct dt_tensor_set *set, const char *format,
                                    const char *name)
{
    char full[160];
    const struct dt_stored *s;
    snprintf(full, sizeof full, format, name);
    require(dt_tensors_need(set, full, &s));
    return s;
}

static json_t *parse(const char *text)
{
    json_t *root;
    require(dt_json_parse(text, strlen(text), "standard output", DT_E_DATA, &root));
    return root;
}

static double real(const json_t *object, const char *key)
{
    double value = NAN;
    require(dt_json_need_real((struct dt_json_in){object, "ductile", DT_E_DATA}, key, &value));
    return value;
}

static void check_logits(const char *dir, const struct dt_tensor_set *golden, const char *which)
{
    const struct dt_stored *ids = need(golden, "ids.%s", which);
    const struct dt_stored *want = need(golden, "logits.%s", which);
    char list[4096] = "", out[DT_PATH + 32];
    size_t used = 0;
    for (int64_t i = 0; i < ids->elements; i++) {
        int64_t id;
        memcpy(&id, ids->data + (size_t)i * sizeof id, sizeof id);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%lld", i ? "," : "",
                                 (long long)id);
        assert_true(used < sizeof list);
    }
    snprintf(out, sizeof out, "%s/logits.safetensors", scratch);
    free(run_ductile(scratch, (const char *[]){"logits", dir, "--ids", list, "-o", out, "--dtype",
                                               "float32", NULL}));
    struct dt_tensor_set set;
    require(dt_tensors_open(out, &set));
    const struct dt_stored *got = need(&set, "%s", "logits");
    assert_int_equal(got->rank, 2);
    assert_int_equal(got->shape[0], want->shape[0]);
    double error = distance(got, want, 0, 0) / norm(want);
    if (!(error <= LOGITS_TOLERANCE))
        fail_msg("%s: logits of sequence %s differ by %.2e of their norm", dir, which, error);
    dt_tensors_close(&set);
}

static void check_gradients(const char *dir, const struct dt_tensor_set *golden, const char *path)
{
    struct dt_tensor_set set;
    double global = 0;
    size_t gradients = 0;
    require(dt_tensors_open(path, &set));
    for (size_t i = 0; i < golden->count; i++) {
        if (strncmp(golden->tensors[i].name, "grad.", 5) == 0) {
            global += pow(norm(&golden->tensors[i]), 2);
            gradients++;
        }
    }
    global = sqrt(global);
    assert_int_equal(set.count, gradients);
    for (size_t i = 0; i < set.count; i++) {
        const struct dt_stored *got = &set.tensors[i], *want = need(golden, "grad.%s", got->name);
        assert_int_equal(got->rank, want->rank);
        double error = distance(got, want, 0, 0);
        if (!(error <= GRADIENT_TOLERANCE * norm(want) + GLOBAL_TOLERANCE * global))
            fail_msg("%s: the gradient of %s differs by %.2e; its norm is %.2e, the global %.2e",
                     dir, got->name, error, norm(want), global);
    }
    dt_tensors_close(&set);
}

static void check_eval(const char *dir, const struct dt_tensor_set *golden)
{
    char rows[DT_PATH], out[DT_PATH + 32];
    require(dt_path_join(rows, dir, "rows.jsonl"));
    snprintf(out, sizeof out, "%s/grads.safetensors", scratch);
    char *text = run_ductile(scratch, (const char *[]){"eval", dir, "--data", rows, "--grads", out,
                                                       "--json", "--dtype", "float32", NULL});
    json_t *result = parse(text);
    int64_t tokens;
    memcpy(&tokens, need(golden, "%s", "tokens")->data, sizeof tokens);
    double want = element(need(golden, "%s", "loss"), 0), got = real(result, "loss");
    if (!(fabs(got / want - 1) <= LOSS_TOLERANCE))
        fail_msg("%s: loss %.9f, transformers has %.9f", dir, got, want);
    assert_true(real(result, "tokens") == (double)tokens);
    assert_true(real(result, "sequences") == 3);
    json_decref(result);
    free(text);
    check_gradients(dir, golden, out);
}

static void check_model(const char *dir, const struct dt_tensor_set *golden)
{
    static const char *const sequences[] = {"0", "1", "2", "long"};
    for (size_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "ids.%s", sequences[i]);
        if (i < 3 || dt_tensors_find(golden, name))
            check_logits(dir, golden, sequences[i]);
    }
    check_eval(dir, golden);
}

static void parity_with_transformers(void **state)
{
    (void)state;
    struct dt_names names;
    int models = 0;
    require(dt_dir_list(MODELS, &names));
    for (size_t i = 0; i < names.count; i++) {
        char dir[DT_PATH], path[DT_PATH];
        struct dt_tensor_set golden;
        require(dt_path_join(dir, MODELS, names.names[i]));
        if (!dt_file_is_dir(dir) || strncmp(names.names[i], "adamw10", 7) == 0)
            continue;
        require(dt_path_join(path, dir, "golden.safetensors"));
        require(dt_tensors_open(path, &golden));
        check_model(dir, &golden);
        dt_tensors_close(&golden);
        models++;
    }
    dt_names_free(&names);
    assert_int_equal(models, 24);
}

/* Loss, norm and rate of every step against the stored run. Norms follow gradients, whose relative
 * error grows with that of the weights. */
static int check_steps(const char *output, const struct dt_tensor_set *golden)
{
    char path[DT_PATH], *text, *save = NULL;
    size_t size;
    int steps = 0;
    require(dt_path_join(path, output, "metrics.jsonl"));
    require(dt_file_read(path, (size_t)1 << 24, &text, &size));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *o = parse(line);
        if (json_object_get(o, "loss")) {
            double loss = element(need(golden, "%s", "losses"), steps);
            double norms = element(need(golden, "%s", "norms"), steps);
            double rate = element(need(golden, "%s", "rates"), steps);
            assert_int_equal(json_integer_value(json_object_get(o, "step")), steps + 1);
            if (!(fabs(real(o, "loss") / loss - 1) <= STEP_LOSS_TOLERANCE))
                fail_msg("step %d: loss %.9g, PyTorch has %.9g", steps + 1, real(o, "loss"), loss);
            if (!(fabs(real(o, "grad_norm") / norms - 1) <= 10 * STEP_LOSS_TOLERANCE))
                fail_msg("step %d: norm %.9g, PyTorch has %.9g", steps + 1, real(o, "grad_norm"),
                         norms);
            if (!(fabs(real(o, "lr") / rate - 1) <= 1e-7)) /* a fp32 number */
                fail_msg("step %d: rate %.9g, expected %.9g", steps + 1, real(o, "lr"), rate);
            steps++;
        }
        json_decref(o);
    }
    free(text);
    return steps;
}

/* The key slice of GPT-2's c_attn.bias is left out: softmax does not see it, so its true gradient
 * is zero, and Adam turns rounding noise into steps of full size. */
static void check_weights(const char *output, const struct dt_tensor_set *golden)
{
    char path[DT_PATH];
    struct dt_tensor_set set;
    double global = 0;
    snprintf(path, sizeof path, "%.4000s/checkpoints/step-00000010/model.safetensors", output);
    require(dt_tensors_open(path, &set));
    for (size_t i = 0; i < set.count; i++)
        global += pow(norm(need(golden, "final.%s", set.tensors[i].name)), 2);
    global = sqrt(global / (double)set.count);
    for (size_t i = 0; i < set.count; i++) {
        const struct dt_stored *got = &set.tensors[i], *want = need(golden, "final.%s", got->name);
        bool fused = strstr(got->name, "c_attn.bias") != NULL;
        int64_t C = fused ? got->elements / 3 : 0;
        double error = distance(got, want, C, 2 * C);
        if (!(error <= STEP_LOSS_TOLERANCE * (norm(want) + global)))
            fail_msg("%s differs by %.2e; its norm is %.2e", got->name, error, norm(want));
    }
    dt_tensors_close(&set);
}

static void follow(const char *name)
{
    char config[DT_PATH], golden_path[DT_PATH], output[DT_PATH], option[DT_PATH + 16];
    struct dt_tensor_set golden;
    snprintf(config, sizeof config, MODELS "/%s/run.yaml", name);
    snprintf(golden_path, sizeof golden_path, MODELS "/%s/golden.safetensors", name);
    require(dt_path_join(output, scratch, name));
    snprintf(option, sizeof option, "--output=%s", output);
    require(dt_tensors_open(golden_path, &golden));
    free(run_ductile(scratch, (const char *[]){"train", config, option, NULL}));
    assert_int_equal(check_steps(output, &golden), 10);
    check_weights(output, &golden);
    dt_tensors_close(&golden);
}

static void ten_adamw_steps(void **state)
{
    (void)state;
    follow("adamw10_llama");
    follow("adamw10_gpt2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parity_with_transformers),
        cmocka_unit_test(ten_adamw_steps),
    };
    scratch_open(scratch);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_close(scratch);
    return failed;
}
