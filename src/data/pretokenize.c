/* Pre-tokenizers: a piece of text to words.
 *
 * The stages run depth first: a stage hands every sub-piece straight to the next one, and the last
 * hands words to BPE, so nothing but the cuts of one stage is ever stored. Plain isolated splits,
 * the usual case, are not stored either. */
#include "data/tokenizer_internal.h"

static int run(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start);

static int pass(struct dt_encoder *e, int at, const char *p, size_t from, size_t to, bool at_start)
{
    return from == to ? 0 : run(e, at + 1, p + from, to - from, at_start && from == 0);
}

/* Every match and every gap is a piece. */
static int isolated(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start)
{
    struct dt_matches m = {&e->t->pre.p[at].pattern, &e->matcher, p, n, 0, -1};
    size_t start, end, done = 0;
    int rc;
    while ((rc = dt_matches_next(&m, &start, &end)) > 0) {
        DT_TRY(pass(e, at, p, done, start, at_start));
        DT_TRY(pass(e, at, p, start, end, at_start));
        done = end;
    }
    DT_TRY(rc);
    return pass(e, at, p, done, n, at_start);
}

static int span(struct dt_spans *s, size_t start, size_t end, bool match)
{
    DT_TRY(dt_grow(&s->p, &s->capacity, s->n + 1, sizeof *s->p));
    s->p[s->n++] = (struct dt_span){start, end, match};
    return 0;
}

static int spans_of_pattern(struct dt_encoder *e, int at, const char *p, size_t n)
{
    const struct dt_stage *stage = &e->t->pre.p[at];
    struct dt_spans *s = &e->stage_span[at];
    struct dt_matches m = {&stage->pattern, &e->matcher, p, n, 0, -1};
    size_t start, end, done = 0;
    int rc;
    while ((rc = dt_matches_next(&m, &start, &end)) > 0) {
        if (done < start)
            DT_TRY(span(s, done, start, stage->invert));
        DT_TRY(span(s, start, end, !stage->invert));
        done = end;
    }
    DT_TRY(rc);
    return done < n ? span(s, done, n, stage->invert) : 0;
}

/* Each character of the class is a match of its own. */
static int spans_of_class(struct dt_spans *s, const char *p, size_t n, unsigned class)
{
    size_t done = 0, size;
    for (size_t i = 0; i < n; i += size) {
        if (!(dt_class_of(dt_utf8_get(p + i, &size)) & class))
            continue;
        if (done < i)
            DT_TRY(span(s, done, i, false));
        DT_TRY(span(s, i, i + size, true));
        done = i + size;
    }
    return done < n ? span(s, done, n, false) : 0;
}

/* \w+|[^\w\s]+ are the words; white space goes. */
static int spans_of_words(struct dt_spans *s, const char *p, size_t n)
{
    size_t size, start = 0;
    int kind = 0; /* 1 word, 2 other, 3 white space */
    for (size_t i = 0; i < n; i += size) {
        unsigned c = dt_class_of(dt_utf8_get(p + i, &size));
        int now = c & DT_CLASS_WORD ? 1 : c & DT_CLASS_SPACE ? 3 : 2;
        if (kind != 0 && now != kind) {
            DT_TRY(span(s, start, i, kind == 3));
            start = i;
        }
        kind = now;
    }
    return start < n ? span(s, start, n, kind == 3) : 0;
}

/* Give each match to its neighbour; a second match in a row stands alone. */
static void merge_previous(struct dt_spans *s)
{
    int64_t n = 0;
    bool previous = false;
    for (int64_t i = 0; i < s->n; i++) {
        bool match = s->p[i].match;
        if (match && !previous && n > 0)
            s->p[n - 1].end = s->p[i].end;
        else
            s->p[n++] = s->p[i];
        previous = match;
    }
    s->n = n;
}

static void merge_next(struct dt_spans *s)
{
    int64_t n = s->n; /* results grow downwards from the end */
    bool previous = false;
    for (int64_t i = s->n - 1; i >= 0; i--) {
        bool match = s->p[i].match;
        if (match && !previous && n < s->n)
            s->p[n].start = s->p[i].start;
        else
            s->p[--n] = s->p[i];
        previous = match;
    }
    memmove(s->p, s->p + n, (size_t)(s->n - n) * sizeof *s->p);
    s->n -= n;
}

static void contiguous(struct dt_spans *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (n > 0 && s->p[n - 1].match == s->p[i].match)
            s->p[n - 1].end = s->p[i].end;
        else
            s->p[n++] = s->p[i];
    }
    s->n = n;
}

static int emit(struct dt_encoder *e, int at, const char *p, enum dt_behavior behavior,
                bool at_start)
{
    struct dt_spans *s = &e->stage_span[at];
    if (behavior == DT_MERGED_WITH_PREVIOUS)
        merge_previous(s);
    else if (behavior == DT_MERGED_WITH_NEXT && s->n > 0)
        merge_next(s);
    else if (behavior == DT_CONTIGUOUS)
        contiguous(s);
    for (int64_t i = 0; i < s->n; i++)
        if (behavior != DT_REMOVED || !s->p[i].match)
            DT_TRY(pass(e, at, p, s->p[i].start, s->p[i].end, at_start));
    return 0;
}

static int byte_level(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start)
{
    const struct dt_stage *stage = &e->t->pre.p[at];
    if (stage->add_prefix_space && n > 0 && p[0] != ' ') {
        struct dt_text *text = &e->stage_text[at];
        text->n = 0;
        DT_TRY(dt_text_append(text, " ", 1));
        DT_TRY(dt_text_append(text, p, n));
        p = text->p;
        n = text->n;
    }
    if (stage->use_regex)
        return isolated(e, at, p, n, at_start);
    return pass(e, at, p, 0, n, at_start);
}

static int metaspace(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start)
{
    const struct dt_stage *stage = &e->t->pre.p[at];
    const char *mark = stage->content;
    size_t mark_n = stage->content_n;
    struct dt_text *text = &e->stage_text[at];
    text->n = 0;
    bool marked = p[0] == ' ' || (n >= mark_n && memcmp(p, mark, mark_n) == 0);
    if (!marked &&
        (stage->prepend == DT_PREPEND_ALWAYS || (stage->prepend == DT_PREPEND_FIRST && at_start)))
        DT_TRY(dt_text_append(text, mark, mark_n));
    for (size_t i = 0; i < n;) {
        const char *space = memchr(p + i, ' ', n - i);
        size_t end = space ? (size_t)(space - p) : n;
        DT_TRY(dt_text_append(text, p + i, end - i));
        if (space)
            DT_TRY(dt_text_append(text, mark, mark_n));
        i = end + 1;
    }
    if (!stage->split)
        return pass(e, at, text->p, 0, text->n, at_start);
    e->stage_span[at].n = 0;
    DT_TRY(spans_of_pattern(e, at, text->p, text->n));
    return emit(e, at, text->p, DT_MERGED_WITH_NEXT, at_start);
}

/* After a byte-level stage that is not the last one: its pieces in the byte alphabet. */
static int write_bytes(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start)
{
    struct dt_text *text = &e->stage_text[at];
    text->n = 0;
    DT_TRY(dt_bytes_written(p, n, text));
    return pass(e, at, text->p, 0, text->n, at_start);
}

static int run(struct dt_encoder *e, int at, const char *p, size_t n, bool at_start)
{
    const struct dt_tokenizer *t = e->t;
    if (at == t->pre.n)
        return dt_bpe_word(e, p, n);
    const struct dt_stage *stage = &t->pre.p[at];
    struct dt_spans *s = &e->stage_span[at];
    s->n = 0;
    switch (stage->kind) {
    case DT_PRE_BYTE_LEVEL:
        return byte_level(e, at, p, n, at_start);
    case DT_PRE_WRITE_BYTES:
        return write_bytes(e, at, p, n, at_start);
    case DT_PRE_METASPACE:
        return metaspace(e, at, p, n, at_start);
    case DT_PRE_SPLIT:
        if (stage->behavior == DT_ISOLATED)
            return isolated(e, at, p, n, at_start);
        DT_TRY(spans_of_pattern(e, at, p, n));
        return emit(e, at, p, stage->behavior, at_start);
    case DT_PRE_DIGITS:
        DT_TRY(spans_of_class(s, p, n, DT_CLASS_NUMERIC));
        return emit(e, at, p, stage->individual ? DT_ISOLATED : DT_CONTIGUOUS, at_start);
    case DT_PRE_WHITESPACE:
        DT_TRY(spans_of_words(s, p, n));
        return emit(e, at, p, DT_REMOVED, at_start);
    case DT_PRE_WHITESPACE_SPLIT:
        DT_TRY(spans_of_class(s, p, n, DT_CLASS_SPACE));
        return emit(e, at, p, DT_REMOVED, at_start);
    default:
        DT_TRY(spans_of_class(s, p, n, DT_CLASS_PUNCTUATION));
        return emit(e, at, p, stage->behavior, at_start);
    }
}

int dt_pretokenize(struct dt_encoder *e, const char *p, size_t n, bool at_start)
{
    return n == 0 ? 0 : run(e, 0, p, n, at_start);
}
