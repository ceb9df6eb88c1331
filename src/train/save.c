/* One save: home state and small files into a checkpoint directory, then retention. */
#include "train/run.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "train/model_files.h"

#include <string.h>

/* config.json of the masters: float32, so that loading does not round. */
static int put_config(const struct dt_run *r, struct dt_checkpoint_writer *w)
{
    json_t *config;
    DT_TRY(dt_model_config_as(r->model_dir, DT_F32, &config));
    int rc = dt_checkpoint_put_json(w, "config.json", config);
    json_decref(config);
    return rc;
}

static int put_trainer(const struct dt_run *r, int64_t step, struct dt_checkpoint_writer *w)
{
    char hash[3][20];
    snprintf(hash[0], sizeof hash[0], "%016llx", (unsigned long long)r->arch->hash);
    snprintf(hash[1], sizeof hash[1], "%016llx", (unsigned long long)dt_dataset_hash(r->train));
    snprintf(hash[2], sizeof hash[2], "%016llx", (unsigned long long)r->executor.plan_hash);
    json_t *o = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s}", "version", 1,
                          "ductile", DT_VERSION, "step", (json_int_t)step, "steps",
                          (json_int_t)r->steps, "samples", (json_int_t)r->samples, "tokens",
                          (json_int_t)r->tokens, "seed", (json_int_t)r->config->seed, "arch",
                          hash[0], "data", hash[1], "plan", hash[2], "kernels", dt_k->name);
    if (!o)
        return DT_FAIL(DT_E_MEMORY, "cannot write trainer.json: out of memory");
    int rc = dt_checkpoint_put_json(w, "trainer.json", o);
    json_decref(o);
    return rc;
}

static int put_companions(const struct dt_run *r, struct dt_checkpoint_writer *w)
{
    for (int i = 0; dt_model_companions[i]; i++) {
        char path[DT_PATH];
        DT_TRY(dt_path_join(path, r->model_dir, dt_model_companions[i]));
        if (dt_file_exists(path))
            DT_TRY(dt_checkpoint_copy(w, path, dt_model_companions[i]));
    }
    return DT_OK;
}

static int save(struct dt_run *r, int64_t step, char path[DT_PATH])
{
    struct dt_checkpoint_writer *w;
    int rc;
    DT_TRY(dt_checkpoint_begin(r->checkpoints, step, &w));
    DT_CHECK(fail, rc, put_config(r, w));
    DT_CHECK(fail, rc, put_companions(r, w));
    DT_CHECK(fail, rc, dt_state_save(&r->state, w));
    DT_CHECK(fail, rc, put_trainer(r, step, w));
    return dt_checkpoint_commit(w, path);
fail:
    dt_checkpoint_abort(w);
    return rc;
}

void dt_run_save(struct dt_run *r, int64_t step)
{
    char path[DT_PATH];
    double started = dt_clock_seconds();
    int rc = save(r, step, path);
    r->save_failed = rc < 0;
    if (rc < 0) {
        dt_log(DT_LOG_ERROR,
               "saving step %lld failed: %s; training goes on, the newest checkpoint is %s",
               (long long)step, dt_error_message(), r->saved >= 0 ? "intact" : "still to come");
        dt_run_metric_event(r, "save_failed", step, dt_error_message());
        return;
    }
    r->saved = step;
    dt_info("saved %s in %.1f s", path, dt_clock_seconds() - started);
    dt_run_metric_event(r, "saved", step, path);
    size_t deleted;
    if (dt_checkpoint_retain(r->checkpoints, r->config->checkpoint.keep,
                             r->config->checkpoint.keep_every, false, &deleted) < 0)
        dt_warn("old checkpoints could not be deleted: %s", dt_error_message());
}
