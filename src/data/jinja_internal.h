/* Tokens, values and the machine of jinja*.c. */
#ifndef DT_DATA_JINJA_INTERNAL_H
#define DT_DATA_JINJA_INTERNAL_H

#include "data/jinja.h"

enum jinja_token_kind {
    JT_TEXT,  /* between tags */
    JT_PRINT, /* {{ */
    JT_BLOCK, /* {% */
    JT_CLOSE, /* }} or %} */
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_OP, /* one or two characters */
    JT_END
};

struct jinja_token {
    enum jinja_token_kind kind;
    struct dt_slice s;
    int64_t value;
    int line;
};

enum jinja_type { JV_UNDEFINED, JV_NONE, JV_BOOL, JV_INT, JV_STRING, JV_LIST, JV_DICT };

struct jinja_value {
    enum jinja_type type;
    int64_t i; /* bool, int; number of items of a list */
    struct dt_slice s;
    const struct jinja_value *items; /* [i] */
    struct jinja_dict *dict;
};

struct jinja_pair {
    struct dt_slice name;
    struct jinja_value value;
};

struct jinja_dict {
    struct jinja_pair *pairs;
    int64_t n, room;
};

enum { JINJA_MAX_TOKENS = 1 << 16, JINJA_MAX_STEPS = 1 << 20, JINJA_MAX_DEPTH = 100 };
#define JINJA_MAX_MEMORY ((size_t)16 << 20)

struct jinja {
    struct jinja_token *tokens;
    int64_t token_count, at;
    struct jinja_dict variables; /* a stack: loops pop what they pushed */
    int64_t scope;               /* where the innermost loop's variables begin */
    struct jinja_chunk *chunks;  /* memory; all freed at the end */
    size_t memory;
    int64_t steps;
    int depth;
    bool raised;
    struct dt_text *out;
};

/* ---- jinja_lex.c ---- */
int dt_jinja_lex(struct jinja *j, const char *source, size_t bytes);
int dt_jinja_alloc(struct jinja *j, size_t bytes, void *out);
void dt_jinja_free(struct jinja *j);
int dt_jinja_unsupported(const struct jinja *j, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static inline const struct jinja_token *dt_jinja_peek(const struct jinja *j)
{
    return &j->tokens[j->at];
}
bool dt_jinja_is(const struct jinja *j, enum jinja_token_kind kind, const char *text);
bool dt_jinja_accept(struct jinja *j, enum jinja_token_kind kind, const char *text);
int dt_jinja_expect(struct jinja *j, enum jinja_token_kind kind, const char *text);

/* ---- jinja_value.c ---- */
struct jinja_value dt_jinja_bool(bool b);
struct jinja_value dt_jinja_int(int64_t i);
struct jinja_value dt_jinja_string(struct dt_slice s);
struct jinja_value dt_jinja_cstring(const char *s);
bool dt_jinja_truth(const struct jinja_value *v);
bool dt_jinja_equal(const struct jinja_value *a, const struct jinja_value *b);
struct jinja_value *dt_jinja_find(const struct jinja_dict *d, struct dt_slice name);
int dt_jinja_put(struct jinja *j, struct jinja_dict *d, struct dt_slice name,
                 const struct jinja_value *v); /* at the end, also when the name is there */
int dt_jinja_concat(struct jinja *j, struct dt_slice a, struct dt_slice b, struct jinja_value *out);
int dt_jinja_slice(struct jinja *j, const struct jinja_value *v, const struct jinja_value bounds[3],
                   struct jinja_value *out);
int dt_jinja_method(struct jinja *j, const struct jinja_value *self, struct dt_slice name,
                    const struct jinja_value *args, int count, struct jinja_value *out);
int dt_jinja_filter(struct jinja *j, const struct jinja_value *self, struct dt_slice name,
                    const struct jinja_value *args, int count, struct jinja_value *out);
int dt_jinja_test(struct jinja *j, const struct jinja_value *self, struct dt_slice name, bool *out);
bool dt_jinja_same(struct dt_slice s, const char *text);

/* ---- jinja_expr.c: parses always, evaluates when `live` ---- */
int dt_jinja_expression(struct jinja *j, bool live, struct jinja_value *out);

#endif
