/* "model" (BPE only) and "post_processor" of a tokenizer.json. */
#include "data/tokenizer_internal.h"

#include <stdio.h>

/* ---- Vocabulary -------------------------------------------------------------------------- */

/* Ids may have holes, but memory is bounded by the size of the file. */
static int check_id(const char *token, const json_t *id, int64_t limit)
{
    if (!json_is_integer(id))
        return DT_FAIL(DT_E_DATA, "vocab: the id of \"%.60s\" must be an integer", token);
    int64_t v = json_integer_value(id);
    if (v < 0 || v >= limit)
        return DT_FAIL(DT_E_DATA, "vocab: \"%.60s\" has id %lld, outside 0 to %lld", token,
                       (long long)v, (long long)limit - 1);
    return 0;
}

static int load_vocab(struct dt_tokenizer *t, const json_t *vocab, size_t added)
{
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return DT_FAIL(DT_E_DATA, "model: \"vocab\" must be an object that is not empty");
    size_t count = json_object_size(vocab) + added;
    if (count > (size_t)1 << 26)
        return DT_FAIL(DT_E_UNSUPPORTED, "a vocabulary of %zu tokens is too large", count);
    int64_t limit = (int64_t)count * 8 + 1024, highest = 0;
    void *vocab_iter = json_object_iter((json_t *)vocab);
    for (void *i = vocab_iter; i; i = json_object_iter_next((json_t *)vocab, i)) {
        const json_t *id = json_object_iter_value(i);
        DT_TRY(check_id(json_object_iter_key(i), id, limit));
        if (json_integer_value(id) > highest)
            highest = json_integer_value(id);
    }
    DT_TRY(dt_vocab_reserve(&t->vocab, highest + (int64_t)added, (int64_t)count));
    for (void *i = vocab_iter; i; i = json_object_iter_next((json_t *)vocab, i))
        DT_TRY(dt_vocab_add(&t->vocab, json_object_iter_key(i), json_object_iter_key_len(i),
                            json_integer_value(json_object_iter_value(i)), DT_TOKEN_MODEL));
    return 0;
}

/* ---- Merges ------------------------------------------------------------------------------ */

struct half {
    const char *p;
    size_t n;
};

/* "a b" or ["a", "b"]. 1: a comment line of the old format. */
static int read_merge(const json_t *m, size_t i, struct half *a, struct half *b)
{
    if (json_is_string(m)) {
        const char *text = json_string_value(m);
        size_t n = json_string_length(m);
        if (n >= 8 && memcmp(text, "#version", 8) == 0)
            return 1;
        const char *space = memchr(text, ' ', n);
        if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - text)))
            return DT_FAIL(DT_E_DATA,
                           "merges[%zu]: \"%.60s\" is not two tokens with a space between", i,
                           text);
        *a = (struct half){text, (size_t)(space - text)};
        *b = (struct half){space + 1, n - a->n - 1};
        return 0;
    }
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right))
        return DT_FAIL(DT_E_DATA, "merges[%zu] must be \"a b\" or [\"a\", \"b\"]", i);
    *a = (struct half){json_string_value(left), json_string_length(left)};
    *b = (struct half){json_string_value(right), json_string_length(right)};
    return 0;
}

static int unknown_merge(size_t i, const char *p, size_t n)
{
    return DT_FAIL(DT_E_DATA, "merges[%zu] names \"%.*s\", which is not in the vocabulary", i,
                   (int)(n < 60 ? n : 60), p);
}

static int add_merge(struct dt_tokenizer *t, size_t i, const json_t *m, struct dt_text *joined)
{
    struct half a = {0}, b = {0};
    int rc = read_merge(m, i, &a, &b);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    int32_t left = dt_vocab_find_model(&t->vocab, a.p, a.n);
    int32_t right = dt_vocab_find_model(&t->vocab, b.p, b.n);
    if (left < 0 || right < 0)
        return unknown_merge(i, left < 0 ? a.p : b.p, left < 0 ? a.n : b.n);
    size_t skip = 0; /* the right half loses as many bytes as the prefix has characters */
    for (size_t k = 0, size; t->prefix && k < t->prefix_n; k += size, skip++)
        dt_utf8_get(t->prefix + k, &size);
    if (skip > b.n || (skip < b.n && ((unsigned char)b.p[skip] & 0xc0) == 0x80))
        return DT_FAIL(DT_E_DATA,
                       "merges[%zu]: \"%.60s\" does not begin with the prefix of "
                       "continuing subwords",
                       i, b.p);
    joined->n = 0;
    DT_TRY(dt_text_append(joined, a.p, a.n));
    DT_TRY(dt_text_append(joined, b.p + skip, b.n - skip));
    int32_t id = dt_vocab_find_model(&t->vocab, joined->p, joined->n);
    if (id < 0)
        return unknown_merge(i, joined->p, joined->n);
    dt_pairs_put(&t->merges, (uint32_t)left, (uint32_t)right, (uint32_t)i, (uint32_t)id);
    return 0;
}

static int load_merges(struct dt_tokenizer *t, const json_t *merges)
{
    if (!json_is_array(merges))
        return DT_FAIL(DT_E_DATA, "model: \"merges\" must be a list");
    struct dt_text joined = {0};
    int rc = dt_pairs_reserve(&t->merges, json_array_size(merges) + 1);
    for (size_t i = 0; rc == 0 && i < json_array_size(merges); i++)
        rc = add_merge(t, i, json_array_get(merges, i), &joined);
    dt_text_free(&joined);
    return rc;
}

/* ---- The model --------------------------------------------------------------------------- */

static int check_type(const json_t *model)
{
    const char *type = "BPE"; /* old files do not say; what they have tells */
    size_t n = 3;
    if (!json_is_object(model))
        return DT_FAIL(DT_E_DATA, "\"model\" must be an object");
    DT_TRY(dt_json_string(model, "model", "type", &type, &n));
    if (n != 3 || strcmp(type, "BPE") != 0)
        return DT_FAIL(DT_E_UNSUPPORTED, "model type \"%.40s\" is not supported (only BPE is)",
                       type);
    DT_TRY(
        dt_json_keys(model, "model",
                     "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                     "byte_fallback ignore_merges vocab merges"));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "model: \"dropout\" must be null or 0: ids must be repeatable");
    return 0;
}

static int copy_string(const json_t *model, const char *key, char **out, size_t *n)
{
    const char *p = NULL;
    DT_TRY(dt_json_string(model, "model", key, &p, n));
    if (!p || *n == 0)
        return 0;
    DT_TRY(DT_NEW(out, *n + 1));
    memcpy(*out, p, *n);
    return 0;
}

static void map_bytes(struct dt_tokenizer *t)
{
    t->bytes_complete = !t->prefix && !t->suffix;
    for (int b = 0; b < 256; b++) {
        char text[8];
        size_t n = dt_utf8_put(dt_byte_char((unsigned char)b), text);
        t->byte_id[b] = dt_vocab_find_model(&t->vocab, text, n);
        t->bytes_complete = t->bytes_complete && t->byte_id[b] >= 0;
        snprintf(text, sizeof text, "<0x%02X>", b);
        t->fallback_id[b] = dt_vocab_find_model(&t->vocab, text, 6);
    }
}

int dt_load_model(struct dt_tokenizer *t, const json_t *model, size_t added)
{
    DT_TRY(check_type(model));
    DT_TRY(dt_json_bool(model, "model", "fuse_unk", &t->fuse_unk));
    DT_TRY(dt_json_bool(model, "model", "byte_fallback", &t->byte_fallback));
    DT_TRY(dt_json_bool(model, "model", "ignore_merges", &t->ignore_merges));
    DT_TRY(copy_string(model, "continuing_subword_prefix", &t->prefix, &t->prefix_n));
    DT_TRY(copy_string(model, "end_of_word_suffix", &t->suffix, &t->suffix_n));
    DT_TRY(load_vocab(t, json_object_get(model, "vocab"), added));
    DT_TRY(load_merges(t, json_object_get(model, "merges")));
    const char *unk = NULL;
    size_t n = 0;
    DT_TRY(dt_json_string(model, "model", "unk_token", &unk, &n));
    if (unk) {
        t->unk = dt_vocab_find_model(&t->vocab, unk, n);
        if (t->unk < 0)
            return DT_FAIL(DT_E_DATA, "model: unk_token \"%.60s\" is not in the vocabulary", unk);
    }
    map_bytes(t);
    return 0;
}

/* ---- Post-processors --------------------------------------------------------------------- */

static int insert(struct dt_ids *ids, int64_t at, int32_t id)
{
    DT_TRY(dt_ids_push(ids, id));
    memmove(ids->p + at + 1, ids->p + at, (size_t)(ids->n - 1 - at) * sizeof *ids->p);
    ids->p[at] = id;
    return 0;
}

/* A template wraps what an earlier one made: its own part before goes in front, at `front`. */
static int put_special(struct dt_tokenizer *t, const json_t *id, bool before, int64_t *front)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= t->vocab.size)
        return DT_FAIL(DT_E_DATA, "post_processor: a special token's id is outside the vocabulary");
    int32_t v = (int32_t)json_integer_value(id);
    return before ? insert(&t->before, (*front)++, v) : dt_ids_push(&t->after, v);
}

static int load_template(struct dt_tokenizer *t, const json_t *j)
{
    const json_t *single = json_object_get(j, "single");
    const json_t *specials = json_object_get(j, "special_tokens");
    DT_TRY(dt_json_keys(j, "post_processor", "type single pair special_tokens"));
    if (!json_is_array(single) || !json_is_object(specials))
        return DT_FAIL(DT_E_DATA,
                       "post_processor: \"single\" must be a list, \"special_tokens\" an "
                       "object");
    bool before = true;
    int64_t front = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        const json_t *name = json_object_get(special, "id");
        if (json_object_get(item, "Sequence")) {
            const json_t *which = json_object_get(json_object_get(item, "Sequence"), "id");
            if (!before || !json_is_string(which) || strcmp(json_string_value(which), "A") != 0)
                return DT_FAIL(DT_E_UNSUPPORTED,
                               "post_processor: a template without exactly one A");
            before = false;
            continue;
        }
        const json_t *ids =
            json_is_string(name)
                ? json_object_get(json_object_get(specials, json_string_value(name)), "ids")
                : NULL;
        if (!json_is_array(ids))
            return DT_FAIL(DT_E_DATA,
                           "post_processor: single[%zu] is neither a Sequence nor a "
                           "SpecialToken listed in special_tokens",
                           i);
        for (size_t k = 0; k < json_array_size(ids); k++)
            DT_TRY(put_special(t, json_array_get(ids, k), before, &front));
    }
    return before ? DT_FAIL(DT_E_UNSUPPORTED, "post_processor: a template without A") : 0;
}

/* BERT's and RoBERTa's: cls, A, sep, each as ["text", id]. */
static int load_cls_sep(struct dt_tokenizer *t, const json_t *j)
{
    int64_t front = 0;
    DT_TRY(dt_json_keys(j, "post_processor", "type sep cls trim_offsets add_prefix_space"));
    DT_TRY(put_special(t, json_array_get(json_object_get(j, "cls"), 1), true, &front));
    return put_special(t, json_array_get(json_object_get(j, "sep"), 1), false, &front);
}

int dt_load_post_processor(struct dt_tokenizer *t, const json_t *j)
{
    const char *type = NULL;
    size_t n = 0;
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_object(j))
        return DT_FAIL(DT_E_DATA, "\"post_processor\" must be an object");
    DT_TRY(dt_json_string(j, "post_processor", "type", &type, &n));
    if (type && strcmp(type, "ByteLevel") == 0) /* about offsets only */
        return dt_json_keys(j, "post_processor", "type add_prefix_space trim_offsets use_regex");
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return load_template(t, j);
    if (type && (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0))
        return load_cls_sep(t, j);
    const json_t *list = json_object_get(j, "processors");
    if (!type || strcmp(type, "Sequence") != 0 || !json_is_array(list))
        return DT_FAIL(DT_E_UNSUPPORTED, "post_processor \"%.40s\" is not supported",
                       type ? type : "");
    for (size_t i = 0; i < json_array_size(list); i++)
        DT_TRY(dt_load_post_processor(t, json_array_get(list, i)));
    return 0;
}
