/* Statements: text, {{ }}, if, for, set. They run straight from the tokens; a loop goes back to its
 * first token, and what is not live is walked through without effect to find its end. */
#include "data/jinja.h"

#include "base/error.h"
#include "data/jinja_internal.h"

#include <stdio.h>
#include <string.h>

static int run_block(struct jinja *j, bool live);

static int emit(struct jinja *j, struct dt_slice s)
{
    if (s.n > JINJA_MAX_MEMORY - j->out->n)
        return dt_jinja_unsupported(j, "it writes more than %zu bytes", JINJA_MAX_MEMORY);
    return dt_text_append(j->out, s.p, s.n);
}

static int run_print(struct jinja *j, bool live)
{
    struct jinja_value v;
    DT_TRY(dt_jinja_expression(j, live, &v));
    DT_TRY(dt_jinja_expect(j, JT_CLOSE, NULL));
    if (!live || v.type == JV_UNDEFINED)
        return DT_OK;
    char number[32];
    if (v.type == JV_INT) {
        snprintf(number, sizeof number, "%lld", (long long)v.i);
        v = dt_jinja_cstring(number);
    } else if (v.type != JV_STRING) {
        return dt_jinja_unsupported(j, "writing a value that is no text");
    }
    return emit(j, v.s);
}

/* At "{% name": is the tag one of these? Then it ends the block that is being run. */
static bool at_tag(const struct jinja *j, const char *name)
{
    const struct jinja_token *t = dt_jinja_peek(j);
    return t->kind == JT_BLOCK && t[1].kind == JT_NAME && dt_jinja_same(t[1].s, name);
}

static int expect_tag(struct jinja *j, const char *name)
{
    if (!at_tag(j, name))
        return dt_jinja_unsupported(j, "expected {%% %s %%}", name);
    j->at += 2;
    return dt_jinja_expect(j, JT_CLOSE, NULL);
}

static int run_if(struct jinja *j, bool live)
{
    bool done = false;
    do {
        struct jinja_value condition;
        j->at++; /* if, or the block that opens elif */
        if (dt_jinja_is(j, JT_NAME, "elif"))
            j->at++;
        DT_TRY(dt_jinja_expression(j, live && !done, &condition));
        DT_TRY(dt_jinja_expect(j, JT_CLOSE, NULL));
        bool take = live && !done && dt_jinja_truth(&condition);
        DT_TRY(run_block(j, take));
        done = done || take;
    } while (at_tag(j, "elif"));
    if (at_tag(j, "else")) {
        DT_TRY(expect_tag(j, "else"));
        DT_TRY(run_block(j, live && !done));
    }
    return expect_tag(j, "endif");
}

static int set_loop(struct jinja *j, int64_t i, int64_t n, struct jinja_value *out)
{
    struct jinja_dict *d;
    DT_TRY(dt_jinja_alloc(j, sizeof *d, &d));
    const struct {
        const char *name;
        struct jinja_value value;
    } parts[] = {{"index", dt_jinja_int(i + 1)},    {"index0", dt_jinja_int(i)},
                 {"revindex", dt_jinja_int(n - i)}, {"revindex0", dt_jinja_int(n - i - 1)},
                 {"first", dt_jinja_bool(i == 0)},  {"last", dt_jinja_bool(i == n - 1)},
                 {"length", dt_jinja_int(n)}};
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        struct dt_slice name = {parts[k].name, strlen(parts[k].name)};
        DT_TRY(dt_jinja_put(j, d, name, &parts[k].value));
    }
    *out = (struct jinja_value){.type = JV_DICT, .dict = d};
    return DT_OK;
}

static int run_item(struct jinja *j, struct dt_slice name, const struct jinja_value *list,
                    int64_t i)
{
    static const struct dt_slice loop = {"loop", 4};
    struct jinja_value about;
    int64_t scope = j->scope;
    j->scope = j->variables.n;
    DT_TRY(set_loop(j, i, list->i, &about));
    DT_TRY(dt_jinja_put(j, &j->variables, loop, &about));
    DT_TRY(dt_jinja_put(j, &j->variables, name, &list->items[i]));
    DT_TRY(run_block(j, true));
    j->variables.n = j->scope;
    j->scope = scope;
    return DT_OK;
}

static int run_for(struct jinja *j, bool live)
{
    j->at++;
    struct dt_slice name = dt_jinja_peek(j)->s;
    struct jinja_value list;
    bool several = false;
    do {
        DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    } while (dt_jinja_accept(j, JT_OP, ",") && (several = true));
    DT_TRY(dt_jinja_expect(j, JT_NAME, "in"));
    DT_TRY(dt_jinja_expression(j, live, &list));
    if (!dt_jinja_is(j, JT_CLOSE, NULL) || (live && several))
        return dt_jinja_unsupported(j, "this kind of loop");
    if (live && list.type != JV_LIST && list.type != JV_UNDEFINED)
        return dt_jinja_unsupported(j, "a loop over something that is no list");
    j->at++;
    int64_t start = j->at, n = live && list.type == JV_LIST ? list.i : 0;
    for (int64_t i = 0; i < n; i++) {
        j->at = start;
        DT_TRY(run_item(j, name, &list, i));
    }
    if (n == 0)
        DT_TRY(run_block(j, false));
    if (at_tag(j, "else")) {
        DT_TRY(expect_tag(j, "else"));
        DT_TRY(run_block(j, live && n == 0));
    }
    return expect_tag(j, "endfor");
}

static int run_set(struct jinja *j, bool live)
{
    j->at++;
    struct dt_slice name = dt_jinja_peek(j)->s, attribute = {0};
    DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    if (dt_jinja_accept(j, JT_OP, ".")) {
        attribute = dt_jinja_peek(j)->s;
        DT_TRY(dt_jinja_expect(j, JT_NAME, NULL));
    }
    DT_TRY(dt_jinja_expect(j, JT_OP, "="));
    struct jinja_value v;
    DT_TRY(dt_jinja_expression(j, live, &v));
    DT_TRY(dt_jinja_expect(j, JT_CLOSE, NULL));
    if (!live)
        return DT_OK;
    struct jinja_dict inner = {.pairs = j->variables.pairs ? j->variables.pairs + j->scope : NULL,
                               .n = j->variables.n - j->scope};
    struct jinja_value *old =
        attribute.n ? dt_jinja_find(&j->variables, name) : dt_jinja_find(&inner, name);
    if (attribute.n) {
        if (!old || old->type != JV_DICT)
            return dt_jinja_unsupported(j,
                                        "setting an attribute of something that is no namespace");
        struct jinja_value *field = dt_jinja_find(old->dict, attribute);
        if (!field)
            return dt_jinja_put(j, old->dict, attribute, &v);
        *field = v;
        return DT_OK;
    }
    if (!old)
        return dt_jinja_put(j, &j->variables, name, &v);
    *old = v;
    return DT_OK;
}

static int run_tag(struct jinja *j, bool live)
{
    j->at++;
    if (dt_jinja_is(j, JT_NAME, "if"))
        return run_if(j, live);
    if (dt_jinja_is(j, JT_NAME, "for"))
        return run_for(j, live);
    if (dt_jinja_is(j, JT_NAME, "set"))
        return run_set(j, live);
    if (dt_jinja_is(j, JT_NAME, "generation")) { /* marks the assistant's words, writes nothing */
        j->at++;
        DT_TRY(dt_jinja_expect(j, JT_CLOSE, NULL));
        DT_TRY(run_block(j, live));
        return expect_tag(j, "endgeneration");
    }
    const struct jinja_token *t = dt_jinja_peek(j);
    return dt_jinja_unsupported(j, "the statement %.*s", (int)(t->s.n & 31), t->s.p);
}

static bool at_end_of_block(const struct jinja *j)
{
    static const char *const ends[] = {"endif", "endfor", "else", "elif", "endgeneration"};
    if (dt_jinja_is(j, JT_END, NULL))
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (at_tag(j, ends[i]))
            return true;
    return false;
}

static int run_pieces(struct jinja *j, bool live)
{
    while (!at_end_of_block(j)) {
        if (++j->steps > JINJA_MAX_STEPS)
            return dt_jinja_unsupported(j, "too many steps");
        const struct jinja_token *t = dt_jinja_peek(j);
        if (t->kind == JT_TEXT) {
            j->at++;
            if (live)
                DT_TRY(emit(j, t->s));
        } else if (dt_jinja_accept(j, JT_PRINT, NULL)) {
            DT_TRY(run_print(j, live));
        } else {
            DT_TRY(run_tag(j, live));
        }
    }
    return DT_OK;
}

static int run_block(struct jinja *j, bool live)
{
    if (j->depth >= JINJA_MAX_DEPTH)
        return dt_jinja_unsupported(j, "nested more than %d deep", JINJA_MAX_DEPTH);
    j->depth++;
    int rc = run_pieces(j, live);
    j->depth--;
    return rc;
}

static int put_named(struct jinja *j, struct jinja_dict *d, const char *name, struct jinja_value v)
{
    return dt_jinja_put(j, d, (struct dt_slice){name, strlen(name)}, &v);
}

static int put_messages(struct jinja *j, const struct dt_turn *turns, int64_t count)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    struct jinja_value *items;
    struct jinja_dict *dicts;
    DT_TRY(dt_jinja_alloc(j, (size_t)count * sizeof *items, &items));
    DT_TRY(dt_jinja_alloc(j, (size_t)count * sizeof *dicts, &dicts));
    for (int64_t i = 0; i < count; i++) {
        DT_TRY(put_named(j, &dicts[i], "role", dt_jinja_cstring(roles[turns[i].role])));
        DT_TRY(put_named(j, &dicts[i], "content", dt_jinja_string(turns[i].content)));
        items[i] = (struct jinja_value){.type = JV_DICT, .dict = &dicts[i]};
    }
    struct jinja_value list = {.type = JV_LIST, .i = count, .items = items};
    return put_named(j, &j->variables, "messages", list);
}

int dt_jinja_render(const char *source, size_t bytes, const struct dt_turn *turns, int64_t count,
                    bool generation, const char *bos, const char *eos, struct dt_text *out,
                    bool *raised)
{
    struct jinja j = {.out = out};
    int rc;
    *raised = false;
    DT_CHECK(done, rc, dt_jinja_lex(&j, source, bytes));
    DT_CHECK(done, rc, put_messages(&j, turns, count));
    DT_CHECK(done, rc, put_named(&j, &j.variables, "bos_token", dt_jinja_cstring(bos)));
    DT_CHECK(done, rc, put_named(&j, &j.variables, "eos_token", dt_jinja_cstring(eos)));
    DT_CHECK(done, rc,
             put_named(&j, &j.variables, "add_generation_prompt", dt_jinja_bool(generation)));
    DT_CHECK(done, rc, run_block(&j, true));
    if (!dt_jinja_is(&j, JT_END, NULL))
        rc = dt_jinja_unsupported(&j, "an end without its beginning");
done:
    if (rc < 0 && j.raised) {
        *raised = true;
        dt_error_clear();
        rc = DT_OK;
    }
    dt_jinja_free(&j);
    return rc;
}
