/* Going on with a run: which keys differ from those it was started with, and may they?
 *
 * Keys that say where and how fast are free. A key that changes what is trained must be the same,
 * or be confirmed by name; the message lists all of them with both values, so that one look
 * decides. */
#include "base/error.h"
#include "train/run_config.h"

#include <stdlib.h>
#include <string.h>

#define KEYS (dt_run_config_table.keys)

/* Is `key`, or its whole section, among the confirmed ones? */
static bool confirmed(const struct dt_config_key *key, const char *const *allowed, int n)
{
    for (int i = 0; i < n; i++) {
        size_t size = strlen(allowed[i]);
        if (dt_config_find(&dt_run_config_table, allowed[i]) == key ||
            (strncmp(key->name, allowed[i], size) == 0 && key->name[size] == '.'))
            return true;
    }
    return false;
}

/* Every confirmed name is a key or a section. */
static int check_allowed(const char *const *allowed, int n)
{
    for (int i = 0; i < n; i++) {
        bool known = dt_config_find(&dt_run_config_table, allowed[i]) != NULL;
        for (const struct dt_config_section *s = dt_run_config_table.sections; s->name; s++)
            known |= strcmp(s->name, allowed[i]) == 0;
        if (known)
            continue;
        const char *near = dt_config_nearest(&dt_run_config_table, allowed[i]);
        return DT_FAIL(DT_E_USAGE, "--allow-change=%s: no such key%s%s%s", allowed[i],
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    return DT_OK;
}

static bool grown(const struct dt_config_key *key, const struct dt_run_config *old,
                  const struct dt_run_config *now)
{
    int64_t before = *(const int64_t *)((const char *)old + key->offset);
    int64_t after = *(const int64_t *)((const char *)now + key->offset);
    return before > 0 && after > before;
}

/* One line of the message when a key differs and may not; -1: no memory. */
static int compare(FILE *f, const struct dt_config_key *key, const struct dt_run_config *old,
                   const struct dt_run_config *now)
{
    char *before = dt_config_value_text(key, old), *after = dt_config_value_text(key, now);
    int differs = before && after ? strcmp(before, after) != 0 : -1;
    if (differs == 1 && key->change == DT_CONFIG_GROWS && grown(key, old, now))
        differs = 0;
    if (differs == 1)
        fprintf(f, "\n  %s: %swas %.200s, now %.200s (--allow-change=%s)", key->name,
                key->change == DT_CONFIG_GROWS ? "may only grow; " : "",
                before[0] ? before : "not set", after[0] ? after : "not set", key->name);
    free(before);
    free(after);
    return differs;
}

static int list_differences(FILE *f, const struct dt_run_config *old,
                            const struct dt_run_config *now, const char *const *allowed, int n)
{
    int count = 0;
    for (size_t i = 0; i < dt_run_config_table.count; i++) {
        const struct dt_config_key *key = &KEYS[i];
        if (key->change == DT_CONFIG_FREE || confirmed(key, allowed, n))
            continue;
        int differs = compare(f, key, old, now);
        if (differs < 0)
            return DT_FAIL(DT_E_MEMORY, "no memory to compare configurations");
        count += differs;
    }
    return count;
}

int dt_run_config_diff(const char *old_yaml, const struct dt_run_config *now,
                       const char *const *allowed, int n)
{
    struct dt_run_config old;
    char *text = NULL;
    size_t size = 0;
    DT_TRY(check_allowed(allowed, n));
    DT_TRY(dt_run_config_load(old_yaml, NULL, 0, &old));
    FILE *f = open_memstream(&text, &size);
    int rc = f ? list_differences(f, &old, now, allowed, n)
               : DT_FAIL(DT_E_MEMORY, "no memory to compare configurations");
    if (f && fclose(f) != 0 && rc >= 0)
        rc = DT_FAIL(DT_E_MEMORY, "no memory to compare configurations");
    if (rc > 0)
        rc = DT_FAIL(DT_E_CONFIG,
                     "this run was started with other values (%s); go back to them, choose another "
                     "output, or confirm each change:%s",
                     old_yaml, text);
    free(text);
    dt_run_config_free(&old);
    return rc;
}
