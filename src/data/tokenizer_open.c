/* A tokenizer from files: tokenizer.json, and beside it tokenizer_config.json and
 * special_tokens_map.json, of which only the names of the begin and end tokens are wanted. */
#include "data/tokenizer_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

int dt_read_file(const char *path, size_t limit, struct dt_text *out)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return DT_FAIL(errno == ENOENT ? DT_E_NOT_FOUND : DT_E_IO, "%s: %s", path, strerror(errno));
    int rc = dt_text_append(out, "", 0);
    size_t got = 1;
    while (rc == 0 && got > 0) {
        rc = dt_text_reserve(out, 1 << 16);
        if (rc < 0)
            break;
        got = fread(out->p + out->n, 1, out->capacity - out->n - 1, f);
        out->n += got;
        if (out->n > limit)
            rc = DT_FAIL(DT_E_DATA, "%s: more than %zu bytes", path, limit);
    }
    if (rc == 0 && ferror(f))
        rc = DT_FAIL(errno == EISDIR ? DT_E_DATA : DT_E_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    out->p[out->n] = '\0';
    return rc;
}

/* ---- tokenizer_config.json, special_tokens_map.json -------------------------------------- */

/* "eos_token": "</s>" or {"content": "</s>", ...}. Returns -1 when it is not there. */
static int32_t named_token(const struct dt_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return -1;
    int32_t id = dt_tokenizer_id(t, json_string_value(v), json_string_length(v));
    if (id < 0)
        dt_warn("%s: %s \"%.60s\" of its neighbour files is not in the vocabulary; ignored",
                t->path, key, json_string_value(v));
    return id;
}

static int read_neighbour(struct dt_tokenizer *t, const char *name)
{
    char path[4096];
    const char *slash = strrchr(t->path, '/');
    int dir = slash ? (int)(slash - t->path) + 1 : 0;
    if ((size_t)snprintf(path, sizeof path, "%.*s%s", dir, t->path, name) >= sizeof path)
        return DT_FAIL(DT_E_DATA, "%s: the path is too long", t->path);
    struct stat st;
    if (stat(path, &st) != 0)
        return 0;
    struct dt_text text = {0};
    json_error_t error;
    json_t *j = NULL;
    int rc = dt_read_file(path, (size_t)64 << 20, &text);
    if (rc == 0 && !(j = json_loadb(text.p, text.n, JSON_ALLOW_NUL, &error)))
        rc = DT_FAIL(DT_E_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    else if (rc == 0 && !json_is_object(j))
        rc = DT_FAIL(DT_E_DATA, "%s: expected a JSON object", path);
    if (rc == 0 && t->eos < 0)
        t->eos = named_token(t, j, "eos_token");
    if (rc == 0 && t->bos < 0)
        t->bos = named_token(t, j, "bos_token");
    json_decref(j);
    dt_text_free(&text);
    return rc;
}

/* ---- The whole --------------------------------------------------------------------------- */

static int load_file(struct dt_tokenizer *t)
{
    struct dt_text text = {0};
    int rc = dt_read_file(t->path, (size_t)1 << 30, &text);
    if (rc == 0)
        rc = dt_tokenizer_load_text(t, text.p, text.n);
    dt_text_free(&text);
    return rc;
}

static int new_tokenizer(struct dt_tokenizer **out)
{
    dt_classes_build();
    DT_TRY(DT_NEW(out, 1));
    (*out)->unk = (*out)->bos = (*out)->eos = -1;
    return 0;
}

int dt_tokenizer_parse(const char *text, size_t n, const char *name, struct dt_tokenizer **out)
{
    struct dt_tokenizer *t;
    *out = NULL;
    DT_TRY(new_tokenizer(&t));
    t->path = strdup(name);
    int rc =
        t->path ? dt_tokenizer_load_text(t, text, n) : DT_FAIL(DT_E_MEMORY, "no memory for a path");
    if (rc < 0)
        dt_tokenizer_close(t);
    else
        *out = t;
    return rc;
}

int dt_tokenizer_open(const char *path, struct dt_tokenizer **out)
{
    struct dt_tokenizer *t;
    struct stat st;
    int rc;
    *out = NULL;
    DT_TRY(new_tokenizer(&t));
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (asprintf(&t->path, "%s%s", path, directory ? "/tokenizer.json" : "") < 0) {
        t->path = NULL;
        rc = DT_FAIL(DT_E_MEMORY, "no memory for a path");
        goto failed;
    }
    DT_CHECK(failed, rc, load_file(t));
    DT_CHECK(failed, rc, read_neighbour(t, "tokenizer_config.json"));
    DT_CHECK(failed, rc, read_neighbour(t, "special_tokens_map.json"));
    *out = t;
    return 0;
failed:
    dt_tokenizer_close(t);
    return rc;
}
