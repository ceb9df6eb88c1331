#include "base/safetensors.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *dt_shape_shown(int rank, const int64_t *shape, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < size)
        snprintf(buffer + used, size - used, "]");
    return buffer;
}

/* ---- One header ---- */

/* People meet these instead of weights often enough to be told by name. */
static int explain_foreign(const char *path, const unsigned char *data, size_t size)
{
    static const struct {
        const char *start, *words;
    } known[] = {
        {"version https://git-lfs",
         "is a Git LFS pointer, not the file itself: run `git lfs pull`"},
        {"PK\003\004", "is a zip archive (a PyTorch .bin or .pt?), not safetensors: save the model "
                       "again with safe serialization"},
        {"GGUF", "is a GGUF file, not safetensors: `ductile import` reads those"},
        {"<", "is a web page or XML, not safetensors: download it again"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].start);
        if (size >= n && memcmp(data, known[i].start, n) == 0)
            return DT_FAIL(DT_E_MODEL, "%s %s", path, known[i].words);
    }
    return DT_OK;
}

static int parse_header(struct dt_tensor_file *file)
{
    const unsigned char *data = file->map.data;
    size_t size = file->map.size;
    if (size < 8)
        return DT_FAIL(
            DT_E_MODEL,
            "%s has %zu bytes; a safetensors file has at least 8: it is empty or was cut "
            "short, copy it again",
            file->path, size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | data[i];
    if (n > DT_SAFETENSORS_HEADER_MAX || n > size - 8 || n < 2 || data[8] != '{')
        DT_TRY(explain_foreign(file->path, data, size));
    if (n > DT_SAFETENSORS_HEADER_MAX)
        return DT_FAIL(DT_E_MODEL,
                       "%s says that its header has %" PRIu64
                       " bytes, at most %zu are allowed: not "
                       "a safetensors file",
                       file->path, n, DT_SAFETENSORS_HEADER_MAX);
    if (n > size - 8)
        return DT_FAIL(DT_E_MODEL,
                       "%s says that its header has %" PRIu64
                       " bytes, but only %zu follow: the file "
                       "was cut short, copy it again",
                       file->path, n, size - 8);
    if (n < 2 || data[8] != '{')
        return DT_FAIL(DT_E_MODEL, "%s: the header does not begin with '{': not a safetensors file",
                       file->path);
    char where[DT_PATH + 32];
    snprintf(where, sizeof where, "%s: header", file->path);
    DT_TRY(dt_json_parse((const char *)data + 8, (size_t)n, where, DT_E_MODEL, &file->header));
    if (!json_is_object(file->header))
        return DT_FAIL(DT_E_MODEL, "%s: the header is no JSON object", file->path);
    file->data_start = 8 + (size_t)n;
    return DT_OK;
}

static int check_metadata(const struct dt_tensor_file *file, const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return DT_FAIL(DT_E_MODEL, "%s: __metadata__ is no JSON object", file->path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return DT_FAIL(DT_E_MODEL, "%s: __metadata__ '%.80s' is no string", file->path, key);
    }
    return DT_OK;
}

/* elements and bytes of a shape; false when they do not fit 63 bits. */
static bool shape_size(enum dt_dtype dtype, int rank, const int64_t *shape, int64_t *elements,
                       size_t *bytes)
{
    int64_t n = 1, total;
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return false;
    if (__builtin_mul_overflow(n, (int64_t)dt_dtype_size(dtype), &total))
        return false;
    *elements = n;
    *bytes = (size_t)total;
    return true;
}

static int parse_shape(const char *where, const json_t *list, struct dt_stored *t)
{
    char shown[96];
    if (json_array_size(list) > DT_TENSOR_RANK)
        return DT_FAIL(DT_E_UNSUPPORTED, "%s has %zu dimensions, at most %d are supported", where,
                       json_array_size(list), DT_TENSOR_RANK);
    t->rank = (int)json_array_size(list);
    for (int i = 0; i < t->rank; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return DT_FAIL(DT_E_MODEL, "%s: shape[%d] is %s, expected an integer of at least 0",
                           where, i, dt_json_shown(v, shown, sizeof shown));
        t->shape[i] = json_integer_value(v);
    }
    if (!shape_size(t->dtype, t->rank, t->shape, &t->elements, &t->bytes))
        return DT_FAIL(DT_E_MODEL, "%s: shape %s is too large for any file", where,
                       dt_shape_shown(t->rank, t->shape, shown, sizeof shown));
    return DT_OK;
}

static int parse_tensor(const struct dt_tensor_file *file, const char *name, const json_t *value,
                        struct dt_stored *t)
{
    char where[DT_PATH + 160], shown[96];
    const char *dtype;
    const json_t *shape, *offsets;
    snprintf(where, sizeof where, "%s: tensor '%.120s'", file->path, name);
    if (!json_is_object(value))
        return DT_FAIL(DT_E_MODEL, "%s is %s, expected an object with dtype, shape, data_offsets",
                       where, dt_json_shown(value, shown, sizeof shown));
    struct dt_json_in in = {value, where, DT_E_MODEL};
    DT_TRY(dt_json_need_string(in, "dtype", &dtype));
    DT_TRY(dt_json_need_array(in, "shape", &shape));
    DT_TRY(dt_json_need_array(in, "data_offsets", &offsets));
    *t = (struct dt_stored){.name = name};
    if (dt_dtype_parse(dtype, &t->dtype) < 0)
        return DT_FAIL(DT_E_UNSUPPORTED, "%s has dtype '%.40s', which is not supported", where,
                       dtype);
    DT_TRY(parse_shape(where, shape, t));
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    int64_t room = (int64_t)(file->map.size - file->data_start);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e) ||
        json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b))
        return DT_FAIL(DT_E_MODEL, "%s: data_offsets are %s, expected [begin, end]", where,
                       dt_json_shown(offsets, shown, sizeof shown));
    int64_t begin = json_integer_value(b), end = json_integer_value(e);
    if (end > room)
        return DT_FAIL(DT_E_MODEL,
                       "%s ends at byte %" PRId64 " of the data, but the file holds only %" PRId64
                       ": it was cut short, copy it again",
                       where, end, room);
    if (end - begin != (int64_t)t->bytes)
        return DT_FAIL(DT_E_MODEL, "%s has %" PRId64 " bytes of data; %s of %s are %zu", where,
                       end - begin, dt_shape_shown(t->rank, t->shape, shown, sizeof shown),
                       dt_dtype_name(t->dtype), t->bytes);
    t->offset = file->data_start + (size_t)begin;
    t->data = file->map.data + t->offset;
    return DT_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct dt_stored *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) /* an empty tensor shares its place with the next one */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The format allows neither holes nor overlaps nor anything after the last tensor. */
static int check_coverage(const struct dt_tensor_file *file, const struct dt_stored *t,
                          size_t count)
{
    size_t at = file->data_start;
    for (size_t i = 0; i < count; i++) {
        if (t[i].offset != at)
            return DT_FAIL(DT_E_MODEL, "%s: tensor '%.120s' begins at byte %zu, expected %zu (%s)",
                           file->path, t[i].name, t[i].offset, at,
                           t[i].offset > at ? "a hole before it" : "it overlaps the one before");
        at += t[i].bytes;
    }
    if (at != file->map.size)
        return DT_FAIL(DT_E_MODEL, "%s has %zu bytes, its header describes %zu", file->path,
                       file->map.size, at);
    return DT_OK;
}

static int parse_file(struct dt_tensor_set *set, size_t index)
{
    struct dt_tensor_file *file = &set->files[index];
    DT_TRY(parse_header(file));
    size_t want = set->count + json_object_size(file->header);
    struct dt_stored *more = realloc(set->tensors, (want + 1) * sizeof *more);
    if (!more)
        return DT_FAIL(DT_E_MEMORY, "%s: cannot hold %zu tensors", file->path, want);
    set->tensors = more;
    size_t first = set->count;
    const char *name;
    json_t *value;
    json_object_foreach(file->header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DT_TRY(check_metadata(file, value));
            continue;
        }
        struct dt_stored *t = &set->tensors[set->count];
        DT_TRY(parse_tensor(file, name, value, t));
        t->file = index;
        set->bytes += t->bytes;
        set->count++;
    }
    qsort(set->tensors + first, set->count - first, sizeof *set->tensors, by_place);
    return check_coverage(file, set->tensors + first, set->count - first);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct dt_stored *const *)a)->name, (*(struct dt_stored *const *)b)->name);
}

static int sort_names(struct dt_tensor_set *set)
{
    DT_TRY(DT_NEW(&set->by_name, set->count));
    for (size_t i = 0; i < set->count; i++)
        set->by_name[i] = &set->tensors[i];
    qsort(set->by_name, set->count, sizeof *set->by_name, by_name);
    for (size_t i = 1; i < set->count; i++)
        if (by_name(&set->by_name[i - 1], &set->by_name[i]) == 0)
            return DT_FAIL(DT_E_MODEL, "%s: tensor '%.120s' stands in %s and in %s", set->path,
                           set->by_name[i]->name,
                           dt_path_basename(set->files[set->by_name[i - 1]->file].path),
                           dt_path_basename(set->files[set->by_name[i]->file].path));
    return DT_OK;
}

/* ---- Sets ---- */

static int open_files(struct dt_tensor_set *set, const char *dir, const char *const *names,
                      size_t count)
{
    DT_TRY(DT_NEW(&set->files, count));
    set->file_count = count;
    for (size_t i = 0; i < count; i++) {
        DT_TRY(dt_path_join(set->files[i].path, dir, names[i]));
        DT_TRY(dt_file_map(set->files[i].path, &set->files[i].map));
        DT_TRY(parse_file(set, i));
    }
    return sort_names(set);
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of a weight_map, sorted. They name files in the same directory; anything
 * with a slash would lead out of it. */
static int shard_names(const char *path, const json_t *map, const char **names, size_t *count)
{
    const char *tensor;
    json_t *value;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !dt_path_ends_with(name, ".safetensors") || strchr(name, '/'))
            return DT_FAIL(DT_E_MODEL,
                           "%s: '%.120s' is not mapped to the name of a .safetensors file in the "
                           "same directory",
                           path, tensor);
        names[n++] = name;
    }
    if (n == 0)
        return DT_FAIL(DT_E_MODEL, "%s: weight_map is empty", path);
    qsort(names, n, sizeof *names, compare_strings);
    size_t distinct = 1;
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[distinct - 1], names[i]) != 0)
            names[distinct++] = names[i];
    *count = distinct;
    return DT_OK;
}

static int check_index(const struct dt_tensor_set *set, const char *path, const json_t *map)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const struct dt_stored *t = dt_tensors_find(set, name);
        const char *found = t ? dt_path_basename(set->files[t->file].path) : "no shard";
        if (strcmp(found, json_string_value(value)) != 0)
            return DT_FAIL(DT_E_MODEL,
                           "%s: tensor '%.120s' should stand in %s, found in %s: index "
                           "and shards are of different models",
                           path, name, json_string_value(value), found);
    }
    for (size_t i = 0; i < set->count; i++)
        if (!json_object_get(map, set->tensors[i].name))
            return DT_FAIL(DT_E_MODEL,
                           "%s does not name tensor '%.120s', which stands in %s: index "
                           "and shards are of different models",
                           path, set->tensors[i].name,
                           dt_path_basename(set->files[set->tensors[i].file].path));
    return DT_OK;
}

static int open_index(struct dt_tensor_set *set, const char *path)
{
    json_t *index = NULL;
    const json_t *map;
    const char **names = NULL;
    char dir[DT_PATH];
    size_t count = 0;
    int rc;
    DT_CHECK(done, rc, dt_path_dirname(dir, path));
    DT_CHECK(done, rc, dt_json_load(path, DT_SAFETENSORS_HEADER_MAX, DT_E_MODEL, &index));
    DT_CHECK(done, rc,
             dt_json_need_object((struct dt_json_in){index, path, DT_E_MODEL}, "weight_map", &map));
    DT_CHECK(done, rc, DT_NEW(&names, json_object_size(map)));
    DT_CHECK(done, rc, shard_names(path, map, names, &count));
    rc = open_files(set, dir, names, count);
    if (rc == DT_E_NOT_FOUND)
        rc = dt_error_context(DT_E_MODEL, "%s names %zu shards", path, count);
    DT_CHECK(done, rc, rc);
    DT_CHECK(done, rc, check_index(set, path, map));
done:
    free(names);
    json_decref(index);
    return rc;
}

/* Nothing that we can read: say what there is. */
static int nothing_found(const char *path)
{
    static const char *const foreign[] = {".bin", ".pt",      ".pth", ".gguf",
                                          ".h5",  ".msgpack", ".npz", ".safetensors"};
    struct dt_names names;
    char found[DT_PATH] = "";
    DT_TRY(dt_dir_list(path, &names));
    for (size_t i = 0; i < names.count && !found[0]; i++)
        for (size_t k = 0; k < sizeof foreign / sizeof *foreign; k++)
            if (dt_path_ends_with(names.names[i], foreign[k]))
                snprintf(found, sizeof found, "%s", names.names[i]);
    dt_names_free(&names);
    return DT_FAIL(DT_E_MODEL,
                   "%s holds neither model.safetensors nor model.safetensors.index.json%s%s%s",
                   path, found[0] ? " (found " : "", found,
                   found[0] ? "; weights must be in safetensors under these names)" : "");
}

static int open_path(struct dt_tensor_set *set, const char *path)
{
    static const char *const inside[] = {"model.safetensors", "model.safetensors.index.json",
                                         "adapter_model.safetensors",
                                         "adapter_model.safetensors.index.json"};
    const char *name = path;
    char full[DT_PATH];
    if (dt_file_is_dir(path)) {
        size_t i = 0, n = sizeof inside / sizeof *inside;
        for (; i < n; i++) {
            DT_TRY(dt_path_join(full, path, inside[i]));
            if (dt_file_exists(full))
                break;
        }
        if (i == n)
            return nothing_found(path);
        name = full;
    }
    if (dt_path_ends_with(name, ".json"))
        return open_index(set, name);
    return open_files(set, "", &name, 1);
}

int dt_tensors_open(const char *path, struct dt_tensor_set *out)
{
    *out = (struct dt_tensor_set){0};
    snprintf(out->path, sizeof out->path, "%s", path);
    int rc = open_path(out, path);
    if (rc < 0) {
        dt_tensors_close(out);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    return DT_OK;
}

int dt_tensors_parse(const void *data, size_t size, const char *name, struct dt_tensor_set *out)
{
    *out = (struct dt_tensor_set){0};
    snprintf(out->path, sizeof out->path, "%s", name);
    int rc = DT_NEW(&out->files, 1);
    if (rc == DT_OK) {
        out->file_count = 1;
        memcpy(out->files->path, out->path, sizeof out->path);
        out->files->map = (struct dt_map){data, size};
        out->files->borrowed = true;
        rc = parse_file(out, 0);
    }
    if (rc == DT_OK)
        rc = sort_names(out);
    if (rc < 0)
        dt_tensors_close(out);
    return rc;
}

void dt_tensors_close(struct dt_tensor_set *set)
{
    for (size_t i = 0; i < set->file_count; i++) {
        if (!set->files[i].borrowed)
            dt_file_unmap(&set->files[i].map);
        json_decref(set->files[i].header);
    }
    free(set->files);
    free(set->tensors);
    free(set->by_name);
    *set = (struct dt_tensor_set){0};
}

/* ---- Looking things up ---- */

static int key_order(const void *key, const void *element)
{
    return strcmp(key, (*(struct dt_stored *const *)element)->name);
}

const struct dt_stored *dt_tensors_find(const struct dt_tensor_set *set, const char *name)
{
    struct dt_stored *const *t =
        set->count ? bsearch(name, set->by_name, set->count, sizeof *set->by_name, key_order)
                   : NULL;
    return t ? *t : NULL;
}

/* How many bytes two names share at their ends: finds a missing or additional prefix, too. */
static size_t likeness(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), head = 0, tail = 0;
    while (head < n && head < m && a[head] == b[head])
        head++;
    while (tail < n - head && tail < m - head && a[n - 1 - tail] == b[m - 1 - tail])
        tail++;
    return head + tail;
}

int dt_tensors_need(const struct dt_tensor_set *set, const char *name, const struct dt_stored **out)
{
    *out = dt_tensors_find(set, name);
    if (*out)
        return DT_OK;
    const char *nearest = NULL;
    size_t best = 0;
    for (size_t i = 0; i < set->count; i++) {
        size_t like = likeness(name, set->tensors[i].name);
        if (like > best) {
            best = like;
            nearest = set->tensors[i].name;
        }
    }
    return DT_FAIL(DT_E_MODEL, "%s has no tensor '%.120s' among its %zu%s%.120s%s", set->path, name,
                   set->count, nearest ? " (nearest: '" : "", nearest ? nearest : "",
                   nearest ? "')" : "");
}

const char *dt_tensors_metadata(const struct dt_tensor_set *set, size_t file, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(set->files[file].header, "__metadata__"), key));
}
