/* `ductile eval MODEL --data FILE`: the token-weighted mean loss, and with --grads its gradient. */
#include "cli/model_options.h"

#include "base/arena.h"
#include "train/session.h"

#include <math.h>
#include <stdlib.h>

/* Micro-batches of up to so many tokens; a longer sequence makes its own. */
#define TOKENS 4096

struct evaluation_of {
    struct dt_session session;
    struct dt_tokenizer *tokenizer;
    struct dt_dataset *data;
    struct dt_executor executor;
    struct dt_evaluation result;
};

static int64_t longest(const struct dt_dataset *d)
{
    int64_t most = 1;
    for (int64_t i = 0; i < dt_dataset_samples(d); i++)
        if (dt_dataset_length(d, i) > most)
            most = dt_dataset_length(d, i);
    return most;
}

static int open_data(struct dt_cli *cli, struct evaluation_of *e)
{
    const struct dt_arch *arch = e->session.arch;
    const char *file = dt_cli_string(cli, "data");
    int64_t length = dt_cli_int(cli, "max-length");
    struct dt_data_options o = {
        .files = &file, .file_count = 1, .tokenizer = e->tokenizer, .vocab_size = arch->V,
        .max_length = length > 0 ? length : arch->positions, .format = dt_cli_string(cli, "format"),
        .chat_template = dt_cli_string(cli, "chat-template"), .model_dir = e->session.path,
    };
    DT_TRY(dt_end_of_text(dt_cli_string(cli, "end-of-text"), arch, e->tokenizer, &o.end_of_text));
    return dt_dataset_open(&o, &e->data);
}

/* Everything in one batch, so that one pass leaves the gradient of the whole in the state. */
static int gradients(struct evaluation_of *e)
{
    struct dt_global_batch batch;
    int64_t n = dt_dataset_samples(e->data), *samples, tokens = dt_dataset_tokens(e->data);
    double loss;
    DT_TRY(DT_NEW(&samples, n));
    int rc = dt_global_batch_new(n, tokens, &batch);
    for (int64_t i = 0; i < n; i++)
        samples[i] = i;
    if (rc >= 0) {
        dt_global_batch_read(&batch, e->data, samples, n);
        rc = dt_executor_gradients(&e->executor, &batch, &loss);
        e->result = (struct dt_evaluation){.loss = loss, .tokens = batch.loss_tokens, .sequences = n,
                                           .bytes = dt_dataset_bytes(e->data)};
        dt_global_batch_free(&batch);
    }
    free(samples);
    return rc;
}

/* Gradients of the mean, under the parameters' names. */
static int save_gradients(const struct evaluation_of *e, const char *path)
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
            g[j] = (float)(g[j] / (double)e->result.tokens);
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

static int evaluate(struct dt_cli *cli, struct evaluation_of *e, enum dt_dtype compute)
{
    const char *grads = dt_cli_string(cli, "grads");
    DT_TRY(dt_session_open(cli->arguments[0], grads ? DT_STATE_GRADIENTS : DT_STATE_WEIGHTS, &e->session));
    DT_TRY(dt_tokenizer_of(e->session.path, e->session.arch, &e->tokenizer));
    DT_TRY(open_data(cli, e));
    int64_t most = longest(e->data), all = dt_dataset_tokens(e->data);
    int64_t tokens = most > TOKENS ? most : TOKENS;
    if (tokens > all)
        tokens = all;
    struct dt_executor_options o = {
        .compute = compute, .train = grads != NULL, .microbatch_tokens = tokens, .positions = most,
        .max_sequences = grads ? dt_dataset_samples(e->data) : tokens, .max_tokens = grads ? all : tokens,
    };
    DT_TRY(dt_executor_open(&e->session.state, &o, &e->executor));
    if (!grads)
        return dt_evaluate(&e->executor, e->data, 0, NULL, true, &e->result);
    DT_TRY(gradients(e));
    return save_gradients(e, grads);
}

static int print(struct dt_cli *cli, const struct dt_evaluation *r)
{
    double loss = r->loss / (double)r->tokens;
    double bits = r->bytes > 0 ? r->loss / log(2) / (double)r->bytes : 0;
    if (cli->json) {
        json_t *o = json_pack("{s:f, s:I, s:I}", "loss", loss, "tokens", (json_int_t)r->tokens, "sequences",
                              (json_int_t)r->sequences);
        if (o && bits > 0)
            json_object_set_new(o, "bits_per_byte", json_real(bits));
        return dt_cli_json(cli, o);
    }
    printf("loss %.6f\ntokens %lld\nsequences %lld\n", loss, (long long)r->tokens, (long long)r->sequences);
    if (bits > 0)
        printf("bits_per_byte %.4f\n", bits);
    return DT_OK;
}

static int run(struct dt_cli *cli)
{
    struct evaluation_of e = {0};
    enum dt_dtype compute;
    DT_TRY(dt_cli_model_options(cli, &compute));
    int rc = evaluate(cli, &e, compute);
    if (rc >= 0)
        rc = print(cli, &e.result);
    dt_executor_close(&e.executor);
    dt_dataset_close(e.data);
    dt_tokenizer_close(e.tokenizer);
    dt_session_close(&e.session);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"data", 0, "FILE", DT_CLI_STRING, .required = true, .doc = "a corpus, JSONL or text file"},
    {"grads", 0, "OUT.safetensors", DT_CLI_STRING, .doc = "also write the gradient of the mean loss"},
    {"max-length", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 1 << 30,
     .doc = "longest sequence; 0: the model's positions"},
    {"format", 0, "NAME", DT_CLI_STRING, .fallback = "auto", .doc = "row format of a JSONL file, as data.format"},
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
