#include "train/model_files.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((int64_t)1 << 20) /* elements converted at once */

const char *const dt_model_companions[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "generation_config.json",
                                           "chat_template.jinja",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           NULL};

int dt_model_config_as(const char *dir, enum dt_dtype dtype, json_t **out)
{
    char path[DT_PATH];
    DT_TRY(dt_path_join(path, dir, "config.json"));
    DT_TRY(dt_json_load(path, (size_t)1 << 24, DT_E_MODEL, out));
    const char *key = json_object_get(*out, "dtype") ? "dtype" : "torch_dtype";
    const char *name = dtype == DT_BF16 ? "bfloat16" : dtype == DT_F16 ? "float16" : "float32";
    json_object_set_new(*out, key, json_string(name));
    return DT_OK;
}

static bool is_float(enum dt_dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

static int write_tensor(int fd, const char *path, const struct dt_stored *t, enum dt_dtype dtype,
                        size_t offset, void *buffer)
{
    size_t from = dt_dtype_size(t->dtype), to = dt_dtype_size(dtype);
    for (int64_t at = 0; at < t->elements; at += CHUNK) {
        int64_t n = t->elements - at < CHUNK ? t->elements - at : CHUNK;
        const void *data = t->data + (size_t)at * from;
        if (t->dtype != dtype) {
            dt_k->copy(buffer, dtype, n, data, t->dtype, n, 1, n);
            data = buffer;
        }
        DT_TRY(dt_fd_write_at(fd, path, data, (size_t)n * to, offset + (size_t)at * to));
    }
    return DT_OK;
}

static int write_weights(const struct dt_tensor_set *set, const struct dt_tensor_plan *plan,
                         const struct dt_tensor_spec *specs, const char *dir)
{
    char path[DT_PATH];
    void *buffer;
    int fd;
    DT_TRY(dt_path_join(path, dir, plan->files[0].name));
    DT_TRY(dt_new_bytes(&buffer, (size_t)CHUNK * 4));
    int rc = dt_fd_create(path, &fd);
    if (rc >= 0) {
        rc = dt_fd_write_at(fd, path, plan->files[0].header, plan->files[0].header_size, 0);
        for (size_t i = 0; i < set->count && rc >= 0; i++)
            rc = write_tensor(fd, path, &set->tensors[i], specs[i].dtype, plan->offset[i], buffer);
        if (rc >= 0)
            rc = dt_fd_sync(fd, path);
        int closed = dt_fd_close(fd, path);
        rc = rc < 0 ? rc : closed;
    }
    free(buffer);
    return rc;
}

static int export_weights(const char *from, const char *dir, enum dt_dtype dtype)
{
    struct dt_tensor_set set;
    struct dt_tensor_plan plan = {0};
    struct dt_tensor_spec *specs = NULL;
    int rc;
    DT_TRY(dt_tensors_open(from, &set));
    DT_CHECK(done, rc, DT_NEW(&specs, set.count));
    for (size_t i = 0; i < set.count; i++) {
        const struct dt_stored *t = &set.tensors[i];
        specs[i] = (struct dt_tensor_spec){
            .name = t->name, .rank = t->rank, .dtype = is_float(t->dtype) ? dtype : t->dtype};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
    }
    DT_CHECK(done, rc, dt_tensors_plan(specs, set.count, "model", 0, &plan));
    rc = write_weights(&set, &plan, specs, dir);
done:
    dt_tensor_plan_free(&plan);
    free(specs);
    dt_tensors_close(&set);
    return rc;
}

static int copy_file(const char *from, const char *to, const char *name)
{
    char path[DT_PATH], *text;
    size_t size;
    DT_TRY(dt_path_join(path, from, name));
    if (!dt_file_exists(path))
        return DT_OK;
    DT_TRY(dt_file_read(path, (size_t)1 << 30, &text, &size));
    int rc = dt_path_join(path, to, name);
    if (rc >= 0)
        rc = dt_file_write(path, text, size);
    free(text);
    return rc;
}

static int export_into(const char *from, const char *dir, enum dt_dtype dtype)
{
    json_t *config;
    char path[DT_PATH];
    DT_TRY(export_weights(from, dir, dtype));
    for (int i = 0; dt_model_companions[i]; i++)
        DT_TRY(copy_file(from, dir, dt_model_companions[i]));
    DT_TRY(dt_model_config_as(from, dtype, &config));
    int rc = dt_path_join(path, dir, "config.json");
    if (rc >= 0)
        rc = dt_json_save(path, config);
    json_decref(config);
    return rc;
}

int dt_model_export(const char *from, const char *to, enum dt_dtype dtype)
{
    char dir[DT_PATH], parent[DT_PATH];
    if (dt_file_exists(to))
        return DT_FAIL(DT_E_USAGE, "%s exists already; give a directory that does not", to);
    DT_TRY(dt_path_dirname(parent, to));
    DT_TRY(dt_mkdirs(parent));
    if (snprintf(dir, sizeof dir, "%s.tmp-%ld", to, (long)getpid()) >= (int)sizeof dir)
        return DT_FAIL(DT_E_USAGE, "the path %.60s... is too long", to);
    DT_TRY(dt_mkdir(dir));
    int rc = export_into(from, dir, dtype);
    if (rc >= 0)
        rc = dt_rename(dir, to);
    if (rc < 0) {
        struct dt_error_state keep;
        dt_error_save(rc, &keep);
        dt_remove_tree(dir);
        return dt_error_restore(&keep);
    }
    return dt_sync_dir(parent);
}
