/* A template as tokens, with Jinja's rules for white space around tags already applied. */
#include "base/error.h"
#include "data/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct jinja_chunk {
    struct jinja_chunk *next;
    max_align_t data[];
};

int dt_jinja_alloc(struct jinja *j, size_t bytes, void *out)
{
    if (bytes > JINJA_MAX_MEMORY - j->memory)
        return DT_FAIL(DT_E_UNSUPPORTED, "the template needs more than %zu bytes",
                       JINJA_MAX_MEMORY);
    struct jinja_chunk *c = calloc(1, sizeof *c + bytes + 1);
    if (!c)
        return DT_FAIL(DT_E_MEMORY, "cannot run a chat template");
    j->memory += bytes + 64;
    if (j->memory > JINJA_MAX_MEMORY)
        j->memory = JINJA_MAX_MEMORY;
    c->next = j->chunks;
    j->chunks = c;
    *(void **)out = c->data;
    return DT_OK;
}

void dt_jinja_free(struct jinja *j)
{
    while (j->chunks) {
        struct jinja_chunk *next = j->chunks->next;
        free(j->chunks);
        j->chunks = next;
    }
    free(j->tokens);
}

int dt_jinja_unsupported(const struct jinja *j, const char *fmt, ...)
{
    char words[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: %s", dt_jinja_peek(j)->line, words);
}

bool dt_jinja_same(struct dt_slice s, const char *text)
{
    return strlen(text) == s.n && memcmp(text, s.p, s.n) == 0;
}

bool dt_jinja_is(const struct jinja *j, enum jinja_token_kind kind, const char *text)
{
    const struct jinja_token *t = dt_jinja_peek(j);
    return t->kind == kind && (!text || dt_jinja_same(t->s, text));
}

bool dt_jinja_accept(struct jinja *j, enum jinja_token_kind kind, const char *text)
{
    if (!dt_jinja_is(j, kind, text))
        return false;
    j->at++;
    return true;
}

int dt_jinja_expect(struct jinja *j, enum jinja_token_kind kind, const char *text)
{
    if (dt_jinja_accept(j, kind, text))
        return DT_OK;
    const struct jinja_token *t = dt_jinja_peek(j);
    return dt_jinja_unsupported(j, "found '%.*s', expected %s", (int)(t->s.n < 40 ? t->s.n : 40),
                                t->s.p,
                                text               ? text
                                : kind == JT_CLOSE ? "the end of the tag"
                                                   : "a name");
}

/* ---- lexing ---- */

struct lexer {
    struct jinja *j;
    const char *p, *end;
    int line;
    int64_t room;
};

static int add(struct lexer *l, enum jinja_token_kind kind, const char *p, size_t n, int64_t value)
{
    struct jinja *j = l->j;
    if (j->token_count >= JINJA_MAX_TOKENS)
        return DT_FAIL(DT_E_UNSUPPORTED, "the template has more than %d words", JINJA_MAX_TOKENS);
    if (j->token_count == l->room) {
        l->room = 2 * l->room + 256;
        void *more = realloc(j->tokens, (size_t)l->room * sizeof *j->tokens);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot read a chat template");
        j->tokens = more;
    }
    j->tokens[j->token_count++] = (struct jinja_token){kind, {p, n}, value, l->line};
    return DT_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

static void advance(struct lexer *l, const char *to)
{
    for (; l->p < to; l->p++)
        l->line += *l->p == '\n';
}

/* 'text' or "text" with escapes, as Python reads them. */
static int lex_string(struct lexer *l)
{
    static const char from[] = "nrtfvab0\\'\"", to[] = "\n\r\t\f\v\a\b\0\\'\"";
    char quote = *l->p, *text;
    const char *p = l->p + 1, *stop = p;
    size_t n = 0;
    while (stop < l->end && *stop != quote)
        stop += *stop == '\\' && stop + 1 < l->end ? 2 : 1;
    if (stop >= l->end)
        return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: a string without an end",
                       l->line);
    DT_TRY(dt_jinja_alloc(l->j, (size_t)(stop - p), &text));
    while (p < stop) {
        char c = *p++;
        if (c == '\\') {
            const char *known = *p ? strchr(from, *p) : NULL;
            if (!known)
                return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: an unknown escape",
                               l->line);
            c = to[known - from];
            p++;
        }
        text[n++] = c;
    }
    DT_TRY(add(l, JT_STRING, text, n, 0));
    advance(l, stop + 1);
    return DT_OK;
}

static int lex_word(struct lexer *l)
{
    const char *p = l->p;
    if (is_word(*p, true)) {
        while (p < l->end && is_word(*p, false))
            p++;
        DT_TRY(add(l, JT_NAME, l->p, (size_t)(p - l->p), 0));
    } else if (*p >= '0' && *p <= '9') {
        int64_t v = 0;
        for (; p < l->end && *p >= '0' && *p <= '9' && v < 1000000000; p++)
            v = 10 * v + (*p - '0');
        DT_TRY(add(l, JT_INT, l->p, (size_t)(p - l->p), v));
    } else {
        static const char two[][3] = {"==", "!=", "<=", ">=", "//", "**"};
        size_t n = 1;
        for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
            if (l->end - p >= 2 && memcmp(p, two[i], 2) == 0)
                n = 2;
        if (!strchr("=!<>+-*/%~.,:|()[]{}", *p) || !*p)
            return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: unexpected character",
                           l->line);
        DT_TRY(add(l, JT_OP, l->p, n, 0));
        p += n;
    }
    advance(l, p);
    return DT_OK;
}

/* The inside of {{ }} or {% %}; `l->p` is behind the opening and its sign. */
static int lex_tag(struct lexer *l, bool block)
{
    const char *close = block ? "%}" : "}}";
    int nesting = 0;
    DT_TRY(add(l, block ? JT_BLOCK : JT_PRINT, l->p, 0, 0));
    for (;;) {
        while (l->p < l->end && is_space(*l->p))
            advance(l, l->p + 1);
        if (l->p >= l->end)
            return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: a tag without an end",
                           l->line);
        bool sign =
            (*l->p == '-' || *l->p == '+') && l->end - l->p >= 3 && memcmp(l->p + 1, close, 2) == 0;
        if (nesting == 0 && (sign || (l->end - l->p >= 2 && memcmp(l->p, close, 2) == 0))) {
            bool strip = sign && *l->p == '-', keep = sign && *l->p == '+';
            DT_TRY(add(l, JT_CLOSE, l->p, (size_t)(2 + sign), 0));
            advance(l, l->p + 2 + sign);
            if (strip)
                while (l->p < l->end && is_space(*l->p))
                    advance(l, l->p + 1);
            else if (block && !keep && l->p < l->end && *l->p == '\n') /* trim_blocks */
                advance(l, l->p + 1);
            return DT_OK;
        }
        nesting += *l->p == '{' || *l->p == '(' || *l->p == '[';
        nesting -= *l->p == '}' || *l->p == ')' || *l->p == ']';
        if (*l->p == '\'' || *l->p == '"')
            DT_TRY(lex_string(l));
        else
            DT_TRY(lex_word(l));
    }
}

static const char *find_tag(const char *p, const char *end)
{
    for (; end - p >= 2; p++)
        if (p[0] == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
            return p;
    return end;
}

/* Text up to the next tag; a '-' in the tag, or lstrip_blocks, takes white space from its end. */
static int lex_text(struct lexer *l, const char *start_of_all)
{
    const char *tag = find_tag(l->p, l->end), *stop = tag;
    if (tag < l->end) {
        char sign = l->end - tag > 2 ? tag[2] : ' ';
        if (sign == '-') {
            while (stop > l->p && is_space(stop[-1]))
                stop--;
        } else if (tag[1] != '{' && sign != '+') {
            const char *blank = stop;
            while (blank > l->p && is_space(blank[-1]) && blank[-1] != '\n')
                blank--;
            if (blank == start_of_all || blank[-1] == '\n')
                stop = blank;
        }
    }
    if (stop > l->p)
        DT_TRY(add(l, JT_TEXT, l->p, (size_t)(stop - l->p), 0));
    advance(l, tag);
    return DT_OK;
}

static int lex_comment(struct lexer *l)
{
    const char *p = l->p;
    while (l->end - p >= 2 && memcmp(p, "#}", 2) != 0)
        p++;
    if (l->end - p < 2)
        return DT_FAIL(DT_E_UNSUPPORTED, "line %d of the template: a comment without an end",
                       l->line);
    bool strip = p > l->p && p[-1] == '-';
    advance(l, p + 2);
    if (strip)
        while (l->p < l->end && is_space(*l->p))
            advance(l, l->p + 1);
    else if (l->p < l->end && *l->p == '\n')
        advance(l, l->p + 1);
    return DT_OK;
}

int dt_jinja_lex(struct jinja *j, const char *source, size_t bytes)
{
    if (bytes > 0 && source[bytes - 1] == '\n') /* keep_trailing_newline is off */
        bytes--;
    struct lexer l = {.j = j, .p = source, .end = source + bytes, .line = 1};
    while (l.p < l.end) {
        DT_TRY(lex_text(&l, source));
        if (l.p >= l.end)
            break;
        char kind = l.p[1];
        bool sign = l.end - l.p > 2 && (l.p[2] == '-' || l.p[2] == '+');
        advance(&l, l.p + 2 + (sign && kind != '#'));
        if (kind == '#')
            DT_TRY(lex_comment(&l));
        else
            DT_TRY(lex_tag(&l, kind == '%'));
    }
    return add(&l, JT_END, "the end", 7, 0);
}
