#include "train/session.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

int dt_model_directory(const char *path, char out[DT_PATH])
{
    char config[DT_PATH], checkpoints[DT_PATH];
    int64_t step;
    DT_TRY(dt_path_join(config, path, "config.json"));
    DT_TRY(dt_path_join(checkpoints, path, "checkpoints"));
    if (!dt_file_exists(path))
        return DT_FAIL(DT_E_NOT_FOUND,
                       "no model at %s: expected a directory with config.json and weights", path);
    if (dt_path_ends_with(path, ".gguf"))
        return DT_FAIL(
            DT_E_UNSUPPORTED,
            "%s: reading .gguf is not built into this version; give a Hugging Face directory",
            path);
    if (dt_file_exists(config) || !dt_file_is_dir(checkpoints))
        return dt_path_join(out, path, "");
    DT_TRY(dt_checkpoint_newest(checkpoints, out, &step));
    if (step < 0)
        return DT_FAIL(DT_E_NOT_FOUND, "%s holds no checkpoint yet", path);
    dt_info("model: %s", out);
    return DT_OK;
}

int dt_session_open(const char *path, enum dt_state_kind kind, struct dt_session *out)
{
    int rc;
    *out = (struct dt_session){0};
    struct dt_tensor_set set = {0};
    struct dt_state_options o = {.kind = kind};
    DT_TRY(dt_model_directory(path, out->path));
    DT_CHECK(fail, rc, dt_arch_load(out->path, &out->arch));
    DT_CHECK(fail, rc, dt_tensors_open(out->path, &set));
    rc = dt_state_open(out->arch, &o, &out->state);
    if (rc >= 0)
        rc = dt_state_load_model(&out->state, &set);
    dt_tensors_close(&set);
    if (rc >= 0)
        return DT_OK;
fail:
    dt_session_close(out);
    return rc;
}

void dt_session_close(struct dt_session *s)
{
    if (s->state.arch)
        dt_state_close(&s->state);
    dt_arch_free(s->arch);
    *s = (struct dt_session){0};
}

int dt_end_of_text(const char *wanted, const struct dt_arch *arch,
                   const struct dt_tokenizer *tokenizer, int32_t *out)
{
    *out = -1;
    if (strcmp(wanted, "none") == 0)
        return DT_OK;
    if (strcmp(wanted, "auto") == 0) {
        int32_t eos = tokenizer ? dt_tokenizer_eos(tokenizer) : -1;
        *out = eos >= 0 ? eos : (int32_t)arch->eos;
        return DT_OK;
    }
    *out = tokenizer ? dt_tokenizer_id(tokenizer, wanted, strlen(wanted)) : -1;
    return *out >= 0
               ? DT_OK
               : DT_FAIL(DT_E_CONFIG, "data.end_of_text: the tokenizer has no token '%s'", wanted);
}

int dt_tokenizer_of(const char *dir, const struct dt_arch *arch, struct dt_tokenizer **out)
{
    char path[DT_PATH];
    *out = NULL;
    DT_TRY(dt_path_join(path, dir, "tokenizer.json"));
    if (!dt_file_exists(path))
        return DT_OK;
    DT_TRY(dt_tokenizer_open(path, out));
    int32_t eos = dt_tokenizer_eos(*out);
    if (eos >= 0 && arch->eos >= 0 && eos != arch->eos)
        dt_warn(
            "%s: eos_token has id %d, config.json's eos_token_id is %lld; texts are closed with %d",
            path, eos, (long long)arch->eos, eos);
    if (dt_tokenizer_vocab_size(*out) <= arch->V)
        return DT_OK;
    int rc = DT_FAIL(DT_E_DATA, "%s has ids up to %lld, but the model's vocab_size is %lld", path,
                     (long long)dt_tokenizer_vocab_size(*out) - 1, (long long)arch->V);
    dt_tokenizer_close(*out);
    *out = NULL;
    return rc;
}

/* As many samples as fit one micro-batch of every worker, from `first`. */
static int64_t take_samples(const struct dt_executor *e, const struct dt_dataset *d, int64_t first,
                            int64_t end, int64_t *samples)
{
    int64_t tokens = 0, n = 0, most = e->plan.microbatch_tokens * e->plan.workers;
    for (; first + n < end && n < e->bound.sequences; n++) {
        tokens += dt_dataset_length(d, first + n);
        if (n > 0 && (tokens > most || tokens > e->bound.tokens))
            break;
        samples[n] = first + n;
    }
    return n;
}

static int evaluate(struct dt_executor *e, const struct dt_dataset *d, int64_t end,
                    struct dt_control *control, struct dt_progress *progress,
                    struct dt_global_batch *batch, int64_t *samples, struct dt_evaluation *out)
{
    for (int64_t first = 0, n; first < end; first += n) {
        n = take_samples(e, d, first, end, samples);
        DT_TRY(dt_global_batch_read(batch, d, samples, n));
        dt_dataset_forget(d);
        DT_TRY(dt_executor_evaluate(e, batch, &out->loss, &out->finite));
        out->tokens += batch->loss_tokens;
        out->sequences += batch->dispatch.sequences;
        if (progress)
            dt_progress_update(progress, (double)(first + n), NULL);
        if (control && control->stop_asked(control->self)) {
            out->complete = first + n == end;
            break;
        }
    }
    return DT_OK;
}

int dt_evaluate(struct dt_executor *e, const struct dt_dataset *d, int64_t limit,
                struct dt_control *control, bool shown, struct dt_evaluation *out)
{
    int rc;
    struct dt_global_batch batch = {0};
    struct dt_progress progress;
    int64_t *samples = NULL, all = dt_dataset_samples(d),
            end = limit > 0 && limit < all ? limit : all;
    *out = (struct dt_evaluation){.finite = true, .complete = true};
    DT_CHECK(done, rc, dt_executor_batch(e, &batch));
    DT_CHECK(done, rc, DT_NEW(&samples, e->bound.sequences));
    dt_progress_begin(&progress, "evaluating", "sequences", (double)end);
    rc = evaluate(e, d, end, control, shown ? &progress : NULL, &batch, samples, out);
    dt_progress_end(&progress);
    if (end == all && e->state->rank == 0) /* counted once */
        out->bytes = dt_dataset_bytes(d);
done:
    dt_global_batch_free(&batch);
    free(samples);
    return rc;
}
