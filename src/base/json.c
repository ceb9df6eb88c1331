#include "base/json.h"

#include "base/error.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dt_json_parse(const char *text, size_t size, const char *where, int code, json_t **out)
{
    json_error_t e;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (*out)
        return DT_OK;
    if (size == 0)
        return DT_FAIL(code, "%s is empty, JSON was expected", where);
    if (e.line < 0) /* the library could not say: out of memory, for one */
        return DT_FAIL(code, "%s: %s", where, e.text);
    return DT_FAIL(code, "%s:%d:%d: %s", where, e.line, e.column, e.text);
}

int dt_json_load(const char *path, size_t limit, int code, json_t **out)
{
    char *text;
    size_t size;
    DT_TRY(dt_file_read(path, limit, &text, &size));
    int rc = dt_json_parse(text, size, path, code, out);
    free(text);
    return rc;
}

const char *dt_json_shown(const json_t *value, char *buffer, size_t size)
{
    size_t used = value ? json_dumpb(value, buffer, size - 1, JSON_ENCODE_ANY | JSON_COMPACT) : 0;
    if (!value) {
        snprintf(buffer, size, "absent");
    } else if (used >= size) { /* nothing was cut at a known place: say the kind instead */
        snprintf(buffer, size, "%s",
                 json_is_object(value)  ? "a long object"
                 : json_is_array(value) ? "a long array"
                                        : "a long string");
    } else {
        buffer[used] = '\0';
    }
    return buffer;
}

static int wrong(struct dt_json_in in, const char *key, const char *expected)
{
    char shown[96];
    const json_t *value = json_object_get(in.object, key);
    return DT_FAIL(in.code, "%s: '%s' is %s, expected %s", in.where, key,
                   dt_json_shown(value, shown, sizeof shown), expected);
}

/* The value of a key; NULL when absent or null. */
static const json_t *find(struct dt_json_in in, const char *key)
{
    const json_t *value = json_object_get(in.object, key);
    return json_is_null(value) ? NULL : value;
}

int dt_json_get_int(struct dt_json_in in, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max) {
        char range[96];
        if (max == INT64_MAX)
            snprintf(range, sizeof range, "an integer of at least %lld", (long long)min);
        else
            snprintf(range, sizeof range, "an integer from %lld to %lld", (long long)min,
                     (long long)max);
        return wrong(in, key, range);
    }
    *out = json_integer_value(value);
    return DT_OK;
}

int dt_json_get_real(struct dt_json_in in, const char *key, double *out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_number(value))
        return wrong(in, key, "a number");
    *out = json_number_value(value);
    return DT_OK;
}

int dt_json_get_bool(struct dt_json_in in, const char *key, bool *out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_boolean(value))
        return wrong(in, key, "true or false");
    *out = json_is_true(value);
    return DT_OK;
}

int dt_json_get_string(struct dt_json_in in, const char *key, const char **out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_string(value))
        return wrong(in, key, "a string");
    *out = json_string_value(value);
    return DT_OK;
}

int dt_json_get_object(struct dt_json_in in, const char *key, const json_t **out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_object(value))
        return wrong(in, key, "an object {...}");
    *out = value;
    return DT_OK;
}

int dt_json_get_array(struct dt_json_in in, const char *key, const json_t **out)
{
    const json_t *value = find(in, key);
    if (!value)
        return DT_OK;
    if (!json_is_array(value))
        return wrong(in, key, "an array [...]");
    *out = value;
    return DT_OK;
}

/* Refuses absence and leaves the rest to the getter. */
#define NEED(in, key, expected, get)                                                               \
    do {                                                                                           \
        if (!find((in), (key)))                                                                    \
            return wrong((in), (key), (expected));                                                 \
        return (get);                                                                              \
    } while (0)

int dt_json_need_int(struct dt_json_in in, const char *key, int64_t min, int64_t max, int64_t *out)
{
    NEED(in, key, "an integer", dt_json_get_int(in, key, min, max, out));
}

int dt_json_need_real(struct dt_json_in in, const char *key, double *out)
{
    NEED(in, key, "a number", dt_json_get_real(in, key, out));
}

int dt_json_need_bool(struct dt_json_in in, const char *key, bool *out)
{
    NEED(in, key, "true or false", dt_json_get_bool(in, key, out));
}

int dt_json_need_string(struct dt_json_in in, const char *key, const char **out)
{
    NEED(in, key, "a string", dt_json_get_string(in, key, out));
}

int dt_json_need_object(struct dt_json_in in, const char *key, const json_t **out)
{
    NEED(in, key, "an object {...}", dt_json_get_object(in, key, out));
}

int dt_json_need_array(struct dt_json_in in, const char *key, const json_t **out)
{
    NEED(in, key, "an array [...]", dt_json_get_array(in, key, out));
}

int dt_json_save(const char *path, const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text)
        return DT_FAIL(DT_E_MEMORY, "cannot write %s: out of memory", path);
    size_t size = strlen(text);
    text[size] = '\n'; /* in the place of the NUL; the length is told */
    int rc = dt_file_write(path, text, size + 1);
    free(text);
    return rc;
}
