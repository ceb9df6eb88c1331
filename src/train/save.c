/* One save: everything but the workers' data, and the commit. */
#include "train/book.h"

#include "base/clock.h"
#include "base/error.h"
#include "train/model_files.h"

#include <string.h>

/* config.json of the masters: float32, so that loading does not round. */
static int put_config(const struct dt_book *b, struct dt_checkpoint_writer *w)
{
    json_t *config;
    DT_TRY(dt_model_config_as(b->model_dir, DT_F32, &config));
    int rc = dt_checkpoint_put_json(w, "config.json", config);
    json_decref(config);
    return rc;
}

static int put_trainer(const struct dt_book *b, int64_t step, struct dt_checkpoint_writer *w)
{
    char hash[3][20];
    snprintf(hash[0], sizeof hash[0], "%016llx", (unsigned long long)b->arch->hash);
    snprintf(hash[1], sizeof hash[1], "%016llx", (unsigned long long)b->data_hash);
    snprintf(hash[2], sizeof hash[2], "%016llx", (unsigned long long)b->plan_hash);
    json_t *o =
        json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:i, s:s}", "version", 1,
                  "ductile", DT_VERSION, "step", (json_int_t)step, "steps", (json_int_t)b->steps,
                  "samples", (json_int_t)b->samples, "tokens", (json_int_t)b->tokens, "seed",
                  (json_int_t)b->config->seed, "arch", hash[0], "data", hash[1], "plan", hash[2],
                  "kernels", dt_k->name, "workers", (int)b->workers, "reduction",
                  b->optimizer.exact ? "exact" : "float");
    if (!o)
        return DT_FAIL(DT_E_MEMORY, "cannot write trainer.json: out of memory");
    int rc = dt_checkpoint_put_json(w, "trainer.json", o);
    json_decref(o);
    return rc;
}

static int put_companions(const struct dt_book *b, struct dt_checkpoint_writer *w)
{
    for (int i = 0; dt_model_companions[i]; i++) {
        char path[DT_PATH];
        DT_TRY(dt_path_join(path, b->model_dir, dt_model_companions[i]));
        if (dt_file_exists(path))
            DT_TRY(dt_checkpoint_copy(w, path, dt_model_companions[i]));
    }
    return DT_OK;
}

/* The data files, of their size and without data. */
static int add_data(struct dt_book *b, struct dt_checkpoint_writer *w)
{
    struct dt_state_file files[DT_STATE_FILES];
    char name[DT_PATH];
    int rc, file;
    DT_TRY(dt_state_files(b->arch, b->trainable, b->frozen_dtype, files));
    for (int i = 0; i < DT_STATE_FILES; i++) {
        DT_CHECK(done, rc, dt_path_join(name, files[i].folder, files[i].name));
        DT_CHECK(done, rc, dt_checkpoint_add(w, name, files[i].plan.files[0].size, &file));
        b->first_file = i == 0 ? file : b->first_file;
    }
done:
    dt_state_files_free(files);
    return rc;
}

int dt_book_save_begin(struct dt_book *b, int64_t step, struct dt_checkpoint_writer **w)
{
    b->save_began = dt_clock_seconds();
    *w = NULL;
    DT_TRY(dt_checkpoint_begin(b->checkpoints, step, w));
    DT_TRY(put_config(b, *w));
    DT_TRY(put_companions(b, *w));
    DT_TRY(add_data(b, *w));
    return put_trainer(b, step, *w);
}

int dt_book_save_claim(struct dt_book *b, struct dt_checkpoint_writer *w,
                       const struct dt_checkpoint_part *part)
{
    size_t count;
    const struct dt_checkpoint_range *r = dt_checkpoint_part_ranges(part, &count);
    for (size_t i = 0; i < count; i++)
        DT_TRY(
            dt_checkpoint_claim(w, b->first_file + r[i].file, r[i].offset, r[i].length, r[i].hash));
    return DT_OK;
}

bool dt_book_save_end(struct dt_book *b, int64_t step, struct dt_checkpoint_writer *w, int rc)
{
    char path[DT_PATH];
    if (w && rc < 0)
        dt_checkpoint_abort(w);
    else if (w)
        rc = dt_checkpoint_commit(w, path);
    double now = dt_clock_seconds();
    b->mark = now;
    b->save_failed = rc < 0;
    if (rc < 0) {
        dt_log(DT_LOG_ERROR,
               "saving step %lld failed: %s; training goes on, the newest checkpoint is %s",
               (long long)step, dt_error_message(), b->saved >= 0 ? "intact" : "still to come");
        dt_book_event(b, "save_failed", step, dt_error_message());
        return false;
    }
    b->saved = step;
    dt_info("saved %s in %.1f s", path, now - b->save_began);
    dt_book_event(b, "saved", step, path);
    size_t deleted;
    if (dt_checkpoint_retain(b->checkpoints, b->config->checkpoint.keep,
                             b->config->checkpoint.keep_every, false, &deleted) < 0)
        dt_warn("old checkpoints could not be deleted: %s", dt_error_message());
    return true;
}
