/* Expressions, by recursive descent in Jinja's order of precedence.
 *
 * What is not `live` (the other branch of an if, what `and` need not look at) is parsed but not
 * evaluated, so a template may mention things there that we do not know. */
#include "base/error.h"
#include "data/jinja_internal.h"

#include <string.h>

static int parse_ternary(struct jinja *j, bool live, struct jinja_value *out);
static int parse_unary(struct jinja *j, bool live, struct jinja_value *out);

enum { MOST_ARGUMENTS = 8 };

struct arguments {
    struct jinja_value values[MOST_ARGUMENTS];
    struct dt_slice names[MOST_ARGUMENTS]; /* n 0: positional */
    int count;
};

/* After "(": values and name=value, up to and including ")". */
static int parse_arguments(struct jinja *j, bool live, struct arguments *a)
{
    a->count = 0;
    while (!dt_jinja_accept(j, JT_OP, ")")) {
        if (a->count == MOST_ARGUMENTS)
            return dt_jinja_unsupported(j, "more than %d arguments", MOST_ARGUMENTS);
        if (a->count)
            DT_TRY(dt_jinja_expect(j, JT_OP, ","));
        struct dt_slice name = {0};
        if (dt_jinja_is(j, JT_NAME, NULL) && j->tokens[j->at + 1].kind == JT_OP &&
            dt_jinja_same(j->tokens[j->at + 1].s, "=")) {
            name = dt_jinja_peek(j)->s;
            j->at += 2;
        }
        a->names[a->count] = name;
        DT_TRY(parse_ternary(j, live, &a->values[a->count]));
        a->count++;
    }
    return DT_OK;
}

static int call_function(struct jinja *j, struct dt_slice name, const struct arguments *a,
                         struct jinja_value *out)
{
    if (dt_jinja_same(name, "raise_exception")) {
        j->raised = true;
        return DT_FAIL(DT_E_DATA, "the template raised an exception");
    }
    if (!dt_jinja_same(name, "namespace"))
        return dt_jinja_unsupported(j, "the function %.*s", (int)(name.n & 63), name.p);
    struct jinja_dict *d;
    DT_TRY(dt_jinja_alloc(j, sizeof *d, &d));
    for (int i = 0; i < a->count; i++) {
        if (a->names[i].n == 0)
            return dt_jinja_unsupported(j, "namespace() of values without names");
        DT_TRY(dt_jinja_put(j, d, a->names[i], &a->values[i]));
    }
    *out = (struct jinja_value){.type = JV_DICT, .dict = d};
    return DT_OK;
}

static int parse_list(struct jinja *j, bool live, struct jinja_value *out)
{
    struct jinja_value items[32], *kept;
    int64_t n = 0;
    while (!dt_jinja_accept(j, JT_OP, "]")) {
        if (n == 32)
            return dt_jinja_unsupported(j, "a list of more than 32 values");
        if (n)
            DT_TRY(dt_jinja_expect(j, JT_OP, ","));
        if (n && dt_jinja_accept(j, JT_OP, "]"))
            break;
        DT_TRY(parse_ternary(j, live, &items[n++]));
    }
    DT_TRY(dt_jinja_alloc(j, (size_t)n * sizeof *kept, &kept));
    if (n)
        memcpy(kept, items, (size_t)n * sizeof *kept);
    *out = (struct jinja_value){.type = JV_LIST, .i = n, .items = kept};
    return DT_OK;
}

static int parse_name(struct jinja *j, bool live, struct jinja_value *out)
{
    struct dt_slice name = dt_jinja_peek(j)->s;
    j->at++;
    if (dt_jinja_same(name, "true") || dt_jinja_same(name, "True"))
        *out = dt_jinja_bool(true);
    else if (dt_jinja_same(name, "false") || dt_jinja_same(name, "False"))
        *out = dt_jinja_bool(false);
    else if (dt_jinja_same(name, "none") || dt_jinja_same(name, "None"))
        *out = (struct jinja_value){.type = JV_NONE};
    else if (dt_jinja_accept(j, JT_OP, "(")) {
        struct arguments a;
        DT_TRY(parse_arguments(j, live, &a));
        if (live)
            DT_TRY(call_function(j, name, &a, out));
    } else if (live) {
        const struct jinja_value *v = dt_jinja_find(&j->variables, name);
        if (v)
            *out = *v;
    }
    return DT_OK;
}

static int parse_primary(struct jinja *j, bool live, struct jinja_value *out)
{
    const struct jinja_token *t = dt_jinja_peek(j);
    *out = (struct jinja_value){0};
    switch (t->kind) {
    case JT_STRING:
        *out = dt_jinja_string(t->s);
        j->at++;
        return DT_OK;
    case JT_INT:
        *out = dt_jinja_int(t->value);
        j->at++;
        return DT_OK;
    case JT_NAME:
        return parse_name(j, live, out);
    default:
        break;
    }
    if (dt_jinja_accept(j, JT_OP, "(")) {
        DT_TRY(parse_ternary(j, live, out));
        return dt_jinja_expect(j, JT_OP, ")");
    }
    if (dt_jinja_accept(j, JT_OP, "["))
        return parse_list(j, live, out);
    return dt_jinja_unsupported(j, "found '%.*s', expected a value", (int)(t->s.n & 31), t->s.p);
}

static int get_item(struct jinja *j, const struct jinja_value *key, struct jinja_value *v)
{
    const struct jinja_value *found = NULL;
    if (v->type == JV_DICT && key->type == JV_STRING)
        found = dt_jinja_find(v->dict, key->s);
    else if (v->type == JV_LIST && key->type == JV_INT && key->i >= -v->i && key->i < v->i)
        found = &v->items[key->i < 0 ? key->i + v->i : key->i];
    else if (v->type == JV_UNDEFINED || v->type == JV_NONE ||
             (v->type == JV_STRING && key->type == JV_INT))
        return dt_jinja_unsupported(j, "an item of a value that has none");
    *v = found ? *found : (struct jinja_value){0};
    return DT_OK;
}

/* [key] or [from:to:step]; the bracket is open. */
static int parse_subscript(struct jinja *j, bool live, struct jinja_value *v)
{
    struct jinja_value bounds[3] = {{0}, {0}, {0}};
    int n = 0;
    bool slice = false;
    while (!dt_jinja_accept(j, JT_OP, "]")) {
        if (dt_jinja_accept(j, JT_OP, ":")) {
            slice = true;
            if (++n > 2)
                return dt_jinja_unsupported(j, "this slice");
            continue;
        }
        DT_TRY(parse_ternary(j, live, &bounds[n]));
        if (!dt_jinja_is(j, JT_OP, ":") && !dt_jinja_is(j, JT_OP, "]"))
            return dt_jinja_expect(j, JT_OP, "]");
    }
    if (!live)
        return DT_OK;
    struct jinja_value whole = *v;
    return slice ? dt_jinja_slice(j, &whole, bounds, v) : get_item(j, &bounds[0], v);
}

static int parse_attribute(struct jinja *j, bool live, struct jinja_value *v)
{
    struct dt_slice name = dt_jinja_peek(j)->s;
    DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    if (!dt_jinja_accept(j, JT_OP, "(")) {
        struct jinja_value key = dt_jinja_string(name);
        return live ? get_item(j, &key, v) : DT_OK;
    }
    struct arguments a;
    DT_TRY(parse_arguments(j, live, &a));
    struct jinja_value self = *v;
    return live ? dt_jinja_method(j, &self, name, a.values, a.count, v) : DT_OK;
}

static int parse_filter(struct jinja *j, bool live, struct jinja_value *v)
{
    struct dt_slice name = dt_jinja_peek(j)->s;
    struct arguments a = {.count = 0};
    DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    if (dt_jinja_accept(j, JT_OP, "("))
        DT_TRY(parse_arguments(j, live, &a));
    struct jinja_value self = *v;
    return live ? dt_jinja_filter(j, &self, name, a.values, a.count, v) : DT_OK;
}

static int parse_test(struct jinja *j, bool live, struct jinja_value *v)
{
    bool negate = dt_jinja_accept(j, JT_NAME, "not"), result = false;
    struct dt_slice name = dt_jinja_peek(j)->s;
    DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    if (live)
        DT_TRY(dt_jinja_test(j, v, name, &result));
    *v = dt_jinja_bool(result != negate);
    return DT_OK;
}

static int parse_postfix(struct jinja *j, bool live, struct jinja_value *out)
{
    DT_TRY(parse_primary(j, live, out));
    for (;;) {
        if (++j->steps > JINJA_MAX_STEPS)
            return dt_jinja_unsupported(j, "too many steps");
        if (dt_jinja_accept(j, JT_OP, "."))
            DT_TRY(parse_attribute(j, live, out));
        else if (dt_jinja_accept(j, JT_OP, "["))
            DT_TRY(parse_subscript(j, live, out));
        else if (dt_jinja_accept(j, JT_OP, "|"))
            DT_TRY(parse_filter(j, live, out));
        else if (dt_jinja_accept(j, JT_NAME, "is"))
            DT_TRY(parse_test(j, live, out));
        else
            return DT_OK;
    }
}

static int parse_unary(struct jinja *j, bool live, struct jinja_value *out)
{
    if (j->depth >= JINJA_MAX_DEPTH)
        return dt_jinja_unsupported(j, "nested more than %d deep", JINJA_MAX_DEPTH);
    j->depth++;
    int rc;
    if (dt_jinja_accept(j, JT_OP, "-")) {
        rc = parse_unary(j, live, out);
        if (rc == DT_OK && live && out->type != JV_INT)
            rc = dt_jinja_unsupported(j, "minus of something that is no number");
        out->i = -out->i;
    } else {
        rc = parse_postfix(j, live, out);
    }
    j->depth--;
    return rc;
}

static int apply_math(struct jinja *j, char op, struct jinja_value *a, const struct jinja_value *b)
{
    bool numbers =
        (a->type == JV_INT || a->type == JV_BOOL) && (b->type == JV_INT || b->type == JV_BOOL);
    if (numbers && (a->i > INT32_MAX || a->i < INT32_MIN || b->i > INT32_MAX || b->i < INT32_MIN))
        return dt_jinja_unsupported(j, "a number beyond 32 bits");
    if (op == '+' && a->type == JV_STRING && b->type == JV_STRING)
        return dt_jinja_concat(j, a->s, b->s, a);
    if (op == '~' && a->type == JV_STRING && b->type == JV_STRING)
        return dt_jinja_concat(j, a->s, b->s, a);
    if (!numbers || op == '~' || op == '/' || (op == '%' && b->i == 0))
        return dt_jinja_unsupported(j, "'%c' of these values", op);
    int64_t m = op == '%' ? a->i % b->i : 0;
    if (m && (m < 0) != (b->i < 0)) /* the sign of Python's remainder is the divisor's */
        m += b->i;
    *a = dt_jinja_int(op == '+'   ? a->i + b->i
                      : op == '-' ? a->i - b->i
                      : op == '*' ? a->i * b->i
                                  : m);
    return DT_OK;
}

/* level 0: + -   1: ~   2: * / %   3: unary */
static int parse_math(struct jinja *j, bool live, int level, struct jinja_value *out)
{
    static const char *const operators[] = {"+-", "~", "*/%"};
    if (level == 3)
        return parse_unary(j, live, out);
    DT_TRY(parse_math(j, live, level + 1, out));
    for (;;) {
        const struct jinja_token *t = dt_jinja_peek(j);
        if (t->kind != JT_OP || t->s.n != 1 || !strchr(operators[level], t->s.p[0]))
            return DT_OK;
        char op = t->s.p[0];
        struct jinja_value right;
        j->at++;
        DT_TRY(parse_math(j, live, level + 1, &right));
        if (live)
            DT_TRY(apply_math(j, op, out, &right));
    }
}

static int apply_in(struct jinja *j, const struct jinja_value *a, const struct jinja_value *b,
                    bool *out)
{
    *out = false;
    if (b->type == JV_STRING && a->type == JV_STRING)
        *out = a->s.n == 0 || memmem(b->s.p, b->s.n, a->s.p, a->s.n) != NULL;
    else if (b->type == JV_DICT && a->type == JV_STRING)
        *out = dt_jinja_find(b->dict, a->s) != NULL;
    else if (b->type == JV_LIST)
        for (int64_t i = 0; i < b->i && !*out; i++)
            *out = dt_jinja_equal(a, &b->items[i]);
    else
        return dt_jinja_unsupported(j, "'in' of these values");
    return DT_OK;
}

static int apply_compare(struct jinja *j, const char *op, struct jinja_value *a,
                         const struct jinja_value *b)
{
    bool result = false;
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
        result = dt_jinja_equal(a, b) == (op[0] == '=');
    else if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0) {
        DT_TRY(apply_in(j, a, b, &result));
        result = result == (op[0] == 'i');
    } else {
        if (a->type != JV_INT || b->type != JV_INT)
            return dt_jinja_unsupported(j, "'%s' of these values", op);
        result = op[0] == '<' ? a->i < b->i : a->i > b->i;
        if (op[1] == '=')
            result = result || a->i == b->i;
    }
    *a = dt_jinja_bool(result);
    return DT_OK;
}

static const char *accept_comparison(struct jinja *j)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (dt_jinja_accept(j, JT_OP, ops[i]))
            return ops[i];
    if (dt_jinja_accept(j, JT_NAME, "in"))
        return "in";
    if (dt_jinja_is(j, JT_NAME, "not") && j->tokens[j->at + 1].kind == JT_NAME &&
        dt_jinja_same(j->tokens[j->at + 1].s, "in")) {
        j->at += 2;
        return "not in";
    }
    return NULL;
}

static int parse_compare(struct jinja *j, bool live, struct jinja_value *out)
{
    DT_TRY(parse_math(j, live, 0, out));
    const char *op = accept_comparison(j);
    if (!op)
        return DT_OK;
    struct jinja_value right;
    DT_TRY(parse_math(j, live, 0, &right));
    if (live)
        DT_TRY(apply_compare(j, op, out, &right));
    return accept_comparison(j) ? dt_jinja_unsupported(j, "a chain of comparisons") : DT_OK;
}

static int parse_not(struct jinja *j, bool live, struct jinja_value *out)
{
    int times = 0;
    while (dt_jinja_accept(j, JT_NAME, "not"))
        times++;
    DT_TRY(parse_compare(j, live, out));
    if (times)
        *out = dt_jinja_bool(dt_jinja_truth(out) == (times % 2 == 0));
    return DT_OK;
}

static int parse_and(struct jinja *j, bool live, struct jinja_value *out)
{
    DT_TRY(parse_not(j, live, out));
    while (dt_jinja_accept(j, JT_NAME, "and")) {
        struct jinja_value right;
        bool look = live && dt_jinja_truth(out);
        DT_TRY(parse_not(j, look, &right));
        if (look)
            *out = right;
    }
    return DT_OK;
}

static int parse_or(struct jinja *j, bool live, struct jinja_value *out)
{
    DT_TRY(parse_and(j, live, out));
    while (dt_jinja_accept(j, JT_NAME, "or")) {
        struct jinja_value right;
        bool look = live && !dt_jinja_truth(out);
        DT_TRY(parse_and(j, look, &right));
        if (look)
            *out = right;
    }
    return DT_OK;
}

/* value if condition else other: the condition stands behind the value, which may only be evaluated
 * when it holds; so the value is read twice. */
static int parse_conditional(struct jinja *j, bool live, struct jinja_value *out)
{
    int64_t start = j->at;
    struct jinja_value condition, other = {0};
    DT_TRY(parse_or(j, false, out));
    bool conditional = dt_jinja_accept(j, JT_NAME, "if"), holds = true;
    if (conditional) {
        DT_TRY(parse_or(j, live, &condition));
        holds = live && dt_jinja_truth(&condition);
        if (dt_jinja_accept(j, JT_NAME, "else"))
            DT_TRY(parse_ternary(j, live && !holds, &other));
    }
    *out = other;
    if (!live || !holds)
        return DT_OK;
    int64_t end = j->at;
    j->at = start;
    DT_TRY(parse_or(j, true, out));
    j->at = end;
    return DT_OK;
}

static int parse_ternary(struct jinja *j, bool live, struct jinja_value *out)
{
    *out = (struct jinja_value){0};
    if (j->depth >= JINJA_MAX_DEPTH)
        return dt_jinja_unsupported(j, "nested more than %d deep", JINJA_MAX_DEPTH);
    j->depth++;
    int rc = parse_conditional(j, live, out);
    j->depth--;
    return rc;
}

int dt_jinja_expression(struct jinja *j, bool live, struct jinja_value *out)
{
    return parse_ternary(j, live, out);
}
