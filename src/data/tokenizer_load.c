/* The JSON of a tokenizer.json to a struct dt_tokenizer.
 *
 * The file decides ids, so nothing in it is skipped: every key of every object is known and
 * honoured, or the file is refused naming it. The exceptions are truncation and padding, which are
 * about batches, not ids: they are ignored with a word. */
#include "data/tokenizer_internal.h"

#include "base/hash.h"

#include <stdio.h>

/* ---- Typed reads --------------------------------------------------------------------------- */

int dt_json_bool(const json_t *j, const char *where, const char *key, bool *out)
{
    const json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return DT_FAIL(DT_E_DATA, "%s: \"%s\" must be true or false", where, key);
    *out = json_is_true(v);
    return 0;
}

int dt_json_string(const json_t *j, const char *where, const char *key, const char **p, size_t *n)
{
    const json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return DT_FAIL(DT_E_DATA, "%s: \"%s\" must be a string", where, key);
    *p = json_string_value(v);
    *n = json_string_length(v);
    return 0;
}

int dt_json_keys(const json_t *j, const char *where, const char *allowed)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)j, key, value)
    {
        size_t n = strlen(key);
        const char *at = allowed;
        while (n > 0 && (at = strstr(at, key)) != NULL) {
            if ((at == allowed || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
                break;
            at += n;
        }
        if (n == 0 || !at)
            return DT_FAIL(DT_E_UNSUPPORTED, "%s: unknown key \"%.60s\" (known: %s)", where, key,
                           allowed);
    }
    return 0;
}

/* ---- Added tokens ------------------------------------------------------------------------ */

static int read_added(const json_t *j, size_t i, struct dt_added *a, const char **text, size_t *n)
{
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", i);
    if (!json_is_object(j))
        return DT_FAIL(DT_E_DATA, "%s must be an object", where);
    DT_TRY(dt_json_keys(j, where, "id content single_word lstrip rstrip normalized special"));
    const json_t *id = json_object_get(j, "id");
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) > INT32_MAX - 1)
        return DT_FAIL(DT_E_DATA, "%s: \"id\" must be an integer from 0", where);
    a->id = (int32_t)json_integer_value(id);
    DT_TRY(dt_json_bool(j, where, "special", &a->special));
    a->normalized = !a->special;
    DT_TRY(dt_json_bool(j, where, "normalized", &a->normalized));
    DT_TRY(dt_json_bool(j, where, "single_word", &a->single_word));
    DT_TRY(dt_json_bool(j, where, "lstrip", &a->lstrip));
    DT_TRY(dt_json_bool(j, where, "rstrip", &a->rstrip));
    DT_TRY(dt_json_string(j, where, "content", text, n));
    if (!*text || *n == 0)
        return DT_FAIL(DT_E_DATA, "%s: \"content\" must be a string that is not empty", where);
    return 0;
}

/* The library numbers an added token itself: by the vocabulary if it is there, else after the last
 * one. A file that says otherwise would get other ids there than here, so it is refused. */
static int place_added(struct dt_tokenizer *t, const struct dt_added *a, const char *text, size_t n,
                       int64_t model_size, int64_t *highest)
{
    unsigned flags = DT_TOKEN_ADDED | (a->special ? DT_TOKEN_SPECIAL : 0u);
    int32_t known = dt_vocab_find(&t->vocab, text, n);
    int64_t id = known >= 0 ? known : *highest >= model_size ? *highest + 1 : model_size;
    if (id != a->id)
        return DT_FAIL(
            DT_E_DATA,
            "added token \"%.60s\": the file says id %d, Hugging Face's tokenizers would "
            "give it %lld; ids must be those of the vocabulary or follow it without holes",
            text, a->id, (long long)id);
    if (id > *highest)
        *highest = id;
    if (known < 0)
        return dt_vocab_add(&t->vocab, text, n, id, flags);
    if (t->vocab.token[known].flags & DT_TOKEN_ADDED)
        return DT_FAIL(DT_E_DATA, "added token \"%.60s\" stands twice", text);
    t->vocab.token[known].flags |= flags;
    return 0;
}

int dt_load_added(struct dt_tokenizer *t, const json_t *list)
{
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return DT_FAIL(DT_E_DATA, "\"added_tokens\" must be a list");
    int64_t model_size = 0, highest = -1;
    for (int64_t i = 0; i < t->vocab.size; i++)
        model_size += (t->vocab.token[i].flags & DT_TOKEN_MODEL) != 0;
    DT_TRY(DT_NEW(&t->added, json_array_size(list) + 1));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct dt_added *a = &t->added[t->added_count];
        const char *text = NULL;
        size_t n = 0;
        DT_TRY(read_added(json_array_get(list, i), i, a, &text, &n));
        DT_TRY(place_added(t, a, text, n, model_size, &highest));
        t->added_count++;
    }
    return 0;
}

/* ---- The tries of added tokens ----------------------------------------------------------- */

static int trie_add(struct dt_trie *trie, const char *p, size_t n, int32_t index)
{
    uint32_t node = 0;
    if (trie->nodes == 0) {
        DT_TRY(dt_grow(&trie->match, &trie->capacity, 1, sizeof *trie->match));
        trie->match[trie->nodes++] = -1;
    }
    if (n == 0)
        return 0; /* normalized away: it matches nothing */
    for (size_t i = 0; i < n; i++) {
        DT_TRY(dt_pairs_reserve(&trie->edge, trie->edge.count + 1));
        const struct dt_pair_slot *s = dt_pairs_get(&trie->edge, node, (unsigned char)p[i]);
        if (s) {
            node = s->id;
            continue;
        }
        DT_TRY(dt_grow(&trie->match, &trie->capacity, trie->nodes + 1, sizeof *trie->match));
        dt_pairs_put(&trie->edge, node, (unsigned char)p[i], 0, (uint32_t)trie->nodes);
        node = (uint32_t)trie->nodes;
        trie->match[trie->nodes++] = -1;
    }
    if (trie->match[node] < 0)
        trie->match[node] = index;
    trie->first[(unsigned char)p[0]] = true;
    trie->count++;
    return 0;
}

/* Decoding an added token that is sought in normalized text gives its normalized form. */
static int set_decoded(struct dt_tokenizer *t, int32_t id, const char *p, size_t n)
{
    struct dt_token *k = &t->vocab.token[id];
    if (n == k->n && memcmp(p, t->vocab.text.p + k->offset, n) == 0)
        return 0;
    k->decoded = t->vocab.text.n;
    k->decoded_n = (uint32_t)n;
    return dt_text_append(&t->vocab.text, p, n);
}

/* Special tokens come first where two are written alike, as in the library. */
int dt_load_tries(struct dt_tokenizer *t)
{
    struct dt_encoder *e;
    DT_TRY(dt_encoder_new(t, &e));
    int rc = 0;
    for (int64_t k = 0; rc == 0 && k < 2 * t->added_count; k++) {
        int64_t i = k % t->added_count;
        const struct dt_added *a = &t->added[i];
        size_t n;
        const char *p = dt_tokenizer_token(t, a->id, &n);
        if (a->special != (k < t->added_count))
            continue;
        if (a->normalized)
            rc = dt_normalize(e, &p, &n);
        if (rc == 0)
            rc = trie_add(a->normalized ? &t->normalized : &t->plain, p, n, (int32_t)i);
        if (rc == 0 && a->normalized)
            rc = set_decoded(t, a->id, p, n);
    }
    dt_encoder_free(e);
    return rc;
}

/* ---- The whole --------------------------------------------------------------------------- */

static int ignored(const struct dt_tokenizer *t, const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    if (v && !json_is_null(v))
        dt_info("%s: its \"%s\" is ignored: batches are made elsewhere", t->path, key);
    return 0;
}

/* Metaspace's "first" means the piece that begins where the original text begins. The library keeps
 * offsets through every stage to know it; here it is known only where no stage before it cuts or
 * deletes. */
static int check_first(const struct dt_tokenizer *t)
{
    bool deletes = false;
    for (int i = 0; i < t->normalizers.n; i++) {
        const struct dt_stage *s = &t->normalizers.p[i];
        deletes = deletes || s->kind == DT_NORM_STRIP || s->kind == DT_NORM_STRIP_ACCENTS ||
                  (s->kind == DT_NORM_REPLACE && s->content_n == 0);
    }
    for (int i = 0; i < t->pre.n; i++)
        if (t->pre.p[i].kind == DT_PRE_METASPACE && t->pre.p[i].prepend == DT_PREPEND_FIRST &&
            (i > 0 || deletes))
            return DT_FAIL(DT_E_UNSUPPORTED,
                           "Metaspace: prepend_scheme \"first\" is supported only as "
                           "first pre-tokenizer and without normalizers that delete");
    return 0;
}

static int load_json(struct dt_tokenizer *t, const json_t *j)
{
    if (!json_is_object(j))
        return DT_FAIL(DT_E_DATA, "expected a JSON object");
    DT_TRY(dt_json_keys(j, "tokenizer",
                        "version truncation padding added_tokens normalizer "
                        "pre_tokenizer post_processor decoder model"));
    const char *version = "1.0";
    size_t n = 3;
    DT_TRY(dt_json_string(j, "tokenizer", "version", &version, &n));
    if (n != 3 || strcmp(version, "1.0") != 0)
        return DT_FAIL(DT_E_UNSUPPORTED, "version \"%.20s\" (expected 1.0)", version);
    DT_TRY(ignored(t, j, "truncation"));
    DT_TRY(ignored(t, j, "padding"));
    DT_TRY(dt_load_normalizer(&t->normalizers, json_object_get(j, "normalizer")));
    DT_TRY(dt_load_pre_tokenizer(&t->pre, json_object_get(j, "pre_tokenizer")));
    DT_TRY(check_first(t));
    const json_t *decoder = json_object_get(j, "decoder");
    t->has_decoder = decoder && !json_is_null(decoder);
    DT_TRY(dt_load_decoder(&t->decoders, decoder));
    t->raw = t->pre.n > 0 && t->pre.p[t->pre.n - 1].kind == DT_PRE_BYTE_LEVEL;
    const json_t *added = json_object_get(j, "added_tokens");
    DT_TRY(dt_load_model(t, json_object_get(j, "model"), json_array_size(added)));
    DT_TRY(dt_load_added(t, added));
    DT_TRY(dt_load_post_processor(t, json_object_get(j, "post_processor")));
    return dt_load_tries(t);
}

/* The message may quote the file: keep it one line. */
static int one_line(int rc)
{
    struct dt_error_state state;
    dt_error_save(rc, &state);
    for (char *p = state.message; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    return dt_error_restore(&state);
}

int dt_tokenizer_load_text(struct dt_tokenizer *t, const char *text, size_t n)
{
    json_error_t error;
    t->hash = dt_hash(text, n);
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (!j)
        return one_line(
            DT_FAIL(DT_E_DATA, "%s:%d:%d: %s", t->path, error.line, error.column, error.text));
    int rc = load_json(t, j);
    json_decref(j);
    return rc < 0 ? one_line(dt_error_context(rc, "%s", t->path)) : 0;
}
