/* The life of a configuration being read: values, where each was given, and the list of problems.
 */
#include "base/config.h"

#include "base/config_private.h"
#include "base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What fits the error trail with room for context; further problems are only counted. */
#define MAX_PROBLEM_TEXT 6000

int64_t dt_config_amount_of(struct dt_config_amount a, int64_t total)
{
    return a.share ? (int64_t)llround(a.value * (double)total) : (int64_t)a.value;
}

int dt_config_begin(const struct dt_config_table *table, void *values, struct dt_config **out)
{
    memset(values, 0, table->size);
    struct dt_config *c = calloc(1, sizeof *c);
    char **where = calloc(table->count + 1, sizeof *where);
    char *text = calloc(1, MAX_PROBLEM_TEXT);
    if (!c || !where || !text) {
        free(c);
        free(where);
        free(text);
        return DT_FAIL(DT_E_MEMORY, "no memory to read a configuration");
    }
    c->table = table;
    c->values = values;
    c->where = where;
    c->text = text;
    *out = c;
    return DT_OK;
}

static void add_text(struct dt_config *c, bool unsupported, const char *where, const char *fmt,
                     va_list args)
{
    c->problems++;
    c->unsupported += unsupported;
    char line[1536], words[1024];
    vsnprintf(words, sizeof words, fmt, args);
    /* "--train.steps: train.steps: found ..." need not say it twice. */
    size_t said = where && strncmp(where, "--", 2) == 0 ? strlen(where) - 2 : 0;
    if (!said || strncmp(words, where + 2, said) != 0 || strncmp(words + said, ": ", 2) != 0)
        said = 0;
    else
        said += 2;
    snprintf(line, sizeof line, "%.400s%s%s", where ? where : "", where ? ": " : "", words + said);
    size_t size = strlen(line);
    if (c->text_size + size + 1 >= MAX_PROBLEM_TEXT)
        return;
    memcpy(c->text + c->text_size, line, size);
    c->text_size += size;
    c->text[c->text_size++] = '\n';
}

void dt_config_add(struct dt_config *c, bool unsupported, const char *where, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_text(c, unsupported, where, fmt, args);
    va_end(args);
}

static const char *where_of(const struct dt_config *c, const char *name)
{
    const struct dt_config_key *key = dt_config_find(c->table, name);
    const char *where = key ? c->where[key - c->table->keys] : NULL;
    return where ? where : c->file;
}

void dt_config_problem(struct dt_config *c, const char *key, const char *fmt, ...)
{
    va_list args;
    if (c->unreadable)
        return;
    va_start(args, fmt);
    add_text(c, false, where_of(c, key), fmt, args);
    va_end(args);
}

void dt_config_unsupported(struct dt_config *c, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_text(c, true, where_of(c, key), fmt, args);
    va_end(args);
}

bool dt_config_given(const struct dt_config *c, const char *name)
{
    const struct dt_config_key *key = dt_config_find(c->table, name);
    return key && c->where[key - c->table->keys];
}

bool dt_config_sound(const struct dt_config *c)
{
    return c->problems == 0 && !c->no_memory;
}

void dt_config_defaults(struct dt_config *c)
{
    for (size_t i = 0; i < c->table->count; i++) {
        const struct dt_config_key *key = &c->table->keys[i];
        if (c->where[i])
            continue;
        if (key->required && !c->unreadable)
            dt_config_add(c, false, c->file, "missing key %s (%s): %s", key->name,
                          key->unit ? key->unit : "required", key->doc);
        if (key->fallback)
            dt_config_read_fallback(c, key);
    }
}

/* "one problem", or a heading, every problem on a line of its own, and how many did not fit. */
static int fail_with_problems(const struct dt_config *c)
{
    int code = c->problems == c->unsupported ? DT_E_UNSUPPORTED : DT_E_CONFIG;
    int64_t shown = 0;
    for (const char *p = c->text; (p = strchr(p, '\n')) != NULL; p++)
        shown++;
    if (c->problems == 1)
        return DT_FAIL(code, "%.*s", (int)strcspn(c->text, "\n"), c->text);
    char more[64] = "";
    if (c->problems > shown)
        snprintf(more, sizeof more, "\nand %lld more", (long long)(c->problems - shown));
    return DT_FAIL(code, "%lld problems in the configuration\n%.*s%s", (long long)c->problems,
                   (int)(c->text_size ? c->text_size - 1 : 0), c->text, more);
}

int dt_config_end(struct dt_config *c)
{
    int rc = DT_OK;
    if (c->no_memory)
        rc = DT_FAIL(DT_E_MEMORY, "no memory to read a configuration");
    else if (c->problems)
        rc = fail_with_problems(c);
    for (size_t i = 0; i < c->table->count; i++)
        free(c->where[i]);
    free(c->where);
    free(c->file);
    free(c->directory);
    free(c->text);
    free(c);
    return rc;
}

void *dt_config_slot(const struct dt_config_key *key, void *values)
{
    return (char *)values + key->offset;
}

void dt_config_value_clear(const struct dt_config_key *key, void *values)
{
    void *slot = dt_config_slot(key, values);
    if (dt_config_is_list(key->type) && key->type != DT_CONFIG_FLOATS) {
        struct dt_config_strings *list = slot;
        for (int64_t i = 0; i < list->count; i++)
            free(list->items[i]);
        free(list->items);
        *list = (struct dt_config_strings){0};
    } else if (key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_PATH) {
        free(*(char **)slot);
        *(char **)slot = NULL;
    }
}

void dt_config_clear(const struct dt_config_table *table, void *values)
{
    for (size_t i = 0; i < table->count; i++)
        dt_config_value_clear(&table->keys[i], values);
    memset(values, 0, table->size);
}
