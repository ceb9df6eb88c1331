/* The commit record of a checkpoint. A reader trusts nothing in it before the checksum in its last
 * line holds for all bytes before: a cut or flipped manifest is no manifest. */
#include "state/manifest.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "ductile-checkpoint"
#define VERSION 1
#define SIZE_MAX_MANIFEST ((size_t)1 << 30)
#define TAIL ",\n  \"checksum\": \"" /* 16 hexadecimal digits and "\"\n}\n" follow */
#define TAIL_BYTES (sizeof TAIL - 1 + 16 + 4)

int dt_manifest_add_file(struct dt_manifest *m, const char *name, size_t size)
{
    if (dt_manifest_find(m, name))
        return DT_FAIL(DT_E_CHECKPOINT, "file '%s' stands twice in a checkpoint", name);
    struct dt_manifest_file *more = realloc(m->files, (m->count + 1) * sizeof *more);
    char *copy = strdup(name);
    if (more)
        m->files = more;
    if (!more || !copy) {
        free(copy);
        return DT_FAIL(DT_E_MEMORY, "cannot hold %zu files of a checkpoint", m->count + 1);
    }
    m->files[m->count++] = (struct dt_manifest_file){.name = copy, .size = size};
    return DT_OK;
}

int dt_manifest_add_range(struct dt_manifest_file *f, size_t offset, size_t length, uint64_t hash)
{
    if (f->count == f->room) {
        size_t room = f->room ? 2 * f->room : 16;
        struct dt_manifest_range *more = realloc(f->ranges, room * sizeof *more);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold %zu ranges of %s", room, f->name);
        f->ranges = more;
        f->room = room;
    }
    f->ranges[f->count++] = (struct dt_manifest_range){offset, length, hash};
    return DT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct dt_manifest_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

int dt_manifest_check_tiles(struct dt_manifest_file *f)
{
    size_t at = 0;
    if (f->count)
        qsort(f->ranges, f->count, sizeof *f->ranges, by_offset);
    for (size_t i = 0; i < f->count; i++) {
        if (f->ranges[i].offset != at)
            return DT_FAIL(DT_E_CHECKPOINT, "%s: bytes from %zu to %zu were written %s", f->name,
                           at < f->ranges[i].offset ? at : f->ranges[i].offset,
                           at < f->ranges[i].offset ? f->ranges[i].offset : at,
                           at < f->ranges[i].offset ? "by nobody" : "twice");
        if (f->ranges[i].length > f->size - at)
            return DT_FAIL(DT_E_CHECKPOINT,
                           "%s: a range of %zu bytes at %zu leads beyond its %zu bytes", f->name,
                           f->ranges[i].length, at, f->size);
        at += f->ranges[i].length;
    }
    if (at != f->size)
        return DT_FAIL(DT_E_CHECKPOINT, "%s: bytes from %zu to %zu were written by nobody", f->name,
                       at, f->size);
    return DT_OK;
}

const struct dt_manifest_file *dt_manifest_find(const struct dt_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    return NULL;
}

void dt_manifest_free(struct dt_manifest *m)
{
    for (size_t i = 0; i < m->count; i++) {
        free(m->files[i].name);
        free(m->files[i].ranges);
    }
    free(m->files);
    *m = (struct dt_manifest){0};
}

/* ---- Writing ---- */

static json_t *file_json(const struct dt_manifest_file *f)
{
    json_t *ranges = json_array();
    for (size_t i = 0; i < f->count; i++) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, f->ranges[i].hash);
        if (json_array_append_new(ranges, json_pack("[I, I, s]", (json_int_t)f->ranges[i].offset,
                                                    (json_int_t)f->ranges[i].length, hash)) != 0) {
            json_decref(ranges);
            return NULL;
        }
    }
    return json_pack("{s:I, s:o}", "size", (json_int_t)f->size, "ranges", ranges);
}

static json_t *manifest_json(const struct dt_manifest *m)
{
    json_t *files = json_object();
    int bad = 0;
    for (size_t i = 0; i < m->count; i++)
        bad |= json_object_set_new(files, m->files[i].name, file_json(&m->files[i]));
    json_t *all = json_pack("{s:s, s:i, s:s, s:I, s:s, s:s, s:s, s:o}", "format", FORMAT, "version",
                            VERSION, "save_id", m->save_id, "step", (json_int_t)m->step, "created",
                            m->created, "ductile", DT_VERSION, "hash", "xxh3-64", "files", files);
    if (bad) {
        json_decref(all);
        return NULL;
    }
    return all;
}

int dt_manifest_text(const struct dt_manifest *m, char **text, size_t *size)
{
    json_t *json = manifest_json(m);
    char *body = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    size_t n = body ? strlen(body) - 2 : 0; /* without "\n}" */
    char *all = body ? realloc(body, n + TAIL_BYTES + 1) : NULL;
    if (!all) {
        free(body);
        return DT_FAIL(DT_E_MEMORY, "cannot write the manifest of %zu files", m->count);
    }
    snprintf(all + n, TAIL_BYTES + 1, TAIL "%016" PRIx64 "\"\n}\n", dt_hash(all, n));
    *text = all;
    *size = n + TAIL_BYTES;
    return DT_OK;
}

/* ---- Reading ---- */

static int check_self(const char *path, const char *text, size_t size)
{
    char want[TAIL_BYTES + 1];
    size_t n = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
    snprintf(want, sizeof want, TAIL "%016" PRIx64 "\"\n}\n", dt_hash(text, n));
    if (n == 0 || memcmp(text + n, want, TAIL_BYTES) != 0)
        return DT_FAIL(DT_E_CHECKPOINT,
                       "%s (%zu bytes) does not match its own checksum: it was cut "
                       "short or changed",
                       path, size);
    return DT_OK;
}

/* Names lead to files below the checkpoint and nowhere else. */
static bool name_is_inside(const char *name)
{
    for (const char *p = name;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (*p == '\0')
            return true;
    }
}

static bool parse_range(const json_t *r, struct dt_manifest_range *out)
{
    const json_t *o = json_array_get(r, 0), *l = json_array_get(r, 1);
    const char *hash = json_string_value(json_array_get(r, 2));
    if (json_array_size(r) != 3 || !json_is_integer(o) || !json_is_integer(l) || !hash ||
        json_integer_value(o) < 0 || json_integer_value(l) < 0 ||
        strspn(hash, "0123456789abcdef") != 16 || hash[16])
        return false;
    *out = (struct dt_manifest_range){(size_t)json_integer_value(o), (size_t)json_integer_value(l),
                                      strtoull(hash, NULL, 16)};
    return true;
}

static int parse_file(const char *path, const char *name, const json_t *value,
                      struct dt_manifest *m)
{
    char where[DT_PATH + 160];
    int64_t size;
    const json_t *ranges;
    snprintf(where, sizeof where, "%s: '%.120s'", path, name);
    if (!name_is_inside(name) || !json_is_object(value))
        return DT_FAIL(DT_E_CHECKPOINT, "%s is no entry of a file in the checkpoint", where);
    struct dt_json_in in = {value, where, DT_E_CHECKPOINT};
    DT_TRY(dt_json_need_int(in, "size", 0, INT64_MAX, &size));
    DT_TRY(dt_json_need_array(in, "ranges", &ranges));
    DT_TRY(dt_manifest_add_file(m, name, (size_t)size));
    struct dt_manifest_file *f = &m->files[m->count - 1];
    for (size_t i = 0; i < json_array_size(ranges); i++) {
        struct dt_manifest_range r;
        if (!parse_range(json_array_get(ranges, i), &r))
            return DT_FAIL(DT_E_CHECKPOINT, "%s: range %zu is not [offset, length, \"hash\"]",
                           where, i);
        DT_TRY(dt_manifest_add_range(f, r.offset, r.length, r.hash));
    }
    return dt_manifest_check_tiles(f);
}

static int parse(const char *path, const json_t *json, struct dt_manifest *m)
{
    struct dt_json_in in = {json, path, DT_E_CHECKPOINT};
    const char *format = "", *id, *created;
    const json_t *files;
    int64_t version;
    DT_TRY(dt_json_need_string(in, "format", &format));
    DT_TRY(dt_json_need_int(in, "version", 1, INT64_MAX, &version));
    if (strcmp(format, FORMAT) != 0 || version != VERSION)
        return DT_FAIL(DT_E_CHECKPOINT,
                       "%s has format '%.40s' version %" PRId64
                       ", this program reads '%s' version %d",
                       path, format, version, FORMAT, VERSION);
    DT_TRY(dt_json_need_string(in, "save_id", &id));
    DT_TRY(dt_json_need_string(in, "created", &created));
    DT_TRY(dt_json_need_int(in, "step", 0, INT64_MAX, &m->step));
    DT_TRY(dt_json_need_object(in, "files", &files));
    snprintf(m->save_id, sizeof m->save_id, "%s", id);
    snprintf(m->created, sizeof m->created, "%s", created);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)files, name, value)
    {
        DT_TRY(parse_file(path, name, value, m));
    }
    return DT_OK;
}

int dt_manifest_load(const char *dir, struct dt_manifest *out)
{
    char path[DT_PATH];
    char *text = NULL;
    size_t size;
    json_t *json = NULL;
    *out = (struct dt_manifest){0};
    DT_TRY(dt_path_join(path, dir, "manifest.json"));
    int rc = dt_file_read(path, SIZE_MAX_MANIFEST, &text, &size);
    if (rc == DT_E_NOT_FOUND)
        rc = DT_FAIL(DT_E_CHECKPOINT,
                     "%s has no manifest.json: not a checkpoint, or a save that was "
                     "never completed",
                     dir);
    DT_CHECK(done, rc, rc);
    DT_CHECK(done, rc, check_self(path, text, size));
    DT_CHECK(done, rc, dt_json_parse(text, size, path, DT_E_CHECKPOINT, &json));
    DT_CHECK(done, rc, parse(path, json, out));
done:
    free(text);
    json_decref(json);
    if (rc < 0)
        dt_manifest_free(out);
    return rc;
}

int dt_manifest_check_sizes(const char *dir, const struct dt_manifest *m)
{
    char path[DT_PATH];
    for (size_t i = 0; i < m->count; i++) {
        size_t size;
        DT_TRY(dt_path_join(path, dir, m->files[i].name));
        int rc = dt_file_size(path, &size);
        if (rc == DT_E_NOT_FOUND)
            return DT_FAIL(DT_E_CHECKPOINT, "%s is missing", path);
        DT_TRY(rc);
        if (size != m->files[i].size)
            return DT_FAIL(DT_E_CHECKPOINT, "%s has %zu bytes, the manifest says %zu", path, size,
                           m->files[i].size);
    }
    return DT_OK;
}
