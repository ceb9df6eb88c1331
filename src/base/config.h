/* Configuration: one typed table of keys drives everything.
 *
 * The problem: a misspelt key that is silently ignored costs somebody a night of training. The
 * idea: a key exists once, as an entry of a table (name, synonyms, type, default, range, unit,
 * words), and that entry drives reading, checking, `--help`, the documentation page and the printed
 * resolved configuration. A file's problems are collected, all of them, each as "file:line: what
 * was found, what is allowed, the nearest key", and reported as one failure.
 *
 * Values land in a plain C struct of the caller at the entry's offset; what is not given and has no
 * default is 0, NULL or an empty list. Reading never touches anything but the file named.
 *
 *     struct dt_config *c;
 *     DT_TRY(dt_config_begin(&table, &values, &c));
 *     dt_config_read_file(c, "run.yaml");             problems are kept in c
 *     dt_config_read_option(c, "--train.steps", "20");
 *     dt_config_defaults(c);
 *     if (values.a && values.b)
 *         dt_config_problem(c, "a", "only one of a and b may be given");
 *     rc = dt_config_end(c);                          one failure with all problems; frees c
 *     ...
 *     dt_config_clear(&table, &values);               also after a failure
 */
#ifndef DT_BASE_CONFIG_H
#define DT_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct dt_config_strings {
    char **items;
    int64_t count;
};

/* "20" counts (steps, tokens); "0.03" and "3%" are a share of a total known later. */
struct dt_config_amount {
    double value;
    bool share;
};
/* The count that an amount means; a share is rounded to nearest. */
int64_t dt_config_amount_of(struct dt_config_amount a, int64_t total);

enum dt_config_type {
    DT_CONFIG_INT,     /* int64_t */
    DT_CONFIG_FLOAT,   /* double */
    DT_CONFIG_BOOL,    /* bool */
    DT_CONFIG_ENUM,    /* int: index into names */
    DT_CONFIG_STRING,  /* char *; one of names when the entry has names */
    DT_CONFIG_PATH,    /* char *, absolute; relative ones are relative to the file that says them */
    DT_CONFIG_STRINGS, /* struct dt_config_strings; a single string is a list of one */
    DT_CONFIG_PATHS,   /* struct dt_config_strings, each as DT_CONFIG_PATH */
    DT_CONFIG_PATTERNS, /* struct dt_config_strings of shell patterns */
    DT_CONFIG_FLOATS,   /* double[count] */
    DT_CONFIG_AMOUNT,   /* struct dt_config_amount */
};

/* What a changed value means for a run that goes on from a checkpoint. */
enum dt_config_change {
    DT_CONFIG_FREE,  /* may change: where and how fast */
    DT_CONFIG_FIXED, /* changes what is trained: must be confirmed */
    DT_CONFIG_GROWS, /* a larger number is free, a smaller one must be confirmed */
};

struct dt_config_key {
    const char *name; /* "optimizer.lr" or, without section, "seed" */
    const char
        *synonyms; /* separated by spaces, known alone ("learning_rate") and in the key's section */
    enum dt_config_type type;
    size_t offset;        /* of the value in the caller's struct */
    const char *fallback; /* the default as one would write it; NULL: none */
    bool required;        /* must be given */
    double min, max;      /* of numbers, inclusive; both 0: any; DT_CONFIG_MANY: no upper bound */
    bool above_min, below_max; /* the bound itself is excluded */
    const char *const *names;  /* ends with NULL; "bfloat16|bf16": the first spelling is ours */
    int count;                 /* of DT_CONFIG_FLOATS */
    enum dt_config_change change;
    const char *unit;          /* "steps", "tokens"; NULL: none */
    const char *doc;           /* one sentence without a full stop */
    const char *default_words; /* what happens without the key when there is no fallback */
};

/* Names that are no keys but deserve a better answer than "unknown key". "key=value" names one
 * value of a key; other names match alone, as a section, or as the last part of a dotted name. */
struct dt_config_word {
    const char *name;
    bool unsupported; /* DT_E_UNSUPPORTED: `text` "is not built into this version" */
    const char *text; /* else a sentence that says what to write instead */
};

struct dt_config_section {
    const char *name, *doc;
};

struct dt_config_table {
    const struct dt_config_key
        *keys; /* keys of a section stand together; keys without one first or last */
    size_t count;
    const struct dt_config_section *sections; /* ends with name NULL */
    const struct dt_config_word *words;       /* ends with name NULL; may be NULL */
    size_t size;                              /* of the caller's struct */
};

#define DT_CONFIG_MANY 1e15

/* The most bytes a file may have, items a list may hold, and bytes a string may be long. */
#define DT_CONFIG_MAX_BYTES ((size_t)1 << 20)
#define DT_CONFIG_MAX_ITEMS 4096
#define DT_CONFIG_MAX_STRING 4096

struct dt_config;

/* Zeroes the caller's struct. */
int dt_config_begin(const struct dt_config_table *table, void *values, struct dt_config **out);
void dt_config_read_file(struct dt_config *c, const char *path);
/* The same from memory: `name` stands in messages, relative paths are relative to `directory`. */
void dt_config_read_text(struct dt_config *c, const char *name, const char *directory,
                         const void *text, size_t size);
/* From the command line: option "--train.steps" (also "--no-data.shuffle") and its value as YAML,
 * NULL when none was given. Replaces what a file said. Strings and paths are taken as they are,
 * unless quoted. */
void dt_config_read_option(struct dt_config *c, const char *option, const char *value);
/* Fills in what was not given; a missing required key is a problem. */
void dt_config_defaults(struct dt_config *c);
bool dt_config_given(const struct dt_config *c, const char *key); /* not a default */
bool dt_config_sound(const struct dt_config *c);                  /* no problem so far */
/* Add a problem; the place where `key` was given stands before it. Dropped when the file is no
 * YAML. */
void dt_config_problem(struct dt_config *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void dt_config_unsupported(struct dt_config *c, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 0; or DT_E_CONFIG (a file that cannot be read too), DT_E_UNSUPPORTED when nothing else is wrong,
 * DT_E_MEMORY. Frees c, never the values. */
int dt_config_end(struct dt_config *c);

void dt_config_clear(const struct dt_config_table *table, void *values);

/* The entry of a name or synonym as an option or a file would write it ('-' counts as '_'); else
 * NULL. */
const struct dt_config_key *dt_config_find(const struct dt_config_table *table, const char *name);
/* The entry among the words that a name meets; else NULL. */
const struct dt_config_word *dt_config_word_find(const struct dt_config_table *table,
                                                 const char *name);
/* The key nearest to a misspelt name, by edit distance, section included; NULL when nothing is
 * near. */
const char *dt_config_nearest(const struct dt_config_table *table, const char *name);
/* The nearest of `n` words, NULL when nothing is near. */
const char *dt_config_nearest_word(const char *const *words, size_t n, const char *name);

/* YAML that reads back to the same values. */
void dt_config_print(const struct dt_config_table *table, const void *values, FILE *f);
/* One value as dt_config_print writes it; "" when it is not set. The caller frees; NULL: no memory.
 */
char *dt_config_value_text(const struct dt_config_key *key, const void *values);
/* "integer from 1, in tokens", "one of: constant, linear, cosine, wsd" */
void dt_config_type_text(const struct dt_config_key *key, char *out, size_t size);
/* The keys for `--help`, and as a page of documentation in Markdown. */
void dt_config_help(const struct dt_config_table *table, FILE *f);
void dt_config_markdown(const struct dt_config_table *table, FILE *f);

#endif
