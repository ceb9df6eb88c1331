/* Values of the template language: text, lists, and what Python's methods do to them. */
#include "base/error.h"
#include "data/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

struct jinja_value dt_jinja_bool(bool b)
{
    return (struct jinja_value){.type = JV_BOOL, .i = b};
}

struct jinja_value dt_jinja_int(int64_t i)
{
    return (struct jinja_value){.type = JV_INT, .i = i};
}

struct jinja_value dt_jinja_string(struct dt_slice s)
{
    return (struct jinja_value){.type = JV_STRING, .s = s};
}

struct jinja_value dt_jinja_cstring(const char *s)
{
    return dt_jinja_string((struct dt_slice){s, strlen(s)});
}

bool dt_jinja_truth(const struct jinja_value *v)
{
    switch (v->type) {
    case JV_BOOL:
    case JV_INT:
    case JV_LIST:
        return v->i != 0;
    case JV_STRING:
        return v->s.n != 0;
    case JV_DICT:
        return v->dict->n != 0;
    default:
        return false;
    }
}

bool dt_jinja_equal(const struct jinja_value *a, const struct jinja_value *b)
{
    bool numbers =
        (a->type == JV_BOOL || a->type == JV_INT) && (b->type == JV_BOOL || b->type == JV_INT);
    if (numbers)
        return a->i == b->i;
    if (a->type != b->type)
        return false;
    if (a->type == JV_STRING)
        return a->s.n == b->s.n && memcmp(a->s.p, b->s.p, a->s.n) == 0;
    if (a->type == JV_LIST)
        return a->items == b->items && a->i == b->i;
    return a->type == JV_DICT ? a->dict == b->dict : true;
}

/* The newest of that name, so that a loop's variables hide outer ones. */
struct jinja_value *dt_jinja_find(const struct jinja_dict *d, struct dt_slice name)
{
    for (int64_t i = d->n - 1; i >= 0; i--)
        if (d->pairs[i].name.n == name.n && memcmp(d->pairs[i].name.p, name.p, name.n) == 0)
            return &d->pairs[i].value;
    return NULL;
}

int dt_jinja_put(struct jinja *j, struct jinja_dict *d, struct dt_slice name,
                 const struct jinja_value *v)
{
    if (d->n == d->room) {
        int64_t room = 2 * d->room + 16;
        struct jinja_pair *more;
        DT_TRY(dt_jinja_alloc(j, (size_t)room * sizeof *more, &more));
        if (d->n)
            memcpy(more, d->pairs, (size_t)d->n * sizeof *more);
        d->pairs = more;
        d->room = room;
    }
    d->pairs[d->n++] = (struct jinja_pair){name, *v};
    return DT_OK;
}

int dt_jinja_concat(struct jinja *j, struct dt_slice a, struct dt_slice b, struct jinja_value *out)
{
    char *p;
    DT_TRY(dt_jinja_alloc(j, a.n + b.n, &p));
    if (a.n)
        memcpy(p, a.p, a.n);
    if (b.n)
        memcpy(p + a.n, b.p, b.n);
    *out = dt_jinja_string((struct dt_slice){p, a.n + b.n});
    return DT_OK;
}

static int make_list(struct jinja *j, int64_t n, struct jinja_value **items,
                     struct jinja_value *out)
{
    DT_TRY(dt_jinja_alloc(j, (size_t)n * sizeof **items, items));
    *out = (struct jinja_value){.type = JV_LIST, .i = n, .items = *items};
    return DT_OK;
}

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* v[a:b:c] as Python has it; texts are cut by bytes, so only ASCII ones are. */
int dt_jinja_slice(struct jinja *j, const struct jinja_value *v, const struct jinja_value bounds[3],
                   struct jinja_value *out)
{
    int64_t step = bounds[2].type == JV_INT ? bounds[2].i : 1;
    int64_t n = v->type == JV_LIST ? v->i : (int64_t)v->s.n;
    if ((v->type != JV_LIST && v->type != JV_STRING) || (step != 1 && step != -1))
        return dt_jinja_unsupported(j, "this slice");
    for (size_t i = 0; v->type == JV_STRING && i < v->s.n; i++)
        if ((unsigned char)v->s.p[i] >= 0x80)
            return dt_jinja_unsupported(j, "a slice of text that is not ASCII");
    int64_t from = step > 0 ? 0 : n - 1, to = step > 0 ? n : -1;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (bounds[0].type == JV_INT)
        from = clamp(bounds[0].i < 0 ? bounds[0].i + n : bounds[0].i, low, high);
    if (bounds[1].type == JV_INT)
        to = clamp(bounds[1].i < 0 ? bounds[1].i + n : bounds[1].i, low, high);
    int64_t count = step > 0 ? to - from : from - to;
    count = count > 0 ? count : 0;
    if (v->type == JV_STRING && step > 0) {
        *out = dt_jinja_string((struct dt_slice){v->s.p + from, (size_t)count});
        return DT_OK;
    }
    if (v->type == JV_STRING)
        return dt_jinja_unsupported(j, "text backwards");
    struct jinja_value *items;
    DT_TRY(make_list(j, count, &items, out));
    for (int64_t i = 0; i < count; i++)
        items[i] = v->items[from + i * step];
    return DT_OK;
}

static struct jinja_value strip(struct dt_slice s, struct dt_slice set, bool left, bool right)
{
    while (left && s.n && memchr(set.p, *s.p, set.n)) {
        s.p++;
        s.n--;
    }
    while (right && s.n && memchr(set.p, s.p[s.n - 1], set.n))
        s.n--;
    return dt_jinja_string(s);
}

static const char *find(struct dt_slice in, struct dt_slice what)
{
    return what.n ? memmem(in.p, in.n, what.p, what.n) : NULL;
}

static int split(struct jinja *j, struct dt_slice s, struct dt_slice by, struct jinja_value *out)
{
    struct jinja_value *items;
    int64_t n = 1;
    if (by.n == 0)
        return dt_jinja_unsupported(j, "split by nothing");
    for (struct dt_slice r = s; find(r, by); n++) {
        const char *next = find(r, by) + by.n;
        r.n -= (size_t)(next - r.p);
        r.p = next;
    }
    DT_TRY(make_list(j, n, &items, out));
    for (int64_t i = 0; i < n; i++) {
        const char *at = find(s, by);
        size_t length = at ? (size_t)(at - s.p) : s.n;
        items[i] = dt_jinja_string((struct dt_slice){s.p, length});
        if (at) {
            s.n -= length + by.n;
            s.p = at + by.n;
        }
    }
    return DT_OK;
}

static int change_case(struct jinja *j, struct dt_slice s, bool upper, struct jinja_value *out)
{
    char *p;
    DT_TRY(dt_jinja_alloc(j, s.n, &p));
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool flip = upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
        p[i] = flip ? (char)(c ^ 0x20) : c;
    }
    *out = dt_jinja_string((struct dt_slice){p, s.n});
    return DT_OK;
}

int dt_jinja_method(struct jinja *j, const struct jinja_value *self, struct dt_slice name,
                    const struct jinja_value *args, int count, struct jinja_value *out)
{
    static const char blanks[] = " \t\n\r\f\v\x1c\x1d\x1e\x1f";
    struct dt_slice set = {blanks, sizeof blanks - 1}, s = self->s;
    if (self->type != JV_STRING)
        return dt_jinja_unsupported(j, "the method %.*s", (int)(name.n & 63), name.p);
    bool text = count == 1 && args[0].type == JV_STRING;
    if (count == 0 || text) {
        set = text ? args[0].s : set;
        bool both = dt_jinja_same(name, "strip");
        if (both || dt_jinja_same(name, "lstrip") || dt_jinja_same(name, "rstrip")) {
            *out = strip(s, set, both || name.p[0] == 'l', both || name.p[0] == 'r');
            return DT_OK;
        }
    }
    if (text && (dt_jinja_same(name, "startswith") || dt_jinja_same(name, "endswith"))) {
        bool start = name.p[0] == 's';
        *out = dt_jinja_bool(s.n >= set.n &&
                             memcmp(start ? s.p : s.p + s.n - set.n, set.p, set.n) == 0);
        return DT_OK;
    }
    if (text && dt_jinja_same(name, "split"))
        return split(j, s, set, out);
    if (count == 0 && (dt_jinja_same(name, "upper") || dt_jinja_same(name, "lower")))
        return change_case(j, s, name.p[0] == 'u', out);
    return dt_jinja_unsupported(j, "the method %.*s with these arguments", (int)(name.n & 63),
                                name.p);
}

int dt_jinja_filter(struct jinja *j, const struct jinja_value *self, struct dt_slice name,
                    const struct jinja_value *args, int count, struct jinja_value *out)
{
    if (dt_jinja_same(name, "trim") && count == 0 && self->type == JV_STRING) {
        struct dt_slice method = {"strip", 5};
        return dt_jinja_method(j, self, method, NULL, 0, out);
    }
    if ((dt_jinja_same(name, "length") || dt_jinja_same(name, "count")) && self->type == JV_LIST) {
        *out = dt_jinja_int(self->i);
        return DT_OK;
    }
    if (dt_jinja_same(name, "default") && count == 1) {
        *out = self->type == JV_UNDEFINED ? args[0] : *self;
        return DT_OK;
    }
    if ((dt_jinja_same(name, "string") && self->type == JV_STRING) ||
        (dt_jinja_same(name, "list") && self->type == JV_LIST)) {
        *out = *self;
        return DT_OK;
    }
    if ((dt_jinja_same(name, "first") || dt_jinja_same(name, "last")) && self->type == JV_LIST &&
        self->i) {
        *out = self->items[name.p[0] == 'f' ? 0 : self->i - 1];
        return DT_OK;
    }
    if ((dt_jinja_same(name, "upper") || dt_jinja_same(name, "lower")) && self->type == JV_STRING)
        return change_case(j, self->s, name.p[0] == 'u', out);
    return dt_jinja_unsupported(j, "the filter %.*s of this value", (int)(name.n & 63), name.p);
}

int dt_jinja_test(struct jinja *j, const struct jinja_value *self, struct dt_slice name, bool *out)
{
    static const struct {
        const char *name;
        unsigned types;
    } tests[] = {
        {"undefined", 1u << JV_UNDEFINED},
        {"none", 1u << JV_NONE},
        {"boolean", 1u << JV_BOOL},
        {"integer", 1u << JV_INT},
        {"number", 1u << JV_INT | 1u << JV_BOOL},
        {"string", 1u << JV_STRING},
        {"mapping", 1u << JV_DICT},
        {"iterable", 1u << JV_STRING | 1u << JV_LIST | 1u << JV_DICT | 1u << JV_UNDEFINED},
        {"sequence", 1u << JV_STRING | 1u << JV_LIST | 1u << JV_DICT | 1u << JV_UNDEFINED}};
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (dt_jinja_same(name, tests[i].name)) {
            *out = tests[i].types >> self->type & 1;
            return DT_OK;
        }
    if (dt_jinja_same(name, "defined"))
        *out = self->type != JV_UNDEFINED;
    else if (dt_jinja_same(name, "true") || dt_jinja_same(name, "false"))
        *out = self->type == JV_BOOL && (self->i != 0) == (name.p[0] == 't');
    else
        return dt_jinja_unsupported(j, "the test %.*s", (int)(name.n & 63), name.p);
    return DT_OK;
}
