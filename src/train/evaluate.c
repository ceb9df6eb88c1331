#include "train/evaluate.h"

#include "base/error.h"

/* Micro-batches of up to so many tokens; a longer sequence makes its own. */
#define TOKENS 4096

static int64_t longest(const struct dt_dataset *d)
{
    int64_t most = 1;
    for (int64_t i = 0; i < dt_dataset_samples(d); i++)
        if (dt_dataset_length(d, i) > most)
            most = dt_dataset_length(d, i);
    return most;
}

/* Learned positions end with their table; dynamic RoPE would stretch the short sequences by the
 * longest. */
static int check_positions(const struct dt_file_options *o, const struct dt_arch *arch)
{
    bool bounded = arch->learned_positions || arch->rope.kind == DT_ROPE_DYNAMIC;
    if (!bounded || o->max_length <= arch->positions)
        return DT_OK;
    return DT_FAIL(DT_E_USAGE, "a max_length of %lld, but %s has %lld positions; give at most that",
                   (long long)o->max_length, o->model, (long long)arch->positions);
}

static int open_data(const struct dt_file_options *o, struct dt_file_evaluation *e)
{
    const struct dt_arch *arch = e->session.arch;
    DT_TRY(check_positions(o, arch));
    struct dt_data_options d = {
        .files = &o->data,
        .file_count = 1,
        .tokenizer = e->tokenizer,
        .vocab_size = arch->V,
        .max_length = o->max_length > 0 ? o->max_length : arch->positions,
        .format = o->format,
        .chat_template = o->chat_template,
        .model_dir = e->session.path,
    };
    DT_TRY(dt_end_of_text(o->end_of_text, arch, e->tokenizer, &d.end_of_text));
    return dt_dataset_open(&d, &e->data);
}

int dt_file_evaluation_open(const struct dt_file_options *o, struct dt_file_evaluation *e)
{
    enum dt_state_kind kind = o->gradients ? DT_STATE_GRADIENTS : DT_STATE_WEIGHTS;
    DT_TRY(dt_session_open(o->model, kind, &e->session));
    DT_TRY(dt_tokenizer_of(e->session.path, e->session.arch, &e->tokenizer));
    DT_TRY(open_data(o, e));
    int64_t most = longest(e->data), all = dt_dataset_tokens(e->data);
    int64_t tokens = most > TOKENS ? most : TOKENS;
    if (tokens > all)
        tokens = all;
    struct dt_executor_options x = {
        .compute = o->compute,
        .train = o->gradients,
        .microbatch_tokens = tokens,
        .positions = most,
        .bound = {o->gradients ? dt_dataset_samples(e->data) : tokens, o->gradients ? all : tokens,
                  most},
    };
    return dt_executor_open(&e->session.state, &x, &e->executor);
}

void dt_file_evaluation_close(struct dt_file_evaluation *e)
{
    dt_executor_close(&e->executor);
    dt_dataset_close(e->data);
    dt_tokenizer_close(e->tokenizer);
    dt_session_close(&e->session);
    *e = (struct dt_file_evaluation){0};
}
