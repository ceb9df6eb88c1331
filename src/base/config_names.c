/* Names: which key is meant, and when none is, what to say about it.
 *
 * A name is compared in one form only: '-' counts as '_'. A synonym is known alone and inside the
 * section of its key. The nearest key is the one with the smallest edit distance (insert, delete,
 * replace, swap neighbours), over whole dotted names, last parts and synonyms. */
#include "base/config_private.h"

#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 96

/* False: too long to be a name of ours. */
static bool normal_form(char out[NAME_MAX_BYTES], const char *name)
{
    size_t size = strlen(name);
    if (size >= NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i <= size; i++)
        out[i] = name[i] == '-' ? '_' : name[i];
    return true;
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* Length of "optimizer." in "optimizer.lr"; 0 without section. */
static size_t section_size(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot ? (size_t)(dot - name) + 1 : 0;
}

/* Step through words separated by spaces: copies the next one, returns what follows it, NULL at the
 * end. */
static const char *next_word(const char *list, char out[NAME_MAX_BYTES])
{
    if (!list)
        return NULL;
    list += strspn(list, " ");
    size_t size = strcspn(list, " ");
    if (size == 0 || size >= NAME_MAX_BYTES)
        return NULL;
    memcpy(out, list, size);
    out[size] = '\0';
    return list + size;
}

static bool is_synonym(const struct dt_config_key *key, const char *name)
{
    char word[NAME_MAX_BYTES];
    size_t section = section_size(key->name);
    for (const char *p = key->synonyms; (p = next_word(p, word)) != NULL;)
        if (strcmp(word, name) == 0 || (section && strncmp(name, key->name, section) == 0 &&
                                        strcmp(name + section, word) == 0))
            return true;
    return false;
}

const struct dt_config_key *dt_config_find(const struct dt_config_table *table, const char *name)
{
    char form[NAME_MAX_BYTES];
    if (!normal_form(form, name))
        return NULL;
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].name, form) == 0)
            return &table->keys[i];
    for (size_t i = 0; i < table->count; i++)
        if (is_synonym(&table->keys[i], form))
            return &table->keys[i];
    return NULL;
}

bool dt_config_is_section(const struct dt_config_table *table, const char *name)
{
    for (const struct dt_config_section *s = table->sections; s && s->name; s++)
        if (strcmp(s->name, name) == 0)
            return true;
    return false;
}

const struct dt_config_word *dt_config_word_find(const struct dt_config_table *table,
                                                 const char *name)
{
    char form[NAME_MAX_BYTES];
    if (!normal_form(form, name))
        return NULL;
    size_t section = section_size(form);
    for (const struct dt_config_word *w = table->words; w && w->name; w++)
        if (strcmp(w->name, form) == 0 || strcmp(w->name, last_part(form)) == 0 ||
            (section && strncmp(w->name, form, section - 1) == 0 && w->name[section - 1] == '\0'))
            return w;
    return NULL;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance with swaps of neighbours (optimal string alignment); both shorter than
 * NAME_MAX_BYTES. */
static int distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_BYTES + 1];
    size_t na = strlen(a), nb = strlen(b);
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *now = rows[i % 3], *before = rows[(i - 1) % 3], *twice = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = least(before[j] + 1, now[j - 1] + 1);
            now[j] = least(now[j], before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], twice[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

/* How far a name may be off: one letter in three, at least one. */
static int reach(const char *name)
{
    int size = (int)strlen(name);
    return size < 6 ? 1 : size / 3;
}

struct nearest {
    const char *name;
    int distance;
};

static void consider(struct nearest *best, const char *meant, const char *given,
                     const char *candidate, int penalty)
{
    int longer = (int)strlen(given) - (int)strlen(candidate), most = reach(candidate);
    if (strlen(candidate) >= NAME_MAX_BYTES || longer > most || longer < -most)
        return; /* too far without looking */
    int d = distance(given, candidate);
    if (d <= most && d + penalty < best->distance)
        *best = (struct nearest){meant, d + penalty};
}

const char *dt_config_nearest(const struct dt_config_table *table, const char *name)
{
    char form[NAME_MAX_BYTES], word[NAME_MAX_BYTES];
    struct nearest best = {NULL, NAME_MAX_BYTES};
    if (!normal_form(form, name))
        return NULL;
    for (size_t i = 0; i < table->count; i++) {
        const struct dt_config_key *key = &table->keys[i];
        consider(&best, key->name, form, key->name, 0);
        consider(&best, key->name, last_part(form), last_part(key->name), 1);
        for (const char *p = key->synonyms; (p = next_word(p, word)) != NULL;)
            consider(&best, key->name, last_part(form), word, 1);
    }
    return best.name;
}

const char *dt_config_nearest_word(const char *const *words, size_t n, const char *name)
{
    struct nearest best = {NULL, NAME_MAX_BYTES};
    if (strlen(name) >= NAME_MAX_BYTES)
        return NULL;
    for (size_t i = 0; i < n; i++)
        consider(&best, words[i], name, words[i], 0);
    return best.name;
}

/* "model, init, ..." for the top (section ""), the keys of one section, or the sections. */
static void list_names(const struct dt_config_table *t, const char *section, char *out, size_t size)
{
    size_t at = 0, n = strlen(section);
    out[0] = '\0';
    for (size_t i = 0; i < t->count && at < size; i++) {
        const char *key = t->keys[i].name;
        size_t in = section_size(key);
        if (n ? in == n + 1 && strncmp(key, section, n) == 0 : in == 0)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", key + in);
    }
    for (const struct dt_config_section *s = t->sections; !n && s && s->name && at < size; s++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", s->name);
}

static void unknown_section(struct dt_config *c, const char *where, const char *name)
{
    const char *sections[64];
    char quoted[DT_CONFIG_QUOTE], names[512];
    size_t n = 0;
    for (const struct dt_config_section *s = c->table->sections; s && s->name && n < 64; s++)
        sections[n++] = s->name;
    const char *near = dt_config_nearest_word(sections, n, name);
    dt_config_quote(quoted, name, strlen(name));
    list_names(c->table, "", names, sizeof names);
    if (near)
        dt_config_add(c, false, where, "unknown section %s; did you mean %s?", quoted, near);
    else
        dt_config_add(c, false, where, "unknown section %s; there are: %s", quoted, names);
}

void dt_config_unknown(struct dt_config *c, const char *where, const char *name, bool section)
{
    char quoted[DT_CONFIG_QUOTE], names[512], head[NAME_MAX_BYTES] = "";
    dt_config_quote(quoted, name, strlen(name));
    const struct dt_config_word *word = dt_config_word_find(c->table, name);
    if (word && word->unsupported) {
        dt_config_add(c, true, where, "%s: %s not built into this version", quoted, word->text);
        return;
    }
    if (word) {
        dt_config_add(c, false, where, "unknown key %s: %s", quoted, word->text);
        return;
    }
    if (section) {
        unknown_section(c, where, name);
        return;
    }
    /* A file of rubbish has its first problems explained, the others counted. */
    const char *near = c->problems < 100 ? dt_config_nearest(c->table, name) : NULL;
    if (near) {
        dt_config_add(c, false, where, "unknown key %s; did you mean %s?", quoted, near);
        return;
    }
    size_t in = section_size(name);
    if (in && in < sizeof head)
        memcpy(head, name, in - 1);
    if (!dt_config_is_section(c->table, head))
        head[0] = '\0';
    list_names(c->table, head, names, sizeof names);
    dt_config_add(c, false, where, "unknown key %s; %s%s: %s", quoted,
                  head[0] ? "keys of section " : "there are", head, names);
}
