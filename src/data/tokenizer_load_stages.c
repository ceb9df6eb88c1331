/* "normalizer", "pre_tokenizer" and "decoder" of a tokenizer.json to lists of stages. */
#include "data/tokenizer_internal.h"

#include <stdio.h>

typedef int load_fn(struct dt_stages *out, const json_t *j);

static int add_stage(struct dt_stages *s, enum dt_stage_kind kind, struct dt_stage **out)
{
    struct dt_stage *p = realloc(s->p, (size_t)(s->n + 1) * sizeof *p);
    if (!p)
        return DT_FAIL(DT_E_MEMORY, "no memory for a stage");
    s->p = p;
    p[s->n] = (struct dt_stage){.kind = kind};
    *out = &p[s->n++];
    return 0;
}

static int type_of(const json_t *j, const char *where, const char **type)
{
    size_t n;
    *type = NULL;
    if (!json_is_object(j))
        return DT_FAIL(DT_E_DATA, "\"%s\" must be an object", where);
    DT_TRY(dt_json_string(j, where, "type", type, &n));
    return *type ? 0 : DT_FAIL(DT_E_DATA, "%s: \"type\" is missing", where);
}

/* 1: it was a Sequence, and is loaded. */
static int sequence(struct dt_stages *out, const json_t *j, const char *where, const char *type,
                    const char *key, load_fn *load)
{
    if (strcmp(type, "Sequence") != 0)
        return 0;
    const json_t *list = json_object_get(j, key);
    if (!json_is_array(list))
        return DT_FAIL(DT_E_DATA, "%s: a Sequence without a list \"%s\"", where, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!json_is_object(json_array_get(list, i)))
            return DT_FAIL(DT_E_DATA, "%s: \"%s\"[%zu] must be an object", where, key, i);
        DT_TRY(load(out, json_array_get(list, i)));
        if (out->n > 64)
            return DT_FAIL(DT_E_UNSUPPORTED, "%s: more than 64 stages", where);
    }
    return 1;
}

static int content(struct dt_stage *s, const json_t *j, const char *where, const char *key)
{
    const char *p = NULL;
    DT_TRY(dt_json_string(j, where, key, &p, &s->content_n));
    if (!p)
        return DT_FAIL(DT_E_DATA, "%s: \"%s\" must be a string", where, key);
    DT_TRY(DT_NEW(&s->content, s->content_n + 1));
    memcpy(s->content, p, s->content_n);
    return 0;
}

/* "pattern": {"String": ...} or {"Regex": ...}. */
static int pattern(struct dt_stage *s, const json_t *j, const char *where, bool scanners)
{
    const json_t *p = json_object_get(j, "pattern");
    const json_t *string = json_object_get(p, "String"), *regex = json_object_get(p, "Regex");
    if (json_is_string(string) && !regex)
        return dt_pattern_literal(&s->pattern, json_string_value(string),
                                  json_string_length(string));
    if (json_is_string(regex) && !string)
        return dt_pattern_regex(&s->pattern, json_string_value(regex), json_string_length(regex),
                                scanners);
    return DT_FAIL(DT_E_DATA, "%s: \"pattern\" must be {\"String\": ...} or {\"Regex\": ...}",
                   where);
}

static int behavior(struct dt_stage *s, const json_t *j, const char *where)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    size_t n;
    DT_TRY(dt_json_string(j, where, "behavior", &name, &n));
    for (int k = 0; name && k < 5; k++)
        if (strcmp(name, names[k]) == 0) {
            s->behavior = (enum dt_behavior)k;
            return 0;
        }
    return DT_FAIL(DT_E_UNSUPPORTED, "%s: behavior \"%.40s\" is not supported", where,
                   name ? name : "");
}

/* ---- Normalizers ------------------------------------------------------------------------- */

int dt_load_normalizer(struct dt_stages *out, const json_t *j)
{
    static const struct {
        const char *name, *keys;
        enum dt_stage_kind kind;
    } table[] = {
        {"NFC", "type", DT_NORM_NFC},
        {"NFD", "type", DT_NORM_NFD},
        {"NFKC", "type", DT_NORM_NFKC},
        {"NFKD", "type", DT_NORM_NFKD},
        {"Lowercase", "type", DT_NORM_LOWERCASE},
        {"StripAccents", "type", DT_NORM_STRIP_ACCENTS},
        {"Strip", "type strip_left strip_right", DT_NORM_STRIP},
        {"Replace", "type pattern content", DT_NORM_REPLACE},
        {"Prepend", "type prepend", DT_NORM_PREPEND},
    };
    const char *type, *where = "normalizer";
    if (!j || json_is_null(j))
        return 0;
    DT_TRY(type_of(j, where, &type));
    int rc = sequence(out, j, where, type, "normalizers", dt_load_normalizer);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        struct dt_stage *s;
        if (strcmp(type, table[k].name) != 0)
            continue;
        DT_TRY(dt_json_keys(j, type, table[k].keys));
        DT_TRY(add_stage(out, table[k].kind, &s));
        s->left = s->right = true;
        DT_TRY(dt_json_bool(j, type, "strip_left", &s->left));
        DT_TRY(dt_json_bool(j, type, "strip_right", &s->right));
        if (s->kind == DT_NORM_PREPEND)
            DT_TRY(content(s, j, type, "prepend"));
        if (s->kind == DT_NORM_REPLACE) {
            DT_TRY(pattern(s, j, type, false));
            DT_TRY(content(s, j, type, "content"));
        }
        return 0;
    }
    return DT_FAIL(DT_E_UNSUPPORTED, "normalizer \"%.40s\" is not supported", type);
}

/* ---- Pre-tokenizers ---------------------------------------------------------------------- */

static int load_byte_level(struct dt_stage *s, const json_t *j)
{
    bool trim; /* about offsets */
    s->add_prefix_space = true;
    s->use_regex = true;
    DT_TRY(dt_json_bool(j, "ByteLevel", "add_prefix_space", &s->add_prefix_space));
    DT_TRY(dt_json_bool(j, "ByteLevel", "trim_offsets", &trim));
    DT_TRY(dt_json_bool(j, "ByteLevel", "use_regex", &s->use_regex));
    return dt_pattern_regex(&s->pattern, DT_GPT2_REGEX, strlen(DT_GPT2_REGEX), true);
}

/* As pre-tokenizer and as decoder; old files say add_prefix_space instead of prepend_scheme. */
static int load_metaspace(struct dt_stage *s, const json_t *j)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *scheme = "always";
    size_t n;
    bool add = true;
    s->split = true;
    DT_TRY(dt_json_keys(j, "Metaspace",
                        "type replacement add_prefix_space prepend_scheme split str_rep"));
    DT_TRY(dt_json_bool(j, "Metaspace", "add_prefix_space", &add));
    DT_TRY(dt_json_bool(j, "Metaspace", "split", &s->split));
    DT_TRY(dt_json_string(j, "Metaspace", "prepend_scheme", &scheme, &n));
    DT_TRY(content(s, j, "Metaspace", "replacement"));
    size_t size = 0;
    if (s->content_n > 0)
        dt_utf8_get(s->content, &size);
    if (size != s->content_n)
        return DT_FAIL(DT_E_DATA, "Metaspace: \"replacement\" must be one character");
    if (!add && json_object_get(j, "prepend_scheme") && strcmp(scheme, "never") != 0)
        return DT_FAIL(DT_E_DATA,
                       "Metaspace: \"add_prefix_space\" is false, but \"prepend_scheme\" is "
                       "\"%.20s\"",
                       scheme);
    for (int k = 0; k < 3; k++)
        if (strcmp(add ? scheme : "never", names[k]) == 0) {
            s->prepend = (enum dt_prepend)k;
            return dt_pattern_literal(&s->pattern, s->content, s->content_n);
        }
    return DT_FAIL(DT_E_UNSUPPORTED, "Metaspace: prepend_scheme \"%.20s\" is not supported",
                   scheme);
}

static int load_split(struct dt_stage *s, const json_t *j)
{
    DT_TRY(dt_json_bool(j, "Split", "invert", &s->invert));
    DT_TRY(behavior(s, j, "Split"));
    return pattern(s, j, "Split", true);
}

static int load_pre_stage(struct dt_stage *s, const json_t *j)
{
    switch (s->kind) {
    case DT_PRE_BYTE_LEVEL:
        return load_byte_level(s, j);
    case DT_PRE_SPLIT:
        return load_split(s, j);
    case DT_PRE_DIGITS:
        return dt_json_bool(j, "Digits", "individual_digits", &s->individual);
    case DT_PRE_PUNCTUATION:
        return json_object_get(j, "behavior") ? behavior(s, j, "Punctuation") : 0;
    case DT_PRE_METASPACE:
        return load_metaspace(s, j);
    default:
        return 0;
    }
}

int dt_load_pre_tokenizer(struct dt_stages *out, const json_t *j)
{
    static const struct {
        const char *name, *keys;
        enum dt_stage_kind kind;
    } table[] = {
        {"ByteLevel", "type add_prefix_space trim_offsets use_regex", DT_PRE_BYTE_LEVEL},
        {"Split", "type pattern behavior invert", DT_PRE_SPLIT},
        {"Digits", "type individual_digits", DT_PRE_DIGITS},
        {"Whitespace", "type", DT_PRE_WHITESPACE},
        {"WhitespaceSplit", "type", DT_PRE_WHITESPACE_SPLIT},
        {"Punctuation", "type behavior", DT_PRE_PUNCTUATION},
        {"Metaspace", "type replacement add_prefix_space prepend_scheme split str_rep",
         DT_PRE_METASPACE},
    };
    const char *type, *where = "pre_tokenizer";
    if (!j || json_is_null(j))
        return 0;
    DT_TRY(type_of(j, where, &type));
    int rc = sequence(out, j, where, type, "pretokenizers", dt_load_pre_tokenizer);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        struct dt_stage *s;
        if (strcmp(type, table[k].name) != 0)
            continue;
        DT_TRY(dt_json_keys(j, type, table[k].keys));
        if (out->n > 0 && out->p[out->n - 1].kind == DT_PRE_BYTE_LEVEL)
            DT_TRY(add_stage(out, DT_PRE_WRITE_BYTES, &s));
        DT_TRY(add_stage(out, table[k].kind, &s));
        return load_pre_stage(s, j);
    }
    return DT_FAIL(DT_E_UNSUPPORTED, "pre_tokenizer \"%.40s\" is not supported", type);
}

/* ---- Decoders ---------------------------------------------------------------------------- */

static int count_of(const json_t *j, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return DT_FAIL(DT_E_DATA, "Strip: \"%s\" must be an integer from 0", key);
    *out = json_integer_value(v);
    return 0;
}

static int load_dec_stage(struct dt_stage *s, const json_t *j)
{
    switch (s->kind) {
    case DT_DEC_STRIP:
        DT_TRY(content(s, j, "Strip", "content"));
        DT_TRY(count_of(j, "start", &s->start));
        DT_TRY(count_of(j, "stop", &s->stop));
        return s->content_n > 0 ? 0
                                : DT_FAIL(DT_E_DATA, "Strip: \"content\" must be one character");
    case DT_DEC_REPLACE:
        DT_TRY(pattern(s, j, "Replace", false));
        return content(s, j, "Replace", "content");
    case DT_DEC_METASPACE:
        return load_metaspace(s, j);
    case DT_DEC_BPE:
        return content(s, j, "BPEDecoder", "suffix");
    default:
        return 0;
    }
}

int dt_load_decoder(struct dt_stages *out, const json_t *j)
{
    static const struct {
        const char *name, *keys;
        enum dt_stage_kind kind;
    } table[] = {
        {"ByteLevel", "type add_prefix_space trim_offsets use_regex", DT_DEC_BYTE_LEVEL},
        {"ByteFallback", "type", DT_DEC_BYTE_FALLBACK},
        {"Fuse", "type", DT_DEC_FUSE},
        {"Strip", "type content start stop", DT_DEC_STRIP},
        {"Replace", "type pattern content", DT_DEC_REPLACE},
        {"Metaspace", "type replacement add_prefix_space prepend_scheme split str_rep",
         DT_DEC_METASPACE},
        {"BPEDecoder", "type suffix", DT_DEC_BPE},
    };
    const char *type, *where = "decoder";
    if (!j || json_is_null(j))
        return 0;
    DT_TRY(type_of(j, where, &type));
    int rc = sequence(out, j, where, type, "decoders", dt_load_decoder);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        struct dt_stage *s;
        if (strcmp(type, table[k].name) != 0)
            continue;
        DT_TRY(dt_json_keys(j, type, table[k].keys));
        DT_TRY(add_stage(out, table[k].kind, &s));
        return load_dec_stage(s, j);
    }
    return DT_FAIL(DT_E_UNSUPPORTED, "decoder \"%.40s\" is not supported", type);
}
