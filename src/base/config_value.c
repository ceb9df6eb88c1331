/* Scalars: from the text between two marks of YAML to a number, a word or a path.
 *
 * Plain scalars have the type that their key has, never one guessed from their looks: `model: 1e3`
 * is a path. A quoted number is a string and so no number. Nothing depends on the locale. */
#include "base/config_private.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *dt_config_quote(char out[DT_CONFIG_QUOTE], const char *text, size_t size)
{
    size_t n = size > 60 ? 57 : size, at = 0;
    out[at++] = '"';
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)text[i];
        out[at++] = ch < 0x20 || ch == 0x7f ? '?' : (char)ch;
    }
    snprintf(out + at, DT_CONFIG_QUOTE - at, "%s\"", size > n ? "..." : "");
    return out;
}

bool dt_config_is_list(enum dt_config_type type)
{
    return type == DT_CONFIG_STRINGS || type == DT_CONFIG_PATHS || type == DT_CONFIG_PATTERNS ||
           type == DT_CONFIG_FLOATS;
}

bool dt_config_is_text(enum dt_config_type type)
{
    return type == DT_CONFIG_STRING || type == DT_CONFIG_PATH || type == DT_CONFIG_STRINGS ||
           type == DT_CONFIG_PATHS || type == DT_CONFIG_PATTERNS;
}

static bool is_one_of(const struct dt_config_scalar *s, const char *const *words)
{
    for (; *words; words++)
        if (strlen(*words) == s->size && strncasecmp(s->text, *words, s->size) == 0)
            return true;
    return false;
}

bool dt_config_is_null(const struct dt_config_scalar *s)
{
    static const char *const words[] = {"", "~", "null", NULL};
    return !s->quoted && is_one_of(s, words);
}

static bool read_bool(const struct dt_config_scalar *s, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", NULL};
    static const char *const no[] = {"false", "no", "off", NULL};
    *out = is_one_of(s, yes);
    return !s->quoted && (*out || is_one_of(s, no));
}

/* Digits of a number without the underscores between them; false: not the look of a number. */
static bool number_text(const struct dt_config_scalar *s, char out[64])
{
    size_t at = 0;
    if (s->quoted || s->size == 0 || s->size >= 64)
        return false;
    for (size_t i = 0; i < s->size; i++) {
        if (s->text[i] == '_' && i > 0)
            continue;
        if (!strchr("0123456789+-.eE", s->text[i]) || s->text[i] == '\0')
            return false;
        out[at++] = s->text[i];
    }
    out[at] = '\0';
    return true;
}

static bool read_float(const struct dt_config_scalar *s, double *out)
{
    char text[64], *end;
    if (!number_text(s, text))
        return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

/* Also 1e6 and 100.0, which are integers to whoever wrote them. */
static bool read_int(const struct dt_config_scalar *s, int64_t *out)
{
    char text[64], *end;
    if (!number_text(s, text))
        return false;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end != text && *end == '\0' && errno == 0) {
        *out = v;
        return true;
    }
    double d = strtod(text, &end);
    if (end == text || *end || !(fabs(d) < 9e15) || d != floor(d))
        return false;
    *out = (int64_t)d;
    return true;
}

static bool in_range(const struct dt_config_key *key, double v)
{
    if (key->min == 0 && key->max == 0)
        return true;
    return v >= key->min && v <= key->max && !(key->above_min && v == key->min) &&
           !(key->below_max && v == key->max);
}

/* "20", "0.03", "3%": an integer counts, anything else is a share in [0, 1]. */
static bool read_amount(const struct dt_config_scalar *s, struct dt_config_amount *out)
{
    struct dt_config_scalar number = *s;
    bool percent = s->size > 0 && s->text[s->size - 1] == '%';
    char text[64];
    if (percent) {
        number.size--;
        number.quoted = false; /* "3%" in quotes means the same */
    }
    if (!number_text(&number, text) || !read_float(&number, &out->value) || out->value < 0)
        return false;
    out->share = percent || strpbrk(text, ".eE");
    if (percent)
        out->value /= 100;
    return out->share ? out->value <= 1 : out->value <= DT_CONFIG_MANY;
}

/* Index into names of any spelling. */
static int find_word(const char *const *names, const struct dt_config_scalar *s)
{
    for (int i = 0; names[i]; i++)
        for (const char *p = names[i]; *p; p += strcspn(p, "|"), p += *p == '|') {
            size_t n = strcspn(p, "|");
            if (n == s->size && memcmp(p, s->text, n) == 0)
                return i;
        }
    return -1;
}

/* A name of a list of names, or a problem that quotes the nearest. */
static bool read_word(struct dt_config *c, const struct dt_config_key *key, const char *where,
                      const struct dt_config_scalar *s, int *out)
{
    *out = find_word(key->names, s);
    if (*out >= 0)
        return true;
    const char *spellings[32];
    char own[32][32], quoted[DT_CONFIG_QUOTE], type[512], given[64];
    size_t n = 0;
    for (; key->names[n] && n < 32; n++) {
        snprintf(own[n], sizeof own[n], "%.*s", (int)strcspn(key->names[n], "|"), key->names[n]);
        spellings[n] = own[n];
    }
    snprintf(given, sizeof given, "%.*s", (int)(s->size > 60 ? 60 : s->size), s->text);
    const char *near = dt_config_nearest_word(spellings, n, given);
    dt_config_type_text(key, type, sizeof type);
    dt_config_add(c, false, where, "%s: found %s, expected %s%s%s%s", key->name,
                  dt_config_quote(quoted, s->text, s->size), type, near ? "; did you mean " : "",
                  near ? near : "", near ? "?" : "");
    return false;
}

/* Bytes of the UTF-8 character at p, 0 when there is none that is well formed. */
static size_t utf8_size(const unsigned char *p, size_t left)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : 4;
    if (p[0] >= 0xf5 || (p[0] >= 0x80 && p[0] < 0xc2) || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

static bool is_text(const struct dt_config_scalar *s)
{
    for (size_t i = 0, n; i < s->size; i += n) {
        n = utf8_size((const unsigned char *)s->text + i, s->size - i);
        if (n == 0 || s->text[i] == '\0')
            return false;
    }
    return true;
}

/* directory + "/" + text, without "." parts and doubled slashes; ".." stays, links may hide behind
 * it. */
static char *absolute_path(const char *directory, const char *text, size_t size)
{
    size_t dir = text[0] == '/' ? 0 : strlen(directory), at = 0;
    char *joined = malloc(dir + size + 3), *out = malloc(dir + size + 3);
    if (joined && out) {
        memcpy(joined, directory, dir);
        joined[dir] = '/';
        memcpy(joined + dir + 1, text, size);
        joined[dir + 1 + size] = '\0';
        for (const char *p = joined; *(p += strspn(p, "/")); p += strcspn(p, "/")) {
            size_t n = strcspn(p, "/");
            if (n == 1 && p[0] == '.')
                continue;
            out[at++] = '/';
            memcpy(out + at, p, n);
            at += n;
        }
        if (at == 0)
            out[at++] = '/';
        out[at] = '\0';
    } else {
        free(out);
        out = NULL;
    }
    free(joined);
    return out;
}

static bool read_text(struct dt_config *c, const struct dt_config_key *key, const char *where,
                      const struct dt_config_scalar *s, char **out)
{
    bool path = key->type == DT_CONFIG_PATH || key->type == DT_CONFIG_PATHS;
    char quoted[DT_CONFIG_QUOTE];
    const char *why = NULL;
    if (s->size == 0)
        why = "is empty";
    else if (s->size > DT_CONFIG_MAX_STRING - 1)
        why = "is longer than 4095 bytes";
    else if (!is_text(s))
        why = "is not UTF-8 text without NUL";
    if (why) {
        dt_config_add(c, false, where, "%s: %s %s", key->name,
                      dt_config_quote(quoted, s->text, s->size), why);
        return false;
    }
    *out = path ? absolute_path(c->directory ? c->directory : "", s->text, s->size)
                : strndup(s->text, s->size);
    c->no_memory |= !*out;
    return *out != NULL;
}

static bool read_name(struct dt_config *c, const struct dt_config_key *key, const char *where,
                      const struct dt_config_scalar *s, char **out)
{
    int i;
    if (!read_word(c, key, where, s, &i))
        return false;
    *out = strndup(key->names[i], strcspn(key->names[i], "|"));
    c->no_memory |= !*out;
    return *out != NULL;
}

static bool wrong(struct dt_config *c, const struct dt_config_key *key, const char *where,
                  const struct dt_config_scalar *s)
{
    char quoted[DT_CONFIG_QUOTE], type[512];
    dt_config_type_text(key, type, sizeof type);
    dt_config_add(c, false, where, "%s: found %s%s, expected %s", key->name,
                  s->quoted ? "the string " : "", dt_config_quote(quoted, s->text, s->size), type);
    return false;
}

bool dt_config_scalar_read(struct dt_config *c, const struct dt_config_key *key, const char *where,
                           const struct dt_config_scalar *s, void *out)
{
    bool good = false;
    switch (key->type) {
    case DT_CONFIG_INT:
        good = read_int(s, out) && in_range(key, (double)*(int64_t *)out);
        break;
    case DT_CONFIG_FLOAT:
    case DT_CONFIG_FLOATS:
        good = read_float(s, out) && in_range(key, *(double *)out);
        break;
    case DT_CONFIG_BOOL:
        good = read_bool(s, out);
        break;
    case DT_CONFIG_AMOUNT:
        good = read_amount(s, out);
        break;
    case DT_CONFIG_ENUM:
        return read_word(c, key, where, s, out);
    case DT_CONFIG_STRING:
        return key->names ? read_name(c, key, where, s, out) : read_text(c, key, where, s, out);
    case DT_CONFIG_PATH:
    case DT_CONFIG_STRINGS:
    case DT_CONFIG_PATHS:
    case DT_CONFIG_PATTERNS:
        return read_text(c, key, where, s, out);
    }
    return good || wrong(c, key, where, s);
}

bool dt_config_looks_typed(const char *text)
{
    struct dt_config_scalar s = {text, strlen(text), false};
    bool b;
    double d;
    return dt_config_is_null(&s) || read_bool(&s, &b) || read_float(&s, &d);
}
