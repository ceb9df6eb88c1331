/* JSON, read strictly (jansson): duplicate keys are refused, nesting is bounded by the library
 * (2 048), integers that do not fit 64 bits are errors, and every message says where:
 * "config.json:3:17: ..." for syntax, "config.json: 'hidden_size' is "abc", expected an integer
 * of at least 1" for values.
 *
 * In the getters `where` is the name shown in messages (a path, perhaps with what is inside it:
 * "config.json: rope_scaling"). A key that is absent or null leaves *out as it was in the `get`
 * functions (so the caller sets the default first) and is an error in the `need` functions. */
#ifndef DT_BASE_JSON_H
#define DT_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both want an object or an array at the top; json_decref() the result. Failures are `code`
 * (DT_E_DATA, DT_E_MODEL, ...), or what reading the file gives. */
int dt_json_load(const char *path, size_t limit, int code, json_t **out);
int dt_json_parse(const char *text, size_t size, const char *where, int code, json_t **out);

/* A value as it would be written, cut to a few words; for messages. */
const char *dt_json_shown(const json_t *value, char *buffer, size_t size);

struct dt_json_in { /* what the getters look into */
    const json_t *object;
    const char *where;
    int code; /* of failures */
};

int dt_json_get_int(struct dt_json_in in, const char *key, int64_t min, int64_t max, int64_t *out);
int dt_json_get_real(struct dt_json_in in, const char *key, double *out); /* integers count */
int dt_json_get_bool(struct dt_json_in in, const char *key, bool *out);
int dt_json_get_string(struct dt_json_in in, const char *key,
                       const char **out); /* owned by object */
int dt_json_get_object(struct dt_json_in in, const char *key, const json_t **out);
int dt_json_get_array(struct dt_json_in in, const char *key, const json_t **out);

int dt_json_need_int(struct dt_json_in in, const char *key, int64_t min, int64_t max, int64_t *out);
int dt_json_need_real(struct dt_json_in in, const char *key, double *out);
int dt_json_need_bool(struct dt_json_in in, const char *key, bool *out);
int dt_json_need_string(struct dt_json_in in, const char *key, const char **out);
int dt_json_need_object(struct dt_json_in in, const char *key, const json_t **out);
int dt_json_need_array(struct dt_json_in in, const char *key, const json_t **out);

/* Whole and durable (dt_file_write), two spaces of indentation, keys in order of insertion, a
 * newline at the end. Reals carry 17 digits, so they come back bit for bit. */
int dt_json_save(const char *path, const json_t *value);

#endif
