/* `ductile eval MODEL --data FILE`: the token-weighted mean loss, and with --grads its gradient. */
#include "cli/model_options.h"

#include "base/arena.h"
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>

/* Everything in one batch, so that one pass leaves the gradient of the whole in the state. */
static int gradients(struct dt_file_evaluation *e, struct dt_evaluation *out)
{
    struct dt_global_batch batch;
    int64_t n = dt_dataset_samples(e->data), *samples;
    double loss;
    DT_TRY(DT_NEW(&samples, n));
    int rc = dt_executor_batch(&e->executor, &batch);
    for (int64_t i = 0; i < n; i++)
        samples[i] = i;
    if (rc >= 0) {
        rc = dt_global_batch_read(&batch, e->data, samples, n);
        if (rc >= 0)
            rc = dt_executor_gradients(&e->executor, &batch, &loss);
        *out = (struct dt_evaluation){.finite = true,
                                      .tokens = batch.loss_tokens,
                                      .sequences = n,
                                      .bytes = dt_dataset_bytes(e->data)};
        if (rc >= 0)
            dt_loss_add(&out->loss, loss, &out->finite);
        dt_global_batch_free(&batch);
    }
    free(samples);
    return rc;
}

/* Gradients of the mean, under the parameters' names. */
static int save_gradients(const struct dt_file_evaluation *e, int64_t tokens, const char *path)
{
    const struct dt_arch *arch = e->session.arch;
    struct dt_tensor_spec *specs;
    const void **data;
    int rc = DT_NEW(&specs, arch->tensor_count);
    if (rc >= 0)
        rc = DT_NEW(&data, arch->tensor_count);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < arch->tensor_count; i++) {
        const struct dt_tensor *t = &arch->tensors[i];
        float *g = e->executor.model.gradient[i];
        for (int64_t j = 0; j < t->rows * t->cols; j++)
            g[j] = (float)(g[j] / (double)tokens);
        specs[i] = (struct dt_tensor_spec){.name = t->name, .dtype = DT_F32, .rank = t->rank};
        specs[i].shape[0] = t->rank == 1 ? t->cols : t->rows;
        specs[i].shape[1] = t->cols;
        data[i] = g;
    }
    rc = dt_tensors_save(path, specs, data, (size_t)arch->tensor_count);
    free(specs);
    free(data);
    return rc;
}

static int evaluate(struct dt_cli *cli, struct dt_file_evaluation *e, enum dt_dtype compute,
                    struct dt_evaluation *out)
{
    const char *grads = dt_cli_string(cli, "grads");
    struct dt_file_options o = {
        .model = cli->arguments[0],
        .data = dt_cli_string(cli, "data"),
        .format = dt_cli_string(cli, "format"),
        .chat_template = dt_cli_string(cli, "chat-template"),
        .end_of_text = dt_cli_string(cli, "end-of-text"),
        .max_length = dt_cli_int(cli, "max-length"),
        .compute = compute,
        .gradients = grads != NULL,
    };
    DT_TRY(dt_file_evaluation_open(&o, e));
    if (!grads)
        return dt_evaluate(&e->executor, e->data, 0, NULL, true, out);
    DT_TRY(gradients(e, out));
    return save_gradients(e, out->tokens, grads);
}

static int print(struct dt_cli *cli, const struct dt_evaluation *r)
{
    double sum = r->finite ? dt_loss_value(&r->loss) : NAN, loss = sum / (double)r->tokens;
    double bits = r->bytes > 0 ? sum / log(2) / (double)r->bytes : 0;
    if (!isfinite(loss))
        dt_warn("the mean loss is %f: the weights of %s hold, or lead to, values that are no "
                "numbers",
                loss, cli->arguments[0]);
    if (cli->json) {
        json_t *mean = isfinite(loss) ? json_real(loss) : json_null(); /* JSON has no NaN */
        json_t *o = json_pack("{s:o, s:I, s:I}", "loss", mean, "tokens", (json_int_t)r->tokens,
                              "sequences", (json_int_t)r->sequences);
        if (o && isfinite(bits) && bits > 0)
            json_object_set_new(o, "bits_per_byte", json_real(bits));
        return dt_cli_json(cli, o);
    }
    printf("loss %.6f\ntokens %lld\nsequences %lld\n", loss, (long long)r->tokens,
           (long long)r->sequences);
    if (bits > 0)
        printf("bits_per_byte %.4f\n", bits);
    return DT_OK;
}

static int run(struct dt_cli *cli)
{
    struct dt_file_evaluation e = {0};
    struct dt_evaluation result;
    enum dt_dtype compute;
    DT_TRY(dt_cli_model_options(cli, &compute));
    int rc = evaluate(cli, &e, compute, &result);
    if (rc >= 0)
        rc = print(cli, &result);
    dt_file_evaluation_close(&e);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"data", 0, "FILE", DT_CLI_STRING, .required = true, .doc = "a corpus, JSONL or text file"},
    {"grads", 0, "OUT.safetensors", DT_CLI_STRING,
     .doc = "also write the gradient of the mean loss"},
    {"max-length", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 1 << 30,
     .doc = "longest sequence; 0: the model's positions"},
    {"format", 0, "NAME", DT_CLI_STRING, .fallback = "auto",
     .doc = "row format of a JSONL file, as data.format"},
    {"chat-template", 0, "NAME", DT_CLI_STRING, .fallback = "auto", .doc = "as data.chat_template"},
    {"end-of-text", 0, "TOKEN", DT_CLI_STRING, .fallback = "auto", .doc = "as data.end_of_text"},
    DT_CLI_MODEL_OPTIONS,
    {0},
};

const struct dt_cli_verb dt_cli_verb_eval = {
    .name = "eval",
    .run = run,
    .arguments = "MODEL",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "token-weighted mean loss of a model over a file",
    .options = options,
    .json = true,
};
