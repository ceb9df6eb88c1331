/* For tests that train the same run on one and on several workers: three tiny models, and the
 * comparison of two checkpoints tensor by tensor. Every worker has one thread and sleeps while it
 * waits (OMP_WAIT_POLICY, program.h): there are more of them than cores. */
#ifndef DT_TESTS_DIST_H
#define DT_TESTS_DIST_H

#include "program.h"

#include "base/error.h"
#include "base/safetensors.h"

#include <math.h>

/* Weights and both moments of two checkpoints, byte by byte: a shell command with two directories.
 */
#define DIST_SAME                                                                                  \
    "{ for f in model.safetensors optimizer/exp_avg.safetensors "                                  \
    "optimizer/exp_avg_sq.safetensors; do cmp %s/$f %s/$f || exit 1; done; }"

/* "step 7" of a run's directory: a name for DIST_SAME. */
#define DIST_STEP(dir, step) dir "/checkpoints/step-000000" step

/* model (Llama), tied (the same, one matrix for embedding and head), gpt2; rows.jsonl and run.yaml,
 * both of program_tiny_run. */
static inline void dist_open(const char *name)
{
    program_open(name);
    program_tiny_run();
    if (program_run("mkdir tied gpt2 && sed 's/\"tie_word_embeddings\":false/"
                    "\"tie_word_embeddings\":true/' model/config.json > tied/config.json") != 0)
        abort();
    program_write("gpt2/config.json",
                  "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":2,\"n_head\":4,"
                  "\"n_positions\":128,\"vocab_size\":128,\"layer_norm_epsilon\":1e-5}");
}

/* A number of a step's line in DIR/metrics.jsonl; NAN when it is not there. */
static inline double dist_metric(const char *dir, int step, const char *name)
{
    char words[64];
    if (program_run("grep '\"step\":%d,.*\"loss\"' %s/metrics.jsonl", step, dir) != 0)
        return NAN;
    snprintf(words, sizeof words, "\"%s\":", name);
    const char *at = strstr(program_out, words);
    return at ? atof(at + strlen(words)) : NAN;
}

struct dist_far {
    double worst; /* max over tensors of ‖a−b‖ / (‖a‖ + ‖a‖ of all) */
    char tensor[128];
};

/* ‖a − b‖, or ‖a‖ without b. The files align nothing: memcpy. */
static inline double dist_norm(const struct dt_stored *a, const struct dt_stored *b)
{
    double sum = 0;
    for (int64_t i = 0; i < a->elements; i++) {
        float x, y = 0;
        memcpy(&x, a->data + 4 * i, sizeof x);
        if (b)
            memcpy(&y, b->data + 4 * i, sizeof y);
        double d = (double)x - (double)y;
        sum += d * d;
    }
    return sqrt(sum);
}

/* Two files of float32 tensors with the same names. */
static inline struct dist_far dist_compare(const char *a, const char *b)
{
    struct dt_tensor_set x, y;
    struct dist_far far = {0};
    char path[2][512];
    double whole = 0;
    snprintf(path[0], sizeof path[0], "%s/%s", program_dir, a);
    snprintf(path[1], sizeof path[1], "%s/%s", program_dir, b);
    if (dt_tensors_open(path[0], &x) < 0 || dt_tensors_open(path[1], &y) < 0)
        fail_msg("%s", dt_error_message());
    assert_int_equal(x.count, y.count);
    for (size_t i = 0; i < x.count; i++)
        whole = hypot(whole, dist_norm(&x.tensors[i], NULL));
    assert_true(whole > 0);
    for (size_t i = 0; i < x.count; i++) {
        const struct dt_stored *s = &x.tensors[i], *t = dt_tensors_find(&y, s->name);
        assert_non_null(t);
        assert_int_equal(s->elements, t->elements);
        double off = dist_norm(s, t) / (dist_norm(s, NULL) + whole);
        if (off > far.worst || isnan(off)) {
            far.worst = off;
            snprintf(far.tensor, sizeof far.tensor, "%s", s->name);
        }
    }
    dt_tensors_close(&x);
    dt_tensors_close(&y);
    return far;
}

#endif
