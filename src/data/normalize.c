/* Normalizers: text to text, before it is cut.
 *
 * Each stage reads the piece and writes into one of two buffers in turn; a stage that changes
 * nothing (NFC over plain ASCII, the usual case) writes nothing. Decomposition and composition are
 * utf8proc's, the canonical order is made here by a stable sort, so that a long run of combining
 * marks costs n log n; characters newer than the library's tables are left alone. */
#include "data/tokenizer_internal.h"

#include <utf8proc.h>

int dt_replace_all(const struct dt_stage *s, struct dt_matcher *m, const char *p, size_t n,
                   struct dt_text *out)
{
    struct dt_matches w = {&s->pattern, m, p, n, 0, -1};
    size_t start, end, done = 0;
    int rc;
    while ((rc = dt_matches_next(&w, &start, &end)) > 0) {
        DT_TRY(dt_text_append(out, p + done, start - done));
        DT_TRY(dt_text_append(out, s->content, s->content_n));
        done = end;
    }
    DT_TRY(rc);
    return dt_text_append(out, p + done, n - done);
}

static int append_point(struct dt_text *out, uint32_t c)
{
    char u[4];
    return dt_text_append(out, u, dt_utf8_put(c, u));
}

/* ---- Normal forms ------------------------------------------------------------------------ */

static int combining_class(int32_t c)
{
    return dt_is_inert((uint32_t)c) ? 0 : utf8proc_get_property(c)->combining_class;
}

static int compare_class(const void *a, const void *b)
{
    /* class << 32 | position: the position makes the order stable */
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Canonical order: each run of marks (class > 0) sorted by class. */
static int order_marks(int32_t *c, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        if (combining_class(c[i]) == 0) {
            i++;
            continue;
        }
        int64_t end = i;
        bool sorted = true;
        for (int last = 0; end < n; end++) {
            int class = combining_class(c[end]);
            if (class == 0)
                break;
            sorted = sorted && class >= last;
            last = class;
        }
        if (!sorted) {
            uint64_t *key = malloc((size_t)(end - i) * (sizeof *key + sizeof *c));
            if (!key)
                return DT_FAIL(DT_E_MEMORY, "no memory to order %lld marks", (long long)(end - i));
            int32_t *copy = (int32_t *)(key + (end - i));
            memcpy(copy, c + i, (size_t)(end - i) * sizeof *c);
            for (int64_t k = 0; k < end - i; k++)
                key[k] = (uint64_t)combining_class(copy[k]) << 32 | (uint64_t)k;
            qsort(key, (size_t)(end - i), sizeof *key, compare_class);
            for (int64_t k = 0; k < end - i; k++)
                c[i + k] = copy[key[k] & 0xffffffffu];
            free(key);
        }
        i = end;
    }
    return 0;
}

static int decompose(struct dt_encoder *e, const char *p, size_t n, bool compat, int64_t *count)
{
    utf8proc_option_t options = compat ? UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT
                                       : UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    *count = 0;
    for (size_t i = 0, size; i < n; i += size) {
        uint32_t c = dt_utf8_get(p + i, &size);
        DT_TRY(dt_grow(&e->scratch, &e->scratch_capacity, *count + 32, sizeof *e->scratch));
        int last = 0;
        if (c < 0x80 || dt_is_inert(c)) {
            e->scratch[(*count)++] = (int32_t)c;
            continue;
        }
        utf8proc_ssize_t k =
            utf8proc_decompose_char((int32_t)c, e->scratch + *count, 32, options, &last);
        if (k < 0 || k > 32)
            return DT_FAIL(DT_E_INTERNAL, "U+%04X does not decompose: %s", c, utf8proc_errmsg(k));
        *count += k;
    }
    return order_marks(e->scratch, *count);
}

/* Composes c[n] in place, piece by piece between inert characters; returns the new length. */
static int64_t compose(int32_t *c, int64_t n)
{
    int64_t to = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = i;
        while (end < n && !dt_is_inert((uint32_t)c[end]))
            end++;
        utf8proc_ssize_t k =
            utf8proc_normalize_utf32(c + i, end - i, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        memmove(c + to, c + i, (size_t)k * sizeof *c);
        to += k;
        for (i = end; i < n && dt_is_inert((uint32_t)c[i]); i++)
            c[to++] = c[i];
    }
    return to;
}

/* All characters below `limit`? NFC touches nothing below U+0300, no form touches ASCII. */
static bool all_below(const char *p, size_t n, unsigned char limit)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= limit)
            return false;
    return true;
}

static int normal_form(struct dt_encoder *e, enum dt_stage_kind kind, const char *p, size_t n,
                       struct dt_text *out)
{
    int64_t count;
    DT_TRY(decompose(e, p, n, kind == DT_NORM_NFKC || kind == DT_NORM_NFKD, &count));
    if (kind == DT_NORM_NFC || kind == DT_NORM_NFKC)
        count = compose(e->scratch, count);
    for (int64_t i = 0; i < count; i++)
        DT_TRY(append_point(out, (uint32_t)e->scratch[i]));
    return 0;
}

/* ---- The others -------------------------------------------------------------------------- */

static int lowercase(const char *p, size_t n, struct dt_text *out)
{
    for (size_t i = 0, size; i < n; i += size) {
        uint32_t c = dt_utf8_get(p + i, &size);
        DT_TRY(append_point(out, dt_lower(c)));
        if (c == 0x130) /* the only one with two characters */
            DT_TRY(append_point(out, 0x307));
    }
    return 0;
}

static int strip_accents(const char *p, size_t n, struct dt_text *out)
{
    for (size_t i = 0, size; i < n; i += size)
        if (!(dt_class_of(dt_utf8_get(p + i, &size)) & DT_CLASS_MARK))
            DT_TRY(dt_text_append(out, p + i, size));
    return 0;
}

static bool space_before(const char *p, size_t *n)
{
    size_t at = *n - 1, size;
    while (at > 0 && ((unsigned char)p[at] & 0xc0) == 0x80)
        at--;
    if (!(dt_class_of(dt_utf8_get(p + at, &size)) & DT_CLASS_SPACE))
        return false;
    *n = at;
    return true;
}

static void strip(const struct dt_stage *s, const char **p, size_t *n)
{
    size_t size;
    while (s->left && *n > 0 && (dt_class_of(dt_utf8_get(*p, &size)) & DT_CLASS_SPACE)) {
        *p += size;
        *n -= size;
    }
    while (s->right && *n > 0 && space_before(*p, n))
        ;
}

int dt_normalize(struct dt_encoder *e, const char **p, size_t *n)
{
    const struct dt_stages *stages = &e->t->normalizers;
    int turn = 0;
    for (int i = 0; i < stages->n; i++) {
        const struct dt_stage *s = &stages->p[i];
        struct dt_text *out = &e->norm[turn];
        if (s->kind == DT_NORM_STRIP) {
            strip(s, p, n);
            continue;
        }
        if (s->kind <= DT_NORM_NFKD && all_below(*p, *n, s->kind == DT_NORM_NFC ? 0xcc : 0x80))
            continue;
        if (s->kind == DT_NORM_PREPEND && *n == 0)
            continue;
        out->n = 0;
        switch (s->kind) {
        case DT_NORM_LOWERCASE:
            DT_TRY(lowercase(*p, *n, out));
            break;
        case DT_NORM_STRIP_ACCENTS:
            DT_TRY(strip_accents(*p, *n, out));
            break;
        case DT_NORM_REPLACE:
            DT_TRY(dt_replace_all(s, &e->matcher, *p, *n, out));
            break;
        case DT_NORM_PREPEND:
            DT_TRY(dt_text_append(out, s->content, s->content_n));
            DT_TRY(dt_text_append(out, *p, *n));
            break;
        default:
            DT_TRY(normal_form(e, s->kind, *p, *n, out));
            break;
        }
        *p = out->p ? out->p : "";
        *n = out->n;
        turn = 1 - turn;
    }
    return 0;
}
