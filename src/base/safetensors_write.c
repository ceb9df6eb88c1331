/* The writing half of base/safetensors.h: first every byte's place, then the bytes. */
#include "base/safetensors.h"

#include "base/arena.h"
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int spec_bytes(const struct dt_tensor_spec *spec, size_t *out)
{
    char shown[96];
    int64_t n = (int64_t)dt_dtype_size(spec->dtype);
    bool fits = spec->rank >= 0 && spec->rank <= DT_TENSOR_RANK;
    for (int i = 0; fits && i < spec->rank; i++)
        fits = spec->shape[i] >= 0 && !__builtin_mul_overflow(n, spec->shape[i], &n);
    if (!fits || n > INT64_MAX / 4) /* leaves room for sums of a few */
        return DT_FAIL(DT_E_INTERNAL, "tensor '%.120s' of %s cannot be written", spec->name,
                       dt_shape_shown(spec->rank > DT_TENSOR_RANK ? 0 : spec->rank, spec->shape,
                                      shown, sizeof shown));
    *out = (size_t)n;
    return DT_OK;
}

/* Places in order and cuts; offsets count from the start of the data until headers are known. */
static int place(struct dt_tensor_plan *plan, const struct dt_tensor_spec *specs,
                 size_t shard_limit)
{
    size_t at = 0;
    struct dt_planned_file *file = &plan->files[0];
    plan->file_count = 1;
    for (size_t i = 0; i < plan->count; i++) {
        DT_TRY(spec_bytes(&specs[i], &plan->bytes[i]));
        if (shard_limit && file->count && at + plan->bytes[i] > shard_limit) {
            file->size = at;
            file = &plan->files[plan->file_count++];
            file->first = i;
            at = 0;
        }
        plan->file_of[i] = plan->file_count - 1;
        plan->offset[i] = at;
        if (__builtin_add_overflow(at, plan->bytes[i], &at) || at > INT64_MAX / 2)
            return DT_FAIL(DT_E_INTERNAL, "%zu tensors do not fit one file", plan->count);
        file->count++;
    }
    file->size = at;
    return DT_OK;
}

static int header_json(const struct dt_tensor_plan *plan, const struct dt_planned_file *file,
                       const struct dt_tensor_spec *specs, json_t *header)
{
    int bad = json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (size_t i = file->first; i < file->first + file->count; i++) {
        const struct dt_tensor_spec *t = &specs[i];
        if (json_object_get(header, t->name))
            return DT_FAIL(DT_E_INTERNAL, "tensor '%.120s' would be written twice", t->name);
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++)
            bad |= json_array_append_new(shape, json_integer(t->shape[d]));
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dt_dtype_name(t->dtype), "shape",
                                  shape, "data_offsets", (json_int_t)plan->offset[i],
                                  (json_int_t)(plan->offset[i] + plan->bytes[i]));
        bad |= json_object_set_new(header, t->name, entry);
        if (bad)
            return DT_FAIL(DT_E_INTERNAL,
                           "tensor name '%.120s' cannot be written (no UTF-8, or out "
                           "of memory)",
                           t->name);
    }
    return DT_OK;
}

static int make_header(const struct dt_tensor_plan *plan, struct dt_planned_file *file,
                       const struct dt_tensor_spec *specs)
{
    json_t *json = json_object();
    char *text = NULL;
    int rc = header_json(plan, file, specs, json);
    if (rc == DT_OK)
        text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    DT_TRY(rc);
    size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    file->header_size = 8 + padded;
    file->header = malloc(file->header_size);
    if (text && file->header && padded <= DT_SAFETENSORS_HEADER_MAX) {
        for (int i = 0; i < 8; i++)
            file->header[i] = (unsigned char)((uint64_t)padded >> 8 * i);
        memcpy(file->header + 8, text, length);
        memset(file->header + 8 + length, ' ', padded - length);
        file->size += file->header_size;
    } else {
        rc = DT_FAIL(DT_E_MEMORY, "cannot build a header for %zu tensors", file->count);
    }
    free(text);
    return rc;
}

static int make_index(struct dt_tensor_plan *plan, const struct dt_tensor_spec *specs)
{
    size_t total = 0;
    json_t *map = json_object();
    int bad = 0;
    for (size_t i = 0; i < plan->count; i++) {
        total += plan->bytes[i];
        bad |= json_object_set_new(map, specs[i].name,
                                   json_string(plan->files[plan->file_of[i]].name));
    }
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    plan->index = bad ? NULL : json_dumps(index, JSON_INDENT(2));
    json_decref(index);
    return plan->index ? DT_OK
                       : DT_FAIL(DT_E_MEMORY, "cannot build an index of %zu tensors", plan->count);
}

static int build(struct dt_tensor_plan *plan, const struct dt_tensor_spec *specs, const char *stem,
                 size_t shard_limit)
{
    DT_TRY(DT_NEW(&plan->files, plan->count + 1));
    DT_TRY(DT_NEW(&plan->file_of, plan->count));
    DT_TRY(DT_NEW(&plan->offset, plan->count));
    DT_TRY(DT_NEW(&plan->bytes, plan->count));
    DT_TRY(place(plan, specs, shard_limit));
    for (size_t k = 0; k < plan->file_count; k++) {
        struct dt_planned_file *file = &plan->files[k];
        if (plan->file_count == 1)
            snprintf(file->name, sizeof file->name, "%.64s.safetensors", stem);
        else
            snprintf(file->name, sizeof file->name, "%.64s-%05zu-of-%05zu.safetensors", stem, k + 1,
                     plan->file_count);
        DT_TRY(make_header(plan, file, specs));
        for (size_t i = file->first; i < file->first + file->count; i++)
            plan->offset[i] += file->header_size;
    }
    return plan->file_count > 1 ? make_index(plan, specs) : DT_OK;
}

int dt_tensors_plan(const struct dt_tensor_spec *specs, size_t count, const char *stem,
                    size_t shard_limit, struct dt_tensor_plan *out)
{
    *out = (struct dt_tensor_plan){.count = count};
    int rc = build(out, specs, stem, shard_limit);
    if (rc < 0) {
        dt_tensor_plan_free(out);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    return DT_OK;
}

void dt_tensor_plan_free(struct dt_tensor_plan *plan)
{
    for (size_t k = 0; k < plan->file_count; k++)
        free(plan->files[k].header);
    free(plan->files);
    free(plan->file_of);
    free(plan->offset);
    free(plan->bytes);
    free(plan->index);
    *plan = (struct dt_tensor_plan){0};
}

static int write_all(int fd, const char *path, const struct dt_tensor_plan *plan,
                     const void *const *data)
{
    DT_TRY(dt_fd_write_at(fd, path, plan->files->header, plan->files->header_size, 0));
    for (size_t i = 0; i < plan->count; i++)
        DT_TRY(dt_fd_write_at(fd, path, data[i], plan->bytes[i], plan->offset[i]));
    return dt_fd_sync(fd, path);
}

int dt_tensors_save(const char *path, const struct dt_tensor_spec *specs, const void *const *data,
                    size_t count)
{
    struct dt_tensor_plan plan;
    char temp[DT_PATH], dir[DT_PATH];
    int fd, rc;
    if (snprintf(temp, sizeof temp, "%s.tmp-%ld", path, (long)getpid()) >= DT_PATH)
        return DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s...", DT_PATH - 1, path);
    DT_TRY(dt_path_dirname(dir, path));
    DT_TRY(dt_tensors_plan(specs, count, "tensors", 0, &plan));
    DT_CHECK(done, rc, dt_fd_create(temp, &fd));
    rc = write_all(fd, temp, &plan, data);
    if (close(fd) != 0 && rc == DT_OK && errno != EINTR)
        rc = dt_file_fail("close", temp);
    if (rc == DT_OK)
        rc = dt_rename(temp, path);
    if (rc == DT_OK)
        rc = dt_sync_dir(dir);
    else
        unlink(temp);
done:
    dt_tensor_plan_free(&plan);
    return rc;
}
