/* Patterns of Split and Replace: literals, the two hand-written scanners, and any other regex by
 * PCRE2.
 *
 * The files are written for Oniguruma in Ruby's syntax, so a pattern is translated first: \s and
 * the categories get exactly the members that Hugging Face's engine gives them, ^ and $ work by
 * line, and whatever means something else in the two engines, or is not known to mean the same, is
 * refused by name rather than matched differently. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer_internal.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>

#define LLAMA_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
#define LLAMA_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *regex;
    enum dt_pattern_kind kind;
    int max_digits;
} known[] = {
    {DT_GPT2_REGEX, DT_PATTERN_GPT2, 0},
    {LLAMA_HEAD "{1,3}" LLAMA_TAIL, DT_PATTERN_LLAMA, 3},
    {LLAMA_HEAD LLAMA_TAIL, DT_PATTERN_LLAMA, 1},
};

#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"                   \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"                 \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

struct translation {
    const char *p;
    size_t n, at;
    bool in_class;
    struct dt_text out;
    int rc;
};

static int put(struct translation *t, const char *s)
{
    return dt_text_append(&t->out, s, strlen(s));
}

static int refuse(const struct translation *t, const char *what)
{
    return DT_FAIL(DT_E_UNSUPPORTED, "pattern \"%.200s\", offset %zu: %s is not supported", t->p,
                   t->at, what);
}

static void put_range(uint32_t from, uint32_t to, void *arg)
{
    struct translation *t = arg;
    char text[40];
    snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", from, to);
    if (t->rc == 0)
        t->rc = put(t, text);
}

/* The set `body` (plus what is newer in `category`), negated or not, inside a class or as one. */
static int put_set(struct translation *t, const char *body, const char *category, bool negated)
{
    if (!t->in_class)
        DT_TRY(put(t, negated ? "[^" : "["));
    else if (negated)
        return refuse(t, "a negated category inside [...]");
    DT_TRY(put(t, body));
    dt_newer_ranges(category, put_range, t);
    DT_TRY(t->rc);
    return t->in_class ? 0 : put(t, "]");
}

/* \p{Lu}, \P{L}, \p{^L}; t->at is at the p. */
static int category(struct translation *t)
{
    static const char names[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm "
        "Sc Sk So Z Zs Zl Zp ";
    bool negated = t->p[t->at] == 'P';
    size_t i = t->at + 1;
    char name[8] = " ", body[16];
    if (i < t->n && t->p[i] == '{')
        i++;
    else
        return refuse(t, "\\p without {category}");
    if (i < t->n && t->p[i] == '^') {
        negated = !negated;
        i++;
    }
    size_t k = 1;
    while (i < t->n && isalpha((unsigned char)t->p[i]) && k < 4)
        name[k++] = t->p[i++];
    name[k] = ' ';
    name[k + 1] = '\0';
    if (i >= t->n || t->p[i] != '}' || k < 2 || k > 3 || !strstr(names, name))
        return refuse(t, "a property other than a general category");
    t->at = i + 1;
    name[k] = '\0';
    snprintf(body, sizeof body, "\\p{%s}", name + 1);
    return put_set(t, body, name + 1, negated);
}

static int hex(struct translation *t, size_t from, size_t digits)
{
    char text[16];
    for (size_t k = 0; k < digits; k++)
        if (from + k >= t->n || !isxdigit((unsigned char)t->p[from + k]))
            return refuse(t, "an incomplete \\x or \\u");
    snprintf(text, sizeof text, "\\x{%.*s}", (int)digits, t->p + from);
    t->at = from + digits;
    return put(t, text);
}

static int escape(struct translation *t)
{
    t->at++;
    unsigned char c = t->at < t->n ? (unsigned char)t->p[t->at] : '\0';
    char copy[3] = {'\\', (char)c, '\0'};
    if (c == 'p' || c == 'P')
        return category(t);
    if (c == 'u')
        return hex(t, t->at + 1, 4);
    if (c == 'x' && t->at + 1 < t->n && t->p[t->at + 1] == '{') {
        size_t digits = 0;
        while (digits < 7 && t->at + 2 + digits < t->n &&
               isxdigit((unsigned char)t->p[t->at + 2 + digits]))
            digits++;
        DT_TRY(hex(t, t->at + 2, digits));
        if (t->at >= t->n || t->p[t->at] != '}')
            return refuse(t, "an incomplete \\x{...}");
        t->at++;
        return 0;
    }
    if (c == 'x')
        return hex(t, t->at + 1, 2);
    t->at++;
    switch (c) {
    case 's':
        return put_set(t, SPACES, "-", false);
    case 'S':
        return put_set(t, NOT_SPACES, "-", false);
    case 'd':
    case 'D':
        return put_set(t, "\\p{Nd}", "Nd", c == 'D');
    case 'v':
        return put(t, "\\x{b}");
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return put(t, copy);
    default:
        break;
    }
    t->at--;
    if (c > ' ' && c < 127 && !isalnum(c)) {
        t->at++;
        return put(t, copy);
    }
    return refuse(t, "this escape");
}

static int group(struct translation *t)
{
    static const char *const heads[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    const char *p = t->p + t->at;
    size_t left = t->n - t->at;
    if (left >= 2 && p[1] == '*')
        return refuse(t, "(*");
    if (left < 2 || p[1] != '?') {
        t->at++;
        return put(t, "(?:"); /* nobody refers back to a group: \1 is refused */
    }
    for (size_t k = 0; k < sizeof heads / sizeof *heads; k++)
        if (left >= strlen(heads[k]) && memcmp(p, heads[k], strlen(heads[k])) == 0) {
            t->at += strlen(heads[k]);
            return put(t, heads[k]);
        }
    if (t->at == 0 && left >= 4 && memcmp(p, "(?i)", 4) == 0) {
        t->at += 4;
        return put(t, "(?i)");
    }
    return refuse(t, "this kind of group");
}

/* {n}, {n,}, {n,m}; any other brace is a letter. */
static int interval(struct translation *t)
{
    size_t i = t->at + 1;
    size_t first = i;
    while (i < t->n && isdigit((unsigned char)t->p[i]))
        i++;
    if (i == first) {
        if (i < t->n && t->p[i] == ',')
            return refuse(t, "{,n}");
        t->at++;
        return put(t, "\\{");
    }
    if (i < t->n && t->p[i] == ',')
        i++;
    while (i < t->n && isdigit((unsigned char)t->p[i]))
        i++;
    if (i >= t->n || t->p[i] != '}')
        return refuse(t, "an incomplete {n,m}");
    i++;
    if (i < t->n && (t->p[i] == '+' || t->p[i] == '?'))
        return refuse(t, "a mark after {n,m}");
    int rc = dt_text_append(&t->out, t->p + t->at, i - t->at);
    t->at = i;
    return rc;
}

static int open_class(struct translation *t)
{
    t->in_class = true;
    t->at++;
    DT_TRY(put(t, "["));
    if (t->at < t->n && t->p[t->at] == '^') {
        t->at++;
        DT_TRY(put(t, "^"));
    }
    if (t->at < t->n && t->p[t->at] == ']')
        return refuse(t, "] right after [");
    return 0;
}

static int translate_one(struct translation *t)
{
    char c = t->p[t->at];
    if (c == '\\')
        return escape(t);
    if (c == '\0')
        return refuse(t, "a zero byte");
    if (t->in_class) {
        if (c == '[' || (c == '&' && t->at + 1 < t->n && t->p[t->at + 1] == '&'))
            return refuse(t, "a set inside [...]");
        t->in_class = c != ']';
    } else if (c == '[') {
        return open_class(t);
    } else if (c == '(') {
        return group(t);
    } else if (c == '{') {
        return interval(t);
    }
    return dt_text_append(&t->out, t->p + t->at++, 1);
}

static int compile(struct dt_pattern *p, const struct translation *t)
{
    int code;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    p->code = pcre2_compile((PCRE2_SPTR)t->out.p, t->out.n, options, &code, &at, NULL);
    if (!p->code) {
        char text[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return DT_FAIL(DT_E_DATA, "pattern \"%.200s\": %s", t->p, text);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without JIT it is only slower */
    return 0;
}

int dt_pattern_regex(struct dt_pattern *p, const char *regex, size_t n, bool scanners)
{
    for (size_t i = 0; scanners && i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].regex) == n && memcmp(known[i].regex, regex, n) == 0) {
            p->kind = known[i].kind;
            p->max_digits = known[i].max_digits;
            return 0;
        }
    if (n == 0 || n > 16384)
        return DT_FAIL(DT_E_UNSUPPORTED, "a pattern of %zu bytes (expected 1 to 16384)", n);
    struct translation t = {.p = regex, .n = n};
    int rc = 0;
    while (rc == 0 && t.at < t.n)
        rc = translate_one(&t);
    p->kind = DT_PATTERN_REGEX;
    if (rc == 0)
        rc = compile(p, &t);
    dt_text_free(&t.out);
    return rc;
}

int dt_pattern_literal(struct dt_pattern *p, const char *text, size_t n)
{
    if (n == 0)
        return DT_FAIL(DT_E_UNSUPPORTED, "an empty string as pattern is not supported");
    p->kind = DT_PATTERN_LITERAL;
    DT_TRY(DT_NEW(&p->literal, n + 1));
    memcpy(p->literal, text, n);
    p->literal_n = n;
    return 0;
}

void dt_pattern_free(struct dt_pattern *p)
{
    free(p->literal);
    pcre2_code_free(p->code);
    *p = (struct dt_pattern){0};
}

void dt_matcher_free(struct dt_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (struct dt_matcher){0};
}

static int matcher_open(struct dt_matcher *m)
{
    if (m->data)
        return 0;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
    if (!m->data || !m->context || !m->stack) {
        dt_matcher_free(m);
        return DT_FAIL(DT_E_MEMORY, "no memory for the regex engine");
    }
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return 0;
}

/* 1, 0 or an error. An empty match right at the end of the last one does not count: step over one
 * character and look again. */
static int next_regex(struct dt_matches *m, size_t *start, size_t *end)
{
    DT_TRY(matcher_open(m->matcher));
    while (m->n > 0 && m->at <= m->n) { /* nothing matches in an empty text */
        int rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)m->text, m->n, m->at, PCRE2_NO_UTF_CHECK,
                             m->matcher->data, m->matcher->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        if (rc < 0) {
            char text[160];
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
            return DT_FAIL(DT_E_DATA, "the tokenizer's pattern failed at byte %zu of a piece: %s",
                           m->at, text);
        }
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(m->matcher->data);
        *start = o[0];
        *end = o[1] < o[0] ? o[0] : o[1];
        if (*start == *end && m->last_end == (int64_t)*end) {
            size_t size = 1;
            if (m->at < m->n)
                dt_utf8_get(m->text + m->at, &size);
            m->at += size;
            continue;
        }
        m->at = *end;
        m->last_end = (int64_t)*end;
        return 1;
    }
    return 0;
}

int dt_matches_next(struct dt_matches *m, size_t *start, size_t *end)
{
    const struct dt_pattern *p = m->pattern;
    if (p->kind == DT_PATTERN_REGEX)
        return next_regex(m, start, end);
    if (m->at >= m->n)
        return 0;
    if (p->kind == DT_PATTERN_LITERAL) {
        const char *hit = memmem(m->text + m->at, m->n - m->at, p->literal, p->literal_n);
        if (!hit)
            return 0;
        *start = (size_t)(hit - m->text);
        *end = m->at = *start + p->literal_n;
        return 1;
    }
    *start = m->at;
    *end = m->at = p->kind == DT_PATTERN_GPT2 ? dt_scan_gpt2(m->text, m->n, m->at)
                                              : dt_scan_llama(m->text, m->n, m->at, p->max_digits);
    return 1;
}
