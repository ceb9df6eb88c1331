/* A checkpoint as its reader sees it: trainer.json and three tensor sets that belong together. */
#include "state/checkpoint.h"

#include "base/error.h"
#include "base/json.h"
#include "state/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What is read must be what was saved: a file that somebody put beside it is not. */
static int check_listed(const struct dt_manifest *m, const struct dt_tensor_set *set,
                        const char *folder)
{
    for (size_t i = 0; i < set->file_count; i++) {
        char name[DT_PATH];
        DT_TRY(dt_path_join(name, folder, dt_path_basename(set->files[i].path)));
        if (!dt_manifest_find(m, name))
            return DT_FAIL(DT_E_CHECKPOINT,
                           "%s is not a file of this checkpoint: its manifest does "
                           "not list it",
                           set->files[i].path);
    }
    return DT_OK;
}

static int open_moment(struct dt_checkpoint *c, const struct dt_manifest *m, const char *name,
                       struct dt_tensor_set *out)
{
    char path[DT_PATH], shown[2][96], file[64];
    snprintf(file, sizeof file, "optimizer/%s.safetensors", name);
    if (!dt_manifest_find(m, file))
        snprintf(file, sizeof file, "optimizer/%s.safetensors.index.json", name);
    DT_TRY(dt_path_join(path, c->path, file));
    DT_TRY(dt_tensors_open(path, out));
    DT_TRY(check_listed(m, out, "optimizer"));
    for (size_t i = 0; i < out->count; i++) {
        const struct dt_stored *t = &out->tensors[i], *w;
        DT_TRY(dt_tensors_need(&c->model, t->name, &w));
        if (t->dtype != DT_F32 || t->rank != w->rank ||
            memcmp(t->shape, w->shape, sizeof t->shape) != 0)
            return DT_FAIL(DT_E_CHECKPOINT,
                           "%s: '%.120s' is %s %s, the weight is %s: the moments "
                           "belong to another model",
                           path, t->name, dt_dtype_name(t->dtype),
                           dt_shape_shown(t->rank, t->shape, shown[0], sizeof shown[0]),
                           dt_shape_shown(w->rank, w->shape, shown[1], sizeof shown[1]));
    }
    return DT_OK;
}

static int open_trainer(struct dt_checkpoint *c)
{
    char path[DT_PATH];
    int64_t step;
    DT_TRY(dt_path_join(path, c->path, "trainer.json"));
    DT_TRY(dt_json_load(path, (size_t)64 << 20, DT_E_CHECKPOINT, &c->trainer));
    struct dt_json_in in = {c->trainer, path, DT_E_CHECKPOINT};
    DT_TRY(dt_json_need_int(in, "step", 0, INT64_MAX, &step));
    if (step != c->step)
        return DT_FAIL(DT_E_CHECKPOINT, "%s is of step %" PRId64 ", the manifest of step %" PRId64,
                       path, step, c->step);
    return DT_OK;
}

static int open_all(struct dt_checkpoint *c, const struct dt_manifest *m)
{
    DT_TRY(dt_manifest_check_sizes(c->path, m));
    DT_TRY(open_trainer(c));
    DT_TRY(dt_tensors_open(c->path, &c->model));
    DT_TRY(check_listed(m, &c->model, ""));
    DT_TRY(open_moment(c, m, "exp_avg", &c->exp_avg));
    DT_TRY(open_moment(c, m, "exp_avg_sq", &c->exp_avg_sq));
    if (c->exp_avg.count != c->exp_avg_sq.count)
        return DT_FAIL(DT_E_CHECKPOINT,
                       "%s has first moments of %zu tensors and second ones of %zu", c->path,
                       c->exp_avg.count, c->exp_avg_sq.count);
    return DT_OK;
}

int dt_checkpoint_open(const char *path, struct dt_checkpoint *out)
{
    struct dt_manifest m;
    *out = (struct dt_checkpoint){0};
    DT_TRY(dt_manifest_load(path, &m));
    out->step = m.step;
    int rc = dt_path_join(out->path, "", path);
    if (rc == DT_OK)
        rc = open_all(out, &m);
    dt_manifest_free(&m);
    if (rc < 0) {
        dt_checkpoint_close(out);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    return DT_OK;
}

void dt_checkpoint_close(struct dt_checkpoint *c)
{
    json_decref(c->trainer);
    dt_tensors_close(&c->model);
    dt_tensors_close(&c->exp_avg);
    dt_tensors_close(&c->exp_avg_sq);
    *c = (struct dt_checkpoint){0};
}
