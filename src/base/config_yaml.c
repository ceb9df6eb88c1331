/* YAML: a file, an option's value and a default all become nodes of libyaml, read by the table.
 *
 * libyaml builds the document (anchors are links there, so nothing is ever multiplied out) and we
 * walk it by the table: sections, keys, lists of scalars, never deeper. That bounds the work
 * whatever the bytes are; the size of a file, of a section and of a list is bounded too. */
#include "base/config_private.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

/* Pairs of one section or of the top that are looked at. */
#define MAX_PAIRS 1024

struct reader {
    struct dt_config *c;
    yaml_document_t document;
    const char *name; /* "run.yaml" or "--train.steps" */
};

static yaml_node_t *node_at(struct reader *r, int index)
{
    return yaml_document_get_node(&r->document, index);
}

static struct dt_config_scalar scalar_of(const yaml_node_t *n)
{
    return (struct dt_config_scalar){(const char *)n->data.scalar.value, n->data.scalar.length,
                                     n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE};
}

/* "run.yaml:3"; an option has no lines. */
static void place(const struct reader *r, const yaml_node_t *n, char *out, size_t size)
{
    if (r->c->option)
        snprintf(out, size, "%s", r->name);
    else
        snprintf(out, size, "%s:%zu", r->name, n->start_mark.line + 1);
}

static const char *kind(const yaml_node_t *n)
{
    return n->type == YAML_MAPPING_NODE ? "a mapping" : "a list";
}

static void expected(struct reader *r, const struct dt_config_key *key, const char *where,
                     const char *found)
{
    char type[512];
    dt_config_type_text(key, type, sizeof type);
    dt_config_add(r->c, false, where, "%s: found %s, expected %s", key->name, found, type);
}

/* One item of a list: no null, no nesting. */
static bool read_item(struct reader *r, const struct dt_config_key *key, yaml_node_t *n, void *out)
{
    char where[DT_CONFIG_MAX_STRING];
    place(r, n, where, sizeof where);
    if (n->type != YAML_SCALAR_NODE) {
        expected(r, key, where,
                 n->type == YAML_MAPPING_NODE ? "a mapping in the list" : "a list in the list");
        return false;
    }
    struct dt_config_scalar s = scalar_of(n);
    if (dt_config_is_null(&s)) {
        expected(r, key, where, "an empty item");
        return false;
    }
    return dt_config_scalar_read(r->c, key, where, &s, out);
}

static void read_floats(struct reader *r, const struct dt_config_key *key, const char *where,
                        yaml_node_item_t *items, int64_t count)
{
    double *out = dt_config_slot(key, r->c->values);
    char found[48];
    if (count != key->count) {
        snprintf(found, sizeof found, "a list of %lld", (long long)count);
        expected(r, key, where, found);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        if (!read_item(r, key, node_at(r, items[i]), &out[i]))
            return;
}

static void read_strings(struct reader *r, const struct dt_config_key *key, const char *where,
                         yaml_node_item_t *items, int64_t count)
{
    struct dt_config_strings *out = dt_config_slot(key, r->c->values);
    dt_config_value_clear(key, r->c->values);
    if (count > DT_CONFIG_MAX_ITEMS) {
        dt_config_add(r->c, false, where, "%s: found a list of %lld, at most %d are allowed",
                      key->name, (long long)count, DT_CONFIG_MAX_ITEMS);
        return;
    }
    if (count == 0 && key->required) {
        expected(r, key, where, "an empty list");
        return;
    }
    out->items = calloc((size_t)count + 1, sizeof *out->items);
    if (!out->items) {
        r->c->no_memory = true;
        return;
    }
    for (int64_t i = 0; i < count; i++)
        if (read_item(r, key, node_at(r, items[i]), &out->items[out->count]))
            out->count++;
}

static void read_list(struct reader *r, const struct dt_config_key *key, const char *where,
                      yaml_node_t *n)
{
    yaml_node_item_t single = 0, *items = NULL;
    int64_t count = 1;
    if (n->type == YAML_SEQUENCE_NODE) {
        items = n->data.sequence.items.start;
        count = n->data.sequence.items.top - items;
    } else if (n->type == YAML_SCALAR_NODE && key->type != DT_CONFIG_FLOATS) {
        single = (yaml_node_item_t)(n - r->document.nodes.start) + 1;
        items = &single;
    } else {
        expected(r, key, where, n->type == YAML_SCALAR_NODE ? "a single value" : kind(n));
        return;
    }
    if (key->type == DT_CONFIG_FLOATS)
        read_floats(r, key, where, items, count);
    else
        read_strings(r, key, where, items, count);
}

/* "train.dtype=fp8" may stand among the words. */
static bool refused_value(struct reader *r, const struct dt_config_key *key, const char *where,
                          const struct dt_config_scalar *s)
{
    size_t n = strlen(key->name);
    for (const struct dt_config_word *w = r->c->table->words; w && w->name; w++) {
        if (strncmp(w->name, key->name, n) != 0 || w->name[n] != '=' ||
            strlen(w->name + n + 1) != s->size || memcmp(w->name + n + 1, s->text, s->size) != 0)
            continue;
        dt_config_add(r->c, w->unsupported, where, "%s: %s: %s%s", key->name, w->name + n + 1,
                      w->text, w->unsupported ? " not built into this version" : "");
        return true;
    }
    return false;
}

static void read_value(struct reader *r, const struct dt_config_key *key, const char *where,
                       yaml_node_t *n)
{
    struct dt_config_scalar s = {"", 0, false};
    if (n->type == YAML_SCALAR_NODE)
        s = scalar_of(n);
    if (n->type == YAML_SCALAR_NODE && dt_config_is_null(&s)) {
        expected(r, key, where, "no value");
        return;
    }
    if (dt_config_is_list(key->type)) {
        read_list(r, key, where, n);
        return;
    }
    if (n->type != YAML_SCALAR_NODE) {
        expected(r, key, where, kind(n));
        return;
    }
    if (refused_value(r, key, where, &s))
        return;
    dt_config_value_clear(key, r->c->values);
    dt_config_scalar_read(r->c, key, where, &s, dt_config_slot(key, r->c->values));
}

/* Remember where the key was given and read its value. */
static void give(struct reader *r, const struct dt_config_key *key, const char *name,
                 const char *where, yaml_node_t *n)
{
    char **known = &r->c->where[key - r->c->table->keys];
    if (*known && !r->c->option) {
        dt_config_add(r->c, false, where, "%s is given twice, first at %s", key->name, *known);
        return;
    }
    if (strcmp(name, key->name) != 0)
        dt_info("%s: %s is read as %s", where, name, key->name);
    free(*known);
    *known = strdup(where);
    r->c->no_memory |= !*known;
    read_value(r, key, where, n);
}

/* A key as text; false: not a name, a problem was added. */
static bool key_text(struct reader *r, const yaml_node_t *n, const char *where, char out[256])
{
    char quoted[DT_CONFIG_QUOTE];
    if (n->type != YAML_SCALAR_NODE) {
        dt_config_add(r->c, false, where, "found %s where the name of a key is expected", kind(n));
        return false;
    }
    const char *text = (const char *)n->data.scalar.value;
    size_t size = n->data.scalar.length;
    if (size == 0 || size > 100 || memchr(text, '\0', size)) {
        dt_config_add(r->c, false, where, "unknown key %s", dt_config_quote(quoted, text, size));
        return false;
    }
    if (size == 2 && memcmp(text, "<<", 2) == 0) {
        dt_config_add(r->c, false, where, "merge keys (<<) are not supported; write the keys out");
        return false;
    }
    memcpy(out, text, size);
    out[size] = '\0';
    return true;
}

static void read_section(struct reader *r, const char *section, const char *where, yaml_node_t *n);

static void read_pair(struct reader *r, const char *section, yaml_node_t *key_node,
                      yaml_node_t *value)
{
    char where[DT_CONFIG_MAX_STRING], part[256], name[600];
    place(r, key_node, where, sizeof where);
    if (!key_text(r, key_node, where, part))
        return;
    snprintf(name, sizeof name, "%s%s%s", section, section[0] ? "." : "", part);
    if (!section[0] && dt_config_is_section(r->c->table, part)) {
        read_section(r, part, where, value);
        return;
    }
    const struct dt_config_key *key = dt_config_find(r->c->table, name);
    if (key)
        give(r, key, name, where, value);
    else
        dt_config_unknown(r->c, where, name, !section[0] && value->type == YAML_MAPPING_NODE);
}

/* The pairs of the top (section "") or of a section. A section without anything in it is fine. */
static void read_section(struct reader *r, const char *section, const char *where, yaml_node_t *n)
{
    if (n->type == YAML_SCALAR_NODE) {
        struct dt_config_scalar s = scalar_of(n);
        if (section[0] && dt_config_is_null(&s))
            return;
    }
    if (n->type != YAML_MAPPING_NODE) {
        char quoted[DT_CONFIG_QUOTE];
        const char *found =
            n->type == YAML_SCALAR_NODE
                ? dt_config_quote(quoted, (const char *)n->data.scalar.value, n->data.scalar.length)
                : "a list";
        dt_config_add(r->c, false, where, "found %s, expected %s%s with keys and values", found,
                      section[0] ? "section " : "a mapping", section);
        return;
    }
    yaml_node_pair_t *pair = n->data.mapping.pairs.start, *top = n->data.mapping.pairs.top;
    if (top - pair > MAX_PAIRS) {
        dt_config_add(r->c, false, where, "found %lld keys, at most %d are read",
                      (long long)(top - pair), MAX_PAIRS);
        return;
    }
    for (; pair < top; pair++)
        read_pair(r, section, node_at(r, pair->key), node_at(r, pair->value));
}

/* libyaml's words with the line. Its reader's errors know an offset only. */
static void parser_problem(struct reader *r, const yaml_parser_t *p, const char *text, size_t size)
{
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_READER_ERROR) {
        line = 1;
        for (size_t i = 0; i < p->problem_offset && i < size; i++)
            line += text[i] == '\n';
    }
    if (p->error == YAML_MEMORY_ERROR)
        r->c->no_memory = true;
    const char *problem = p->problem ? p->problem : "cannot be read";
    if (r->c->option)
        dt_config_add(r->c, false, r->name, "bad YAML: %s", problem);
    else if (p->context)
        dt_config_add(r->c, false, NULL, "%s:%zu: bad YAML: %s %s that starts in line %zu", r->name,
                      line, problem, p->context, p->context_mark.line + 1);
    else
        dt_config_add(r->c, false, NULL, "%s:%zu: bad YAML: %s", r->name, line, problem);
}

/* The one document of `text` in r->document; false: a problem was added. */
static bool load(struct reader *r, const char *text, size_t size)
{
    yaml_parser_t parser;
    yaml_document_t second;
    bool good = false;
    if (!yaml_parser_initialize(&parser)) {
        r->c->no_memory = true;
        return false;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    if (!yaml_parser_load(&parser, &r->document)) {
        parser_problem(r, &parser, text, size);
        yaml_parser_delete(&parser);
        return false;
    }
    if (!yaml_document_get_root_node(&r->document)) {
        dt_config_add(r->c, false, r->name, "is empty");
    } else if (!yaml_parser_load(&parser, &second)) {
        parser_problem(r, &parser, text, size);
    } else {
        good = !yaml_document_get_root_node(&second);
        if (!good)
            dt_config_add(r->c, false, r->name, "holds more than one YAML document (---)");
        yaml_document_delete(&second);
    }
    if (!good)
        yaml_document_delete(&r->document);
    yaml_parser_delete(&parser);
    return good;
}

static void set_directory(struct dt_config *c, const char *directory)
{
    char here[DT_PATH] = "";
    free(c->directory);
    c->directory = NULL;
    if (directory[0] != '/' && !getcwd(here, sizeof here))
        dt_config_add(c, false, NULL, "the current directory has no name; give an absolute path");
    if (asprintf(&c->directory, "%s/%s", here, directory) < 0) {
        c->directory = NULL;
        c->no_memory = true;
    }
}

void dt_config_read_text(struct dt_config *c, const char *name, const char *directory,
                         const void *text, size_t size)
{
    struct reader r = {.c = c, .name = name};
    free(c->file);
    c->file = strdup(name);
    c->no_memory |= !c->file;
    c->option = false;
    set_directory(c, directory);
    if (size > DT_CONFIG_MAX_BYTES) {
        dt_config_add(c, false, name, "has %zu bytes, at most %zu are read", size,
                      DT_CONFIG_MAX_BYTES);
        c->unreadable = true;
        return;
    }
    if (c->no_memory || !load(&r, text, size)) {
        c->unreadable = true;
        return;
    }
    read_section(&r, "", name, yaml_document_get_root_node(&r.document));
    yaml_document_delete(&r.document);
}

void dt_config_read_file(struct dt_config *c, const char *path)
{
    char directory[DT_PATH], *text;
    size_t size;
    if (dt_path_dirname(directory, path) < 0 ||
        dt_file_read(path, DT_CONFIG_MAX_BYTES, &text, &size) < 0) {
        dt_config_add(c, false, NULL, "%s", dt_error_message());
        c->unreadable = true;
        return;
    }
    dt_config_read_text(c, path, directory, text, size);
    free(text);
}

/* Is the value YAML, or the text itself? Texts are themselves unless quoted; lists of them in
 * brackets. */
static bool value_is_yaml(const struct dt_config_key *key, const char *value)
{
    if (!dt_config_is_text(key->type))
        return true;
    return value[0] == '"' || value[0] == '\'' || (value[0] == '[' && dt_config_is_list(key->type));
}

static void give_text(struct reader *r, const struct dt_config_key *key, const char *name,
                      const char *value)
{
    size_t size = strlen(value);
    if (value_is_yaml(key, value)) {
        if (!load(r, value, size))
            return;
    } else {
        if (!yaml_document_initialize(&r->document, NULL, NULL, NULL, 1, 1)) {
            r->c->no_memory = true;
            return;
        }
        if (!yaml_document_add_scalar(&r->document, NULL, (const yaml_char_t *)value, (int)size,
                                      YAML_DOUBLE_QUOTED_SCALAR_STYLE)) {
            dt_config_add(r->c, false, r->name, "%s: not UTF-8 text", key->name);
            yaml_document_delete(&r->document);
            return;
        }
    }
    give(r, key, name, r->name, yaml_document_get_root_node(&r->document));
    yaml_document_delete(&r->document);
}

void dt_config_read_option(struct dt_config *c, const char *option, const char *value)
{
    const char *name = option + strspn(option, "-");
    struct reader r = {.c = c, .name = option};
    c->option = true;
    set_directory(c, ".");
    const struct dt_config_key *key = dt_config_find(c->table, name);
    if (!key && strncmp(name, "no-", 3) == 0 && !value) {
        key = dt_config_find(c->table, name + 3);
        if (key && key->type != DT_CONFIG_BOOL) {
            dt_config_add(c, false, option, "%s is not true or false", key->name);
            return;
        }
        name = key ? name + 3 : name;
        value = "false";
    }
    if (!key)
        dt_config_unknown(c, option, name, dt_config_is_section(c->table, name));
    else if (!value && key->type != DT_CONFIG_BOOL)
        expected(&r, key, option, "no value");
    else if (value && strlen(value) > DT_CONFIG_MAX_BYTES)
        expected(&r, key, option, "more than a megabyte");
    else
        give_text(&r, key, name, value ? value : "true");
}

void dt_config_read_fallback(struct dt_config *c, const struct dt_config_key *key)
{
    struct reader r = {.c = c, .name = key->name};
    struct dt_config_scalar s = {key->fallback, strlen(key->fallback), false};
    char **where = &c->where[key - c->table->keys];
    if (strcmp(key->fallback, "[]") == 0)
        return; /* as it is */
    if (!dt_config_is_list(key->type)) {
        dt_config_scalar_read(c, key, key->name, &s, dt_config_slot(key, c->values));
        return;
    }
    c->option = true;
    give_text(&r, key, key->name, key->fallback);
    free(*where); /* a default does not count as given */
    *where = NULL;
}
