/* What the files of the configuration engine share: config.c keeps values and problems,
 * config_names.c knows names, config_value.c turns scalars into values, config_yaml.c reads YAML,
 * config_print.c writes. */
#ifndef DT_BASE_CONFIG_PRIVATE_H
#define DT_BASE_CONFIG_PRIVATE_H

#include "base/config.h"

struct dt_config {
    const struct dt_config_table *table;
    void *values;
    char **where;    /* [table->count] "run.yaml:3", "--train.steps"; NULL: not given */
    char *file;      /* the file's name in messages; NULL before one was read */
    char *directory; /* absolute; for relative paths of what is being read */
    char *text;      /* the problems, one a line */
    size_t text_size;
    int64_t problems, unsupported;
    bool no_memory;
    bool unreadable; /* no document to speak of: what is missing from it need not be said */
    bool option;     /* reading the command line: later values replace earlier ones */
};

struct dt_config_scalar {
    const char *text;
    size_t size;
    bool quoted;
};

/* Add a problem at a place; `unsupported` ones alone make DT_E_UNSUPPORTED. */
void dt_config_add(struct dt_config *c, bool unsupported, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Up to 60 bytes of a text between quotes, unprintable ones as '?'. */
#define DT_CONFIG_QUOTE 80
const char *dt_config_quote(char out[DT_CONFIG_QUOTE], const char *text, size_t size);

/* Where a key's value stands in the caller's struct. */
void *dt_config_slot(const struct dt_config_key *key, void *values);
void dt_config_value_clear(const struct dt_config_key *key, void *values);

/* Is this plain scalar YAML's null? */
bool dt_config_is_null(const struct dt_config_scalar *s);
/* Read one scalar as (an item of) the key's type into `out`: int64_t, double, bool, int, char * or
 * struct dt_config_amount. False: a problem was added. */
bool dt_config_scalar_read(struct dt_config *c, const struct dt_config_key *key, const char *where,
                           const struct dt_config_scalar *s, void *out);
bool dt_config_is_list(enum dt_config_type type);
bool dt_config_is_text(enum dt_config_type type); /* strings and paths, alone or in lists */
/* Is the plain text something that YAML or this engine reads as anything but a string? */
bool dt_config_looks_typed(const char *text);

/* The default of a key, from its text. */
void dt_config_read_fallback(struct dt_config *c, const struct dt_config_key *key);

/* config_names.c */
bool dt_config_is_section(const struct dt_config_table *table, const char *name);
void dt_config_unknown(struct dt_config *c, const char *where, const char *name, bool section);

#endif
