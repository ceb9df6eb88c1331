/* Writing: the resolved configuration as YAML, the help text and the page of documentation. */
#include "base/config_private.h"

#include <stdlib.h>
#include <string.h>

static void put_character(FILE *f, const unsigned char *p, size_t n)
{
    unsigned long code = n == 1 ? p[0] : p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (p[i] & 0x3fu);
    /* What YAML calls printable, without its line breaks (U+0085, U+2028, U+2029) and the mark
     * U+FEFF. */
    bool plain = (code >= 0x20 && code < 0x7f) || (code >= 0xa0 && code < 0xd800) ||
                 (code >= 0xe000 && code < 0xfffe) || code >= 0x10000;
    if (code == 0x2028 || code == 0x2029 || code == 0xfeff)
        plain = false;
    if (code == '"' || code == '\\')
        fprintf(f, "\\%c", (char)code);
    else if (plain)
        fwrite(p, 1, n, f);
    else
        fprintf(f, code < 0x100 ? "\\x%02lX" : "\\u%04lX", code);
}

/* Plain when nobody can misread it, else in double quotes. The text is valid UTF-8. */
static void put_string(FILE *f, const char *s)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    size_t size = strlen(s);
    if (size && strspn(s, safe) == size && !strchr("+-", s[0]) && !dt_config_looks_typed(s)) {
        fputs(s, f);
        return;
    }
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
        put_character(f, p, n);
        p += n;
    }
    fputc('"', f);
}

/* The shortest of 15, 16 or 17 digits that reads back to the same bits. */
static void number_text(char out[40], double v)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
}

static void put_amount(FILE *f, const struct dt_config_amount *a)
{
    char text[40];
    number_text(text, a->value);
    if (!a->share)
        fprintf(f, "%lld", (long long)a->value);
    else
        fprintf(f, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

static void put_list(FILE *f, const struct dt_config_key *key, const void *slot)
{
    const struct dt_config_strings *list = slot;
    const double *numbers = slot;
    char text[40];
    int64_t count = key->type == DT_CONFIG_FLOATS ? key->count : list->count;
    fputc('[', f);
    for (int64_t i = 0; i < count; i++) {
        fputs(i ? ", " : "", f);
        if (key->type == DT_CONFIG_FLOATS) {
            number_text(text, numbers[i]);
            fputs(text, f);
        } else {
            put_string(f, list->items[i]);
        }
    }
    fputc(']', f);
}

/* Without a default, zero and nothing mean that the key was not given. */
static bool is_set(const struct dt_config_key *key, const void *slot)
{
    switch (key->type) {
    case DT_CONFIG_INT:
        return key->fallback || *(const int64_t *)slot != 0;
    case DT_CONFIG_FLOAT:
        return key->fallback || *(const double *)slot != 0;
    case DT_CONFIG_STRING:
    case DT_CONFIG_PATH:
        return *(char *const *)slot != NULL;
    case DT_CONFIG_STRINGS:
    case DT_CONFIG_PATHS:
    case DT_CONFIG_PATTERNS:
        return ((const struct dt_config_strings *)slot)->count > 0;
    case DT_CONFIG_BOOL:
    case DT_CONFIG_ENUM:
    case DT_CONFIG_FLOATS:
    case DT_CONFIG_AMOUNT:
        break;
    }
    return true;
}

static void put_value(FILE *f, const struct dt_config_key *key, const void *slot)
{
    char text[40];
    switch (key->type) {
    case DT_CONFIG_INT:
        fprintf(f, "%lld", (long long)*(const int64_t *)slot);
        break;
    case DT_CONFIG_FLOAT:
        number_text(text, *(const double *)slot);
        fputs(text, f);
        break;
    case DT_CONFIG_BOOL:
        fputs(*(const bool *)slot ? "true" : "false", f);
        break;
    case DT_CONFIG_ENUM: {
        const char *name = key->names[*(const int *)slot];
        fprintf(f, "%.*s", (int)strcspn(name, "|"), name);
        break;
    }
    case DT_CONFIG_STRING:
    case DT_CONFIG_PATH:
        put_string(f, *(char *const *)slot);
        break;
    case DT_CONFIG_AMOUNT:
        put_amount(f, slot);
        break;
    case DT_CONFIG_STRINGS:
    case DT_CONFIG_PATHS:
    case DT_CONFIG_PATTERNS:
    case DT_CONFIG_FLOATS:
        put_list(f, key, slot);
        break;
    }
}

static const void *slot_of(const struct dt_config_key *key, const void *values)
{
    return (const char *)values + key->offset;
}

/* The section's name and length of the key, 0 for a key at the top. */
static size_t section_of(const struct dt_config_key *key)
{
    const char *dot = strchr(key->name, '.');
    return dot ? (size_t)(dot - key->name) : 0;
}

static bool same_section(const struct dt_config_key *a, const struct dt_config_key *b)
{
    size_t n = section_of(a);
    return n == section_of(b) && strncmp(a->name, b->name, n) == 0;
}

void dt_config_print(const struct dt_config_table *table, const void *values, FILE *f)
{
    const struct dt_config_key *open = NULL; /* a key of the section whose heading stands */
    for (size_t i = 0; i < table->count; i++) {
        const struct dt_config_key *key = &table->keys[i];
        size_t n = section_of(key);
        if (!is_set(key, slot_of(key, values)))
            continue;
        if (n && !(open && same_section(open, key)))
            fprintf(f, "%.*s:\n", (int)n, key->name);
        open = n ? key : NULL;
        fprintf(f, "%s%s: ", n ? "  " : "", key->name + n + (n > 0));
        put_value(f, key, slot_of(key, values));
        fputc('\n', f);
    }
}

char *dt_config_value_text(const struct dt_config_key *key, const void *values)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    if (is_set(key, slot_of(key, values)))
        put_value(f, key, slot_of(key, values));
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* " from 0 below 1" */
static void put_range(FILE *f, const struct dt_config_key *key)
{
    if (key->min == 0 && key->max == 0)
        return;
    fprintf(f, " %s %.15g", key->above_min ? "above" : "from", key->min);
    if (key->max < DT_CONFIG_MANY)
        fprintf(f, " %s %.15g", key->below_max ? "below" : "to", key->max);
}

static void put_type(FILE *f, const struct dt_config_key *key)
{
    static const char *const words[] = {
        [DT_CONFIG_INT] = "an integer",
        [DT_CONFIG_FLOAT] = "a number",
        [DT_CONFIG_BOOL] = "true or false",
        [DT_CONFIG_ENUM] = "one of: ",
        [DT_CONFIG_STRING] = "a string",
        [DT_CONFIG_PATH] = "a path",
        [DT_CONFIG_STRINGS] = "a list of strings",
        [DT_CONFIG_PATHS] = "a list of paths",
        [DT_CONFIG_PATTERNS] = "a list of patterns",
        [DT_CONFIG_FLOATS] = "a list of ",
        [DT_CONFIG_AMOUNT] = "a number of ",
    };
    if (key->names) {
        fputs("one of: ", f);
        for (int i = 0; key->names[i]; i++)
            fprintf(f, "%s%.*s", i ? ", " : "", (int)strcspn(key->names[i], "|"), key->names[i]);
        return;
    }
    fputs(words[key->type], f);
    if (key->type == DT_CONFIG_FLOATS)
        fprintf(f, "%d numbers", key->count);
    if (key->type == DT_CONFIG_AMOUNT)
        fprintf(f, "%s (20) or a share (0.03, 3%%)", key->unit ? key->unit : "units");
    put_range(f, key);
}

void dt_config_type_text(const struct dt_config_key *key, char *out, size_t size)
{
    out[0] = '\0';
    FILE *f = fmemopen(out, size, "w");
    if (!f)
        return;
    put_type(f, key);
    fclose(f);
    out[size - 1] = '\0';
}

static const char *default_of(const struct dt_config_key *key)
{
    return key->fallback ? key->fallback : key->default_words ? key->default_words : "";
}

static const char *doc_of_section(const struct dt_config_table *table,
                                  const struct dt_config_key *key)
{
    size_t n = section_of(key);
    for (const struct dt_config_section *s = table->sections; n && s && s->name; s++)
        if (strlen(s->name) == n && strncmp(s->name, key->name, n) == 0)
            return s->doc;
    return NULL;
}

void dt_config_help(const struct dt_config_table *table, FILE *f)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct dt_config_key *key = &table->keys[i];
        const char *fallback = default_of(key);
        fprintf(f, "  --%s=VALUE\n      %s: ", key->name, key->doc);
        put_type(f, key);
        if (key->unit && key->type != DT_CONFIG_AMOUNT)
            fprintf(f, ", in %s", key->unit);
        if (key->required)
            fputs(" (required)", f);
        else if (fallback[0])
            fprintf(f, " (default: %s)", fallback);
        fputc('\n', f);
    }
}

/* A cell of a table: '|' would end it. */
static void put_cell(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', f);
        fputc(*text, f);
    }
}

static void put_row(FILE *f, const struct dt_config_key *key)
{
    char type[512];
    dt_config_type_text(key, type, sizeof type);
    fprintf(f, "| `%s` | %s%s%s | ", key->name, type,
            key->unit && key->type != DT_CONFIG_AMOUNT ? ", in " : "",
            key->unit && key->type != DT_CONFIG_AMOUNT ? key->unit : "");
    if (key->required)
        fputs("required", f);
    else if (key->fallback)
        fprintf(f, "`%s`", key->fallback);
    else
        put_cell(f, default_of(key));
    fputs(" | ", f);
    put_cell(f, key->doc);
    if (key->synonyms) {
        fputs("; also read as ", f);
        for (const char *p = key->synonyms; *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            fprintf(f, "%s`%.*s`", p == key->synonyms ? "" : ", ", (int)n, p);
            p += n;
        }
    }
    static const char *const change[] = {
        [DT_CONFIG_FREE] = "free", [DT_CONFIG_FIXED] = "confirm", [DT_CONFIG_GROWS] = "may grow"};
    fprintf(f, " | %s |\n", change[key->change]);
}

void dt_config_markdown(const struct dt_config_table *table, FILE *f)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct dt_config_key *key = &table->keys[i];
        if (i == 0 || !same_section(key, &table->keys[i - 1])) {
            const char *doc = doc_of_section(table, key);
            size_t n = section_of(key);
            if (n)
                fprintf(f, "\n## %.*s\n\n%s.\n", (int)n, key->name, doc ? doc : "");
            else
                fputs("\n## Keys without a section\n", f);
            fputs("\n| key | value | default | meaning | on resume |\n|---|---|---|---|---|\n", f);
        }
        put_row(f, key);
    }
    fputs("\n## Refused by name\n\nThese belong to other programs or to later versions; each is "
          "answered with what to write instead.\n\n| name | answer |\n|---|---|\n",
          f);
    for (const struct dt_config_word *w = table->words; w && w->name; w++) {
        fprintf(f, "| `%s` | ", w->name);
        put_cell(f, w->text);
        fprintf(f, "%s |\n", w->unsupported ? " not built into this version" : "");
    }
}
