/* Ids to text: the written tokens go through the decoder's stages, each from a list of strings to a
 * list of strings, and are joined. */
#include "data/tokenizer_internal.h"

/* A list of strings: their bytes in a row, and where each ends. */
struct parts {
    struct dt_text text;
    struct dt_spans span;
};

static int close_part(struct parts *x, size_t start)
{
    DT_TRY(dt_grow(&x->span.p, &x->span.capacity, x->span.n + 1, sizeof *x->span.p));
    x->span.p[x->span.n++] = (struct dt_span){start, x->text.n, false};
    return 0;
}

static int add_part(struct parts *x, const char *p, size_t n)
{
    size_t start = x->text.n;
    DT_TRY(dt_text_append(&x->text, p, n));
    return close_part(x, start);
}

static void parts_free(struct parts *x)
{
    dt_text_free(&x->text);
    free(x->span.p);
}

/* Bytes of the sequence at u, or of its longest valid beginning (then *whole is false). */
static size_t sequence(const unsigned char *u, size_t left, bool *whole)
{
    size_t size = u[0] < 0x80   ? 1
                  : u[0] < 0xc2 ? 0
                  : u[0] < 0xe0 ? 2
                  : u[0] < 0xf0 ? 3
                  : u[0] < 0xf5 ? 4
                                : 0;
    *whole = false;
    if (size == 0)
        return 1;
    for (size_t k = 1; k < size; k++) {
        unsigned char low = 0x80, high = 0xbf;
        if (k == 1) {
            low = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
            high = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
        }
        if (k >= left || u[k] < low || u[k] > high)
            return k;
    }
    *whole = true;
    return size;
}

/* Appends bytes as UTF-8, each maximal part of an invalid sequence as U+FFFD. */
static int append_lossy(struct dt_text *out, const char *p, size_t n)
{
    size_t done = 0;
    for (size_t i = 0, size; i < n; i += size) {
        bool whole;
        size = sequence((const unsigned char *)p + i, n - i, &whole);
        if (whole)
            continue;
        DT_TRY(dt_text_append(out, p + done, i - done));
        DT_TRY(dt_text_append(out, "\xef\xbf\xbd", 3));
        done = i + size;
    }
    return dt_text_append(out, p + done, n - done);
}

/* The raw bytes of one written token; a token with a character outside the byte alphabet stands for
 * itself. */
static int append_raw(struct dt_text *out, const char *p, size_t n)
{
    size_t mark = out->n;
    DT_TRY(dt_text_reserve(out, n));
    for (size_t i = 0, size; i < n; i += size) {
        int b = dt_char_byte(dt_utf8_get(p + i, &size));
        if (b < 0) {
            out->n = mark;
            return dt_text_append(out, p, n);
        }
        out->p[out->n++] = (char)b;
    }
    return 0;
}

static int byte_level(const struct parts *in, struct parts *out)
{
    struct dt_text raw = {0};
    int rc = 0;
    for (int64_t i = 0; i < in->span.n; i++)
        DT_CHECK(done, rc,
                 append_raw(&raw, in->text.p + in->span.p[i].start,
                            in->span.p[i].end - in->span.p[i].start));
    DT_CHECK(done, rc, append_lossy(&out->text, raw.p ? raw.p : "", raw.n));
    rc = close_part(out, 0);
done:
    dt_text_free(&raw);
    return rc;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that "<0xAB>" names, or -1. */
static int named_byte(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[4]) < 0)
        return -1;
    if (p[3] == '+') /* the library's number parser lets this pass */
        return hex_digit(p[4]);
    return hex_digit(p[3]) < 0 ? -1 : hex_digit(p[3]) * 16 + hex_digit(p[4]);
}

static int flush_bytes(struct parts *out, struct dt_text *bytes)
{
    if (bytes->n == 0)
        return 0;
    if (dt_utf8_valid(bytes->p, bytes->n) == bytes->n)
        DT_TRY(add_part(out, bytes->p, bytes->n));
    else
        for (size_t k = 0; k < bytes->n; k++)
            DT_TRY(add_part(out, "\xef\xbf\xbd", 3));
    bytes->n = 0;
    return 0;
}

/* A run of byte tokens is one string if it is UTF-8 as a whole, else one U+FFFD a byte. */
static int byte_fallback(const struct parts *in, struct parts *out)
{
    struct dt_text bytes = {0};
    int rc = 0;
    for (int64_t i = 0; i < in->span.n; i++) {
        const char *p = in->text.p + in->span.p[i].start;
        size_t n = in->span.p[i].end - in->span.p[i].start;
        int b = named_byte(p, n);
        if (b >= 0) {
            char c = (char)b;
            DT_CHECK(done, rc, dt_text_append(&bytes, &c, 1));
            continue;
        }
        DT_CHECK(done, rc, flush_bytes(out, &bytes));
        DT_CHECK(done, rc, add_part(out, p, n));
    }
    rc = flush_bytes(out, &bytes);
done:
    dt_text_free(&bytes);
    return rc;
}

/* Takes up to `start` and `stop` copies of the character from the ends. */
static void strip(const struct dt_stage *s, const char **p, size_t *n)
{
    size_t c = s->content_n;
    for (int64_t k = 0; k < s->start && *n >= c && memcmp(*p, s->content, c) == 0; k++) {
        *p += c;
        *n -= c;
    }
    for (int64_t k = 0; k < s->stop && *n >= c && memcmp(*p + *n - c, s->content, c) == 0; k++)
        *n -= c;
}

static int metaspace(const struct dt_stage *s, bool first, const char *p, size_t n,
                     struct dt_text *out)
{
    size_t c = s->content_n;
    for (size_t i = 0, size; i < n; i += size) {
        dt_utf8_get(p + i, &size);
        if (size != c || memcmp(p + i, s->content, c) != 0)
            DT_TRY(dt_text_append(out, p + i, size));
        else if (!first || s->prepend == DT_PREPEND_NEVER)
            DT_TRY(dt_text_append(out, " ", 1));
    }
    return 0;
}

/* The suffix that ends a word becomes a space, but for the last token. */
static int bpe_suffix(const struct dt_stage *s, bool last, const char *p, size_t n,
                      struct dt_text *out)
{
    while (n > 0) {
        const char *hit = s->content_n > 0 ? memmem(p, n, s->content, s->content_n) : NULL;
        size_t before = hit ? (size_t)(hit - p) : n;
        DT_TRY(dt_text_append(out, p, before));
        if (!hit)
            break;
        if (!last)
            DT_TRY(dt_text_append(out, " ", 1));
        p = hit + s->content_n;
        n -= before + s->content_n;
    }
    return 0;
}

static int one_part(const struct dt_stage *s, struct dt_matcher *m, bool first, bool last,
                    const char *p, size_t n, struct parts *out)
{
    size_t start = out->text.n;
    switch (s->kind) {
    case DT_DEC_STRIP:
        strip(s, &p, &n);
        return add_part(out, p, n);
    case DT_DEC_REPLACE:
        DT_TRY(dt_replace_all(s, m, p, n, &out->text));
        break;
    case DT_DEC_METASPACE:
        DT_TRY(metaspace(s, first, p, n, &out->text));
        break;
    default:
        DT_TRY(bpe_suffix(s, last, p, n, &out->text));
        break;
    }
    return close_part(out, start);
}

static int run_stage(const struct dt_stage *s, struct dt_matcher *m, const struct parts *in,
                     struct parts *out)
{
    if (s->kind == DT_DEC_BYTE_LEVEL)
        return byte_level(in, out);
    if (s->kind == DT_DEC_BYTE_FALLBACK)
        return byte_fallback(in, out);
    if (s->kind == DT_DEC_FUSE)
        return add_part(out, in->text.p ? in->text.p : "", in->text.n);
    for (int64_t i = 0; i < in->span.n; i++)
        DT_TRY(one_part(s, m, i == 0, i + 1 == in->span.n, in->text.p + in->span.p[i].start,
                        in->span.p[i].end - in->span.p[i].start, out));
    return 0;
}

/* The text that decoding starts from; NULL: no such id, or a special token to skip. Whether it is
 * one goes by that text, as in the library: a special token that a normalizer rewrote is none. */
static const char *token_text(const struct dt_tokenizer *t, int32_t id, bool skip_special,
                              size_t *n)
{
    if (id < 0 || id >= t->vocab.size || !t->vocab.token[id].flags)
        return NULL;
    const struct dt_token *k = &t->vocab.token[id];
    const char *p = t->vocab.text.p + k->decoded;
    *n = k->decoded_n;
    if (k->decoded != k->offset)
        id = dt_vocab_find(&t->vocab, p, *n);
    return skip_special && dt_tokenizer_is_special(t, id) ? NULL : p;
}

static int collect(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special,
                   struct parts *out)
{
    for (int64_t i = 0; i < n; i++) {
        size_t size;
        const char *p = token_text(t, ids[i], skip_special, &size);
        if (p)
            DT_TRY(add_part(out, p, size));
    }
    return 0;
}

int dt_decode(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special,
              struct dt_text *out)
{
    struct parts now = {0};
    struct dt_matcher m = {0};
    int rc;
    DT_CHECK(done, rc, collect(t, ids, n, skip_special, &now));
    for (int i = 0; i < t->decoders.n; i++) {
        struct parts next = {0};
        rc = run_stage(&t->decoders.p[i], &m, &now, &next);
        parts_free(&now);
        now = next;
        if (rc < 0)
            goto done;
    }
    if (t->has_decoder) {
        rc = dt_text_append(out, now.text.p ? now.text.p : "", now.text.n);
        goto done;
    }
    rc = dt_text_append(out, "", 0);
    for (int64_t i = 0; rc == 0 && i < now.span.n; i++) { /* no decoder: joined by spaces */
        if (i > 0)
            rc = dt_text_append(out, " ", 1);
        if (rc == 0)
            rc = dt_text_append(out, now.text.p + now.span.p[i].start,
                                now.span.p[i].end - now.span.p[i].start);
    }
done:
    parts_free(&now);
    dt_matcher_free(&m);
    return rc;
}

/* ---- Streaming --------------------------------------------------------------------------- */

/* Do the bytes end in the beginning of a character? (What can never become one is cut off by
 * `sequence` before the end, or is no lead byte.) */
static bool ends_open(const struct dt_text *raw)
{
    bool whole = true;
    size_t last = 0;
    unsigned char lead = 0;
    for (size_t at = 0; at < raw->n; at += last) {
        lead = (unsigned char)raw->p[at];
        last = sequence((const unsigned char *)raw->p + at, raw->n - at, &whole);
    }
    return !whole && lead >= 0xc2 && lead < 0xf5;
}

/* Byte-level: tokens up to the last whole character. */
static int settled_bytes(const struct dt_tokenizer *t, const int32_t *ids, int64_t n,
                         int64_t *count)
{
    struct dt_text raw = {0}; /* since the last whole character */
    int rc = 0;
    *count = 0;
    for (int64_t i = 0; rc == 0 && i < n; i++) {
        size_t size;
        const char *p = token_text(t, ids[i], true, &size);
        rc = p ? append_raw(&raw, p, size) : 0;
        if (rc == 0 && !ends_open(&raw)) {
            raw.n = 0;
            *count = i + 1;
        }
    }
    dt_text_free(&raw);
    return rc;
}

/* How many of ids[n] later ids can no longer change. Byte fallback: up to the last token that is no
 * byte, since a run of bytes is judged as a whole. Decoders that look at the end of the text: none
 * before the last call. */
static int settled(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, int64_t *count)
{
    *count = n;
    for (int i = 0; i < t->decoders.n; i++) {
        const struct dt_stage *s = &t->decoders.p[i];
        if (s->kind == DT_DEC_BYTE_LEVEL)
            return settled_bytes(t, ids, n, count);
        if (s->kind == DT_DEC_BPE || (s->kind == DT_DEC_STRIP && s->stop > 0))
            *count = 0;
        while (s->kind == DT_DEC_BYTE_FALLBACK && *count > 0) {
            size_t size;
            const char *p = token_text(t, ids[*count - 1], true, &size);
            if (p && named_byte(p, size) < 0)
                break;
            (*count)--;
        }
    }
    return 0;
}

int dt_decode_next(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, int64_t *state,
                   bool last, struct dt_text *out)
{
    int64_t count = n - *state, from = *state;
    size_t size;
    if (!last)
        DT_TRY(settled(t, ids + *state, n - *state, &count));
    if (count == 0)
        return 0;
    /* The first piece may be treated differently (a stripped space): decode with one token before.
     */
    while (from > 0 && !token_text(t, ids[from - 1], true, &size))
        from--;
    from -= from > 0;
    struct dt_text before = {0}, both = {0};
    int rc = dt_decode(t, ids + from, *state - from, true, &before);
    if (rc == 0)
        rc = dt_decode(t, ids + from, *state + count - from, true, &both);
    if (rc == 0)
        rc = dt_text_append(out, both.p + before.n, both.n - before.n);
    dt_text_free(&before);
    dt_text_free(&both);
    if (rc == 0)
        *state += count;
    return rc;
}
