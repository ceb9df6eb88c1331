/* Text to ids: cut out the added tokens, normalize what is between them, look for the added tokens
 * that are written in normalized text, and give the rest to the pre-tokenizers. */
#include "data/tokenizer_internal.h"

int dt_encoder_new(const struct dt_tokenizer *t, struct dt_encoder **out)
{
    struct dt_encoder *e;
    int rc;
    *out = NULL;
    DT_TRY(DT_NEW(&e, 1));
    e->t = t;
    DT_CHECK(failed, rc, DT_NEW(&e->stage_text, t->pre.n + 1));
    DT_CHECK(failed, rc, DT_NEW(&e->stage_span, t->pre.n + 1));
    DT_CHECK(failed, rc, dt_word_cache_new(&e->cache));
    *out = e;
    return 0;
failed:
    dt_encoder_free(e);
    return rc;
}

void dt_encoder_free(struct dt_encoder *e)
{
    if (!e)
        return;
    dt_matcher_free(&e->matcher);
    dt_text_free(&e->norm[0]);
    dt_text_free(&e->norm[1]);
    for (int i = 0; e->stage_text && i < e->t->pre.n; i++)
        dt_text_free(&e->stage_text[i]);
    for (int i = 0; e->stage_span && i < e->t->pre.n; i++)
        free(e->stage_span[i].p);
    free(e->stage_text);
    free(e->stage_span);
    dt_text_free(&e->written);
    free(e->scratch);
    free(e->work);
    dt_word_cache_free(e->cache);
    free(e);
}

/* ---- Added tokens ------------------------------------------------------------------------ */

/* The longest token at p, or NULL. */
static const struct dt_added *longest(const struct dt_tokenizer *t, const struct dt_trie *trie,
                                      const char *p, size_t left, size_t *size)
{
    const struct dt_added *best = NULL;
    uint32_t node = 0;
    for (size_t i = 0; i < left; i++) {
        const struct dt_pair_slot *s = dt_pairs_get(&trie->edge, node, (unsigned char)p[i]);
        if (!s)
            break;
        node = s->id;
        if (trie->match[node] >= 0) {
            best = &t->added[trie->match[node]];
            *size = i + 1;
        }
    }
    return best;
}

static bool class_before(const char *p, size_t at, unsigned class)
{
    size_t size;
    if (at == 0)
        return false;
    for (at--; at > 0 && ((unsigned char)p[at] & 0xc0) == 0x80;)
        at--;
    return dt_class_of(dt_utf8_get(p + at, &size)) & class;
}

static bool class_after(const char *p, size_t n, size_t at, unsigned class)
{
    size_t size;
    return at < n && (dt_class_of(dt_utf8_get(p + at, &size)) & class);
}

/* The next token at or after *at: its extent with the white space it takes. Text before `taken`
 * belongs to an earlier token already. */
static const struct dt_added *next_added(const struct dt_encoder *e, const struct dt_trie *trie,
                                         const char *p, size_t n, size_t *at, size_t taken,
                                         size_t *start, size_t *end)
{
    while (*at < n) {
        size_t size = 0;
        const struct dt_added *a = NULL;
        if (trie->first[(unsigned char)p[*at]])
            a = longest(e->t, trie, p + *at, n - *at, &size);
        if (!a) {
            (*at)++;
            continue;
        }
        *start = *at;
        *end = *at + size;
        *at = *end;
        if (a->special && (e->flags & DT_ENCODE_PLAIN))
            continue;
        if (a->single_word &&
            (class_before(p, *start, DT_CLASS_WORD) || class_after(p, n, *end, DT_CLASS_WORD)))
            continue;
        while (a->lstrip && *start > taken && class_before(p, *start, DT_CLASS_SPACE))
            do
                (*start)--;
            while (((unsigned char)p[*start] & 0xc0) == 0x80);
        while (a->rstrip && class_after(p, n, *end, DT_CLASS_SPACE)) {
            dt_utf8_get(p + *end, &size);
            *end += size;
        }
        return a;
    }
    return NULL;
}

static int encode_between(struct dt_encoder *e, const char *p, size_t n, bool at_start)
{
    if (n == 0)
        return 0;
    DT_TRY(dt_normalize(e, &p, &n));
    size_t at = 0, taken = 0, start, end;
    const struct dt_added *a;
    while (e->t->normalized.count > 0 &&
           (a = next_added(e, &e->t->normalized, p, n, &at, taken, &start, &end)) != NULL) {
        if (taken < start)
            DT_TRY(dt_pretokenize(e, p + taken, start - taken, at_start && taken == 0));
        DT_TRY(dt_ids_push(e->out, a->id));
        taken = end;
    }
    return taken < n ? dt_pretokenize(e, p + taken, n - taken, at_start && taken == 0) : 0;
}

static int encode(struct dt_encoder *e, const char *p, size_t n)
{
    size_t at = 0, taken = 0, start, end;
    const struct dt_added *a;
    while (e->t->plain.count > 0 &&
           (a = next_added(e, &e->t->plain, p, n, &at, taken, &start, &end)) != NULL) {
        if (taken < start)
            DT_TRY(encode_between(e, p + taken, start - taken, taken == 0));
        DT_TRY(dt_ids_push(e->out, a->id));
        taken = end;
    }
    return taken < n ? encode_between(e, p + taken, n - taken, taken == 0) : 0;
}

int dt_encode(struct dt_encoder *e, const char *text, size_t bytes, unsigned flags,
              struct dt_ids *out)
{
    size_t bad = dt_utf8_valid(text, bytes);
    if (bad < bytes)
        return DT_FAIL(DT_E_DATA, "not UTF-8: byte 0x%02x at offset %zu; convert the text first",
                       (unsigned char)text[bad], bad);
    e->out = out;
    e->flags = flags;
    if (flags & DT_ENCODE_SPECIAL)
        DT_TRY(dt_ids_append(out, e->t->before.p, e->t->before.n));
    DT_TRY(encode(e, text, bytes));
    if (flags & DT_ENCODE_SPECIAL)
        DT_TRY(dt_ids_append(out, e->t->after.p, e->t->after.n));
    return 0;
}
