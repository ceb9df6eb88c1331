/* Training, second half: the merges.
 *
 * Every pair of neighbours has a count and the list of words it was seen in. The most frequent pair
 * (of equals, the one with the smaller left, then right symbol) becomes a symbol; only the words on
 * its list change, and with them the counts of the pairs beside it. A heap gives the next pair;
 * an entry whose count has shrunk meanwhile goes back with the true one. Same corpus, same merges.
 */
#include "data/tokenizer_internal.h"
#include "data/tokenizer_train.h"

#include <stdio.h>

struct pair {
    int32_t left, right;
    int64_t count;
    int64_t offered; /* merge at which it last grew */
    int64_t *words;  /* indices, possibly twice or out of date */
    int64_t n, capacity;
};
struct candidate {
    int64_t count;
    int32_t left, right;
    int64_t pair;
};

struct learner {
    const struct dt_words *w;
    struct dt_learned *out;
    int32_t *symbol; /* all words in a row */
    int64_t *start;  /* by word; start[n] is the end */
    int32_t *length;
    struct dt_pairs index; /* (left, right) -> id = position in pair */
    struct pair *pair;
    int64_t pairs, pair_capacity;
    int64_t *grown; /* pairs that grew in this merge */
    int64_t grown_n, grown_capacity;
    struct candidate *heap;
    int64_t heap_n, heap_capacity;
    struct dt_vocab known; /* written form -> symbol */
};

/* ---- The heap ---------------------------------------------------------------------------- */

static bool before(const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static int push(struct learner *l, struct candidate c)
{
    DT_TRY(dt_grow(&l->heap, &l->heap_capacity, l->heap_n + 1, sizeof *l->heap));
    int64_t i = l->heap_n++;
    for (; i > 0 && before(&c, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = c;
    return 0;
}

static struct candidate pop(struct learner *l)
{
    struct candidate top = l->heap[0], last = l->heap[--l->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= l->heap_n)
            break;
        if (child + 1 < l->heap_n && before(&l->heap[child + 1], &l->heap[child]))
            child++;
        if (!before(&l->heap[child], &last))
            break;
        l->heap[i] = l->heap[child];
        i = child;
    }
    l->heap[i] = last;
    return top;
}

/* ---- Pairs ------------------------------------------------------------------------------- */

/* Count `by` more (or fewer) of a pair in a word. */
static int count_pair(struct learner *l, int32_t left, int32_t right, int64_t word, int64_t by)
{
    DT_TRY(dt_pairs_reserve(&l->index, l->index.count + 1));
    const struct dt_pair_slot *s = dt_pairs_get(&l->index, (uint32_t)left, (uint32_t)right);
    int64_t at = s ? s->id : l->pairs;
    if (!s) {
        DT_TRY(dt_grow(&l->pair, &l->pair_capacity, l->pairs + 1, sizeof *l->pair));
        l->pair[l->pairs++] = (struct pair){.left = left, .right = right, .offered = -1};
        dt_pairs_put(&l->index, (uint32_t)left, (uint32_t)right, 0, (uint32_t)at);
    }
    struct pair *p = &l->pair[at];
    p->count += by;
    if (by < 0)
        return 0;
    if (p->offered != l->out->merges) {
        p->offered = l->out->merges;
        DT_TRY(dt_grow(&l->grown, &l->grown_capacity, l->grown_n + 1, sizeof *l->grown));
        l->grown[l->grown_n++] = at;
    }
    if (p->n == 0 || p->words[p->n - 1] != word) {
        DT_TRY(dt_grow(&p->words, &p->capacity, p->n + 1, sizeof *p->words));
        p->words[p->n++] = word;
    }
    return 0;
}

/* Into the heap with what grew. */
static int offer(struct learner *l)
{
    for (int64_t i = 0; i < l->grown_n; i++) {
        const struct pair *p = &l->pair[l->grown[i]];
        if (p->count > 0)
            DT_TRY(push(l, (struct candidate){p->count, p->left, p->right, l->grown[i]}));
    }
    l->grown_n = 0;
    return 0;
}

/* Replace the pair in one word and correct the counts of its neighbours. */
static int merge_word(struct learner *l, int64_t word, int32_t left, int32_t right, int32_t into)
{
    int32_t *s = l->symbol + l->start[word];
    int64_t count = l->w->word[word].count;
    int32_t n = l->length[word], to = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to++] = s[i];
            continue;
        }
        if (to > 0) {
            DT_TRY(count_pair(l, s[to - 1], left, word, -count));
            DT_TRY(count_pair(l, s[to - 1], into, word, count));
        }
        if (i + 2 < n) {
            DT_TRY(count_pair(l, right, s[i + 2], word, -count));
            DT_TRY(count_pair(l, into, s[i + 2], word, count));
        }
        s[to++] = into;
        i++;
    }
    l->length[word] = to;
    return 0;
}

/* ---- Symbols ----------------------------------------------------------------------------- */

static int add_symbol(struct learner *l, const char *p, size_t n)
{
    struct dt_learned *o = l->out;
    DT_TRY(dt_grow(&o->symbol, &o->symbol_capacity, o->symbols + 1, sizeof *o->symbol));
    o->symbol[o->symbols] = (struct dt_symbol){o->text.n, (uint32_t)n};
    DT_TRY(dt_vocab_add(&l->known, p, n, o->symbols, DT_TOKEN_MODEL));
    o->symbols++;
    return dt_text_append(&o->text, p, n);
}

/* The symbol that two make; one that is written alike is the same. */
static int join(struct learner *l, int32_t left, int32_t right, int32_t *into)
{
    struct dt_learned *o = l->out;
    struct dt_text both = {0};
    int rc;
    DT_CHECK(done, rc,
             dt_text_append(&both, o->text.p + o->symbol[left].offset, o->symbol[left].n));
    DT_CHECK(done, rc,
             dt_text_append(&both, o->text.p + o->symbol[right].offset, o->symbol[right].n));
    *into = dt_vocab_find(&l->known, both.p, both.n);
    if (*into < 0) {
        *into = (int32_t)o->symbols;
        rc = add_symbol(l, both.p, both.n);
    }
done:
    dt_text_free(&both);
    return rc;
}

static int alphabet(struct learner *l, int32_t byte_symbol[256])
{
    for (uint32_t c = 0; c < 0x144; c++) {
        int b = dt_char_byte(c);
        char u[4];
        if (b < 0)
            continue;
        byte_symbol[b] = (int32_t)l->out->symbols;
        DT_TRY(add_symbol(l, u, dt_utf8_put(c, u)));
    }
    return 0;
}

/* ---- Learning ---------------------------------------------------------------------------- */

static int prepare(struct learner *l, int64_t symbols)
{
    int32_t byte_symbol[256];
    const struct dt_words *w = l->w;
    DT_TRY(dt_vocab_reserve(&l->known, symbols, symbols));
    DT_TRY(alphabet(l, byte_symbol));
    DT_TRY(DT_NEW(&l->symbol, w->text.n + 1));
    DT_TRY(DT_NEW(&l->start, w->n + 1));
    DT_TRY(DT_NEW(&l->length, w->n + 1));
    for (int64_t k = 0; k < w->n; k++) {
        const struct dt_word *word = &w->word[k];
        int32_t *s = l->symbol + word->offset;
        l->start[k] = (int64_t)word->offset;
        l->length[k] = (int32_t)word->n;
        for (uint32_t i = 0; i < word->n; i++)
            s[i] = byte_symbol[(unsigned char)w->text.p[word->offset + i]];
        for (uint32_t i = 0; i + 1 < word->n; i++)
            DT_TRY(count_pair(l, s[i], s[i + 1], k, word->count));
    }
    return offer(l);
}

static int merge(struct learner *l, const struct candidate *c)
{
    struct dt_learned *o = l->out;
    int32_t into;
    DT_TRY(join(l, c->left, c->right, &into));
    DT_TRY(dt_grow(&o->merge, &o->merge_capacity, o->merges + 1, sizeof *o->merge));
    o->merge[o->merges++] = (struct dt_merge){c->left, c->right, into};
    struct pair gone = l->pair[c->pair];
    l->pair[c->pair].words = NULL;
    l->pair[c->pair].n = l->pair[c->pair].capacity = 0;
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < gone.n; i++)
        rc = merge_word(l, gone.words[i], c->left, c->right, into);
    l->pair[c->pair].count = 0;
    free(gone.words);
    return rc < 0 ? rc : offer(l);
}

static int learn(struct learner *l, int64_t symbols, int64_t min_frequency)
{
    struct dt_progress progress;
    int rc = 0;
    dt_progress_begin(&progress, "learning merges", "tokens", (double)symbols);
    while (rc == 0 && l->out->symbols < symbols && l->heap_n > 0) {
        struct candidate c = pop(l);
        int64_t now = l->pair[c.pair].count;
        if (now < 1 || now < min_frequency)
            continue;
        if (now != c.count) {
            c.count = now;
            rc = push(l, c);
            continue;
        }
        rc = merge(l, &c);
        if (l->out->symbols % 64 == 0)
            dt_progress_update(&progress, (double)l->out->symbols, NULL);
    }
    dt_progress_end(&progress);
    if (rc == 0 && l->out->symbols < symbols)
        dt_info("the text gives only %lld of %lld tokens: no further pair occurs often enough",
                (long long)l->out->symbols, (long long)symbols);
    return rc;
}

int dt_learn(const struct dt_words *w, int64_t symbols, int64_t min_frequency,
             struct dt_learned *out)
{
    struct learner l = {.w = w, .out = out};
    int rc = prepare(&l, symbols);
    if (rc == 0)
        rc = learn(&l, symbols, min_frequency);
    for (int64_t i = 0; i < l.pairs; i++)
        free(l.pair[i].words);
    free(l.pair);
    free(l.index.slot);
    free(l.heap);
    free(l.grown);
    free(l.symbol);
    free(l.start);
    free(l.length);
    dt_vocab_free(&l.known);
    return rc;
}

void dt_learned_free(struct dt_learned *l)
{
    free(l->merge);
    free(l->symbol);
    dt_text_free(&l->text);
    *l = (struct dt_learned){0};
}
