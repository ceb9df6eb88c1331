/* `ductile logits MODEL --ids 1,2,3 -o OUT.safetensors` */
#include "cli/model_options.h"

#include "base/arena.h"
#include "train/session.h"

#include <stdlib.h>

static int forward(const struct dt_session *s, enum dt_dtype compute, const struct dt_ids *ids,
                   float *out)
{
    int64_t T = ids->n, V = s->arch->V;
    struct dt_executor_options o = {
        .compute = compute, .microbatch_tokens = T, .positions = T, .bound = {1, T, T}};
    struct dt_executor e;
    struct dt_global_batch batch;
    struct dt_u128 loss = {0, 0};
    bool finite = true;
    DT_TRY(dt_executor_open((struct dt_state *)(uintptr_t)&s->state, &o, &e));
    int rc = dt_executor_batch(&e, &batch);
    if (rc >= 0) {
        batch.sequences = 1;
        batch.length[0] = T;
        for (int64_t t = 0; t < T; t++) {
            batch.ids[t] = ids->p[t];
            batch.targets[t] = -1;
        }
        rc = dt_global_batch_dispatch(&batch);
    }
    if (rc >= 0)
        rc = dt_executor_evaluate(&e, &batch, &loss, &finite);
    for (int64_t row = 0, n; rc >= 0 && row < T; row += n) {
        n = T - row < e.model.logits_rows ? T - row : e.model.logits_rows;
        dt_k->copy(out + row * V, DT_F32, V, dt_model_logits(&e.model, row, n), DT_F32, V, n, V);
    }
    dt_global_batch_free(&batch);
    dt_executor_close(&e);
    return rc;
}

static int write_logits(const struct dt_session *s, enum dt_dtype compute, const struct dt_ids *ids,
                        const char *path)
{
    float *logits; /* [T, V] */
    struct dt_tensor_spec spec = {
        .name = "logits", .dtype = DT_F32, .rank = 2, .shape = {ids->n, s->arch->V}};
    if (ids->n > s->arch->positions && s->arch->learned_positions)
        return DT_FAIL(DT_E_DATA, "%lld ids, but the model has %lld positions", (long long)ids->n,
                       (long long)s->arch->positions);
    DT_TRY(DT_NEW(&logits, ids->n * s->arch->V));
    int rc = forward(s, compute, ids, logits);
    const void *data = logits;
    if (rc >= 0)
        rc = dt_tensors_save(path, &spec, &data, 1);
    free(logits);
    return rc;
}

static int run(struct dt_cli *cli)
{
    struct dt_session s;
    struct dt_ids ids = {0};
    enum dt_dtype compute;
    DT_TRY(dt_cli_model_options(cli, &compute));
    DT_TRY(dt_session_open(cli->arguments[0], DT_STATE_WEIGHTS, &s));
    int rc = dt_cli_ids(dt_cli_string(cli, "ids"), s.arch->V, &ids);
    if (rc >= 0)
        rc = write_logits(&s, compute, &ids, dt_cli_string(cli, "output"));
    if (rc >= 0)
        dt_info("wrote logits [%lld, %lld] to %s", (long long)ids.n, (long long)s.arch->V,
                dt_cli_string(cli, "output"));
    dt_ids_free(&ids);
    dt_session_close(&s);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"ids", 0, "1,2,3", DT_CLI_STRING, .required = true, .doc = "the sequence"},
    {"output", 'o', "OUT.safetensors", DT_CLI_STRING, .required = true,
     .doc = "where tensor `logits` [T, V] goes"},
    DT_CLI_MODEL_OPTIONS,
    {0},
};

const struct dt_cli_verb dt_cli_verb_logits = {
    .name = "logits",
    .run = run,
    .arguments = "MODEL",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "fp32 logits of one sequence of ids",
    .options = options,
};
