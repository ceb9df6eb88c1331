/* Vocabulary, merge table, and the merging of one word.
 *
 * The pair of lowest rank, leftmost first, is merged until none is left. A short word is scanned
 * anew for every merge, which is fastest up to a few dozen symbols; a long one keeps its pairs in a
 * heap over a doubly linked list, n log n however long. Words met before come from a cache. */
#include "data/tokenizer_internal.h"

#include <stdio.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- Tables ------------------------------------------------------------------------------ */

int dt_pairs_reserve(struct dt_pairs *t, size_t count)
{
    size_t size = 16;
    while (size < count * 2)
        size *= 2;
    if (t->slot && t->mask + 1 >= size)
        return 0;
    struct dt_pairs old = *t;
    DT_TRY(DT_NEW(&t->slot, size));
    t->mask = size - 1;
    t->count = 0;
    for (size_t i = 0; old.slot && i <= old.mask; i++)
        if (old.slot[i].key != 0)
            dt_pairs_put(t, (uint32_t)((old.slot[i].key - 1) >> 32),
                         (uint32_t)(old.slot[i].key - 1), old.slot[i].rank, old.slot[i].id);
    free(old.slot);
    return 0;
}

void dt_pairs_put(struct dt_pairs *t, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t key = ((uint64_t)left << 32 | right) + 1;
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & t->mask;
    while (t->slot[i].key != 0 && t->slot[i].key != key)
        i = (i + 1) & t->mask;
    t->count += t->slot[i].key == 0;
    t->slot[i] = (struct dt_pair_slot){key, rank, id};
}

static size_t vocab_probe(const struct dt_vocab *v, const char *p, size_t n)
{
    size_t i = (size_t)XXH3_64bits(p, n) & v->mask;
    while (v->slot[i] >= 0) {
        const struct dt_token *k = &v->token[v->slot[i]];
        if (k->n == n && memcmp(v->text.p + k->offset, p, n) == 0)
            break;
        i = (i + 1) & v->mask;
    }
    return i;
}

int dt_vocab_reserve(struct dt_vocab *v, int64_t highest, int64_t count)
{
    size_t size = 16;
    while (size < (size_t)count * 2)
        size *= 2;
    DT_TRY(DT_NEW(&v->token, highest + 1));
    DT_TRY(DT_NEW(&v->slot, size));
    memset(v->slot, 0xff, size * sizeof *v->slot);
    v->mask = size - 1;
    v->limit = highest + 1;
    return dt_text_append(&v->text, "", 0);
}

int dt_vocab_add(struct dt_vocab *v, const char *p, size_t n, int64_t id, unsigned flags)
{
    if (v->token[id].flags)
        return DT_FAIL(DT_E_DATA, "id %lld is given to two tokens, \"%.40s\" and \"%.40s\"",
                       (long long)id, v->text.p + v->token[id].offset, p);
    size_t slot = vocab_probe(v, p, n);
    if (v->slot[slot] >= 0)
        return DT_FAIL(DT_E_DATA, "token \"%.40s\" has two ids, %d and %lld", p, v->slot[slot],
                       (long long)id);
    v->token[id] =
        (struct dt_token){v->text.n, v->text.n, (uint32_t)n, (uint32_t)n, flags | DT_TOKEN_PRESENT};
    v->slot[slot] = (int32_t)id;
    if (id >= v->size)
        v->size = id + 1;
    DT_TRY(dt_text_append(&v->text, p, n));
    return dt_text_append(&v->text, "", 1); /* a zero, so that messages can print the token */
}

int32_t dt_vocab_find(const struct dt_vocab *v, const char *p, size_t n)
{
    return v->slot[vocab_probe(v, p, n)];
}

int32_t dt_vocab_find_model(const struct dt_vocab *v, const char *p, size_t n)
{
    int32_t id = v->slot[vocab_probe(v, p, n)];
    return id >= 0 && (v->token[id].flags & DT_TOKEN_MODEL) ? id : -1;
}

void dt_vocab_free(struct dt_vocab *v)
{
    dt_text_free(&v->text);
    free(v->token);
    free(v->slot);
    *v = (struct dt_vocab){0};
}

/* ---- The cache of words ------------------------------------------------------------------ */

enum { CACHE_SLOTS = 1 << 16, CACHE_FILL = 3 << 14, CACHE_WORD = 64, CACHE_TEXT = 4 << 20 };

struct cache_slot {
    uint64_t hash; /* 0: free */
    uint32_t text, ids;
    uint16_t n, count;
};

struct dt_word_cache {
    struct cache_slot slot[CACHE_SLOTS];
    int64_t used;
    struct dt_text text;
    struct dt_ids ids;
};

int dt_word_cache_new(struct dt_word_cache **out)
{
    return DT_NEW(out, 1);
}

void dt_word_cache_free(struct dt_word_cache *c)
{
    if (!c)
        return;
    dt_text_free(&c->text);
    dt_ids_free(&c->ids);
    free(c);
}

static struct cache_slot *cache_find(struct dt_word_cache *c, uint64_t hash, const char *p,
                                     size_t n)
{
    size_t i = (size_t)hash & (CACHE_SLOTS - 1);
    while (c->slot[i].hash != 0) {
        if (c->slot[i].hash == hash && c->slot[i].n == n &&
            memcmp(c->text.p + c->slot[i].text, p, n) == 0)
            break;
        i = (i + 1) & (CACHE_SLOTS - 1);
    }
    return &c->slot[i];
}

static int cache_put(struct dt_word_cache *c, uint64_t hash, const char *p, size_t n,
                     const int32_t *ids, int64_t count)
{
    if (c->used >= CACHE_FILL || c->text.n + n > CACHE_TEXT) { /* full: forget everything */
        memset(c->slot, 0, sizeof c->slot);
        c->used = 0;
        c->text.n = 0;
        c->ids.n = 0;
    }
    struct cache_slot s = {hash, (uint32_t)c->text.n, (uint32_t)c->ids.n, (uint16_t)n,
                           (uint16_t)count};
    DT_TRY(dt_text_append(&c->text, p, n));
    DT_TRY(dt_ids_append(&c->ids, ids, count));
    *cache_find(c, hash, "", SIZE_MAX) = s;
    c->used++;
    return 0;
}

/* ---- Merging ----------------------------------------------------------------------------- */

enum { SHORT_WORD = 48 };
#define NO_RANK UINT32_MAX

static inline uint32_t pair_rank(const struct dt_pairs *t, int32_t a, int32_t b, int32_t *id)
{
    const struct dt_pair_slot *s = dt_pairs_get(t, (uint32_t)a, (uint32_t)b);
    if (!s)
        return NO_RANK;
    *id = (int32_t)s->id;
    return s->rank;
}

/* Merges symbol[n] in place; returns how many are left. */
static int64_t merge_short(const struct dt_pairs *t, int32_t *symbol, int64_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t into[SHORT_WORD];
    for (int64_t i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(t, symbol[i], symbol[i + 1], &into[i]);
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == NO_RANK)
            break;
        symbol[best] = into[best];
        int64_t tail = n - best - 2;
        memmove(symbol + best + 1, symbol + best + 2, (size_t)tail * sizeof *symbol);
        if (tail > 0) {
            memmove(rank + best + 1, rank + best + 2, (size_t)(tail - 1) * sizeof *rank);
            memmove(into + best + 1, into + best + 2, (size_t)(tail - 1) * sizeof *into);
            rank[best] = pair_rank(t, symbol[best], symbol[best + 1], &into[best]);
        } else {
            rank[best] = NO_RANK;
        }
        if (best > 0)
            rank[best - 1] = pair_rank(t, symbol[best - 1], symbol[best], &into[best - 1]);
        n--;
    }
    return n;
}

/* A long word: symbols in a linked list; heap keys are rank << 32 | position, so that the least key
 * is the lowest rank, leftmost. A key is stale when the pair at its position has another rank now.
 */
struct node {
    int32_t id, previous, next;
};
struct heap {
    uint64_t *key;
    int64_t n;
};

static void heap_push(struct heap *h, uint64_t key)
{
    int64_t i = h->n++;
    while (i > 0 && h->key[(i - 1) / 2] > key) {
        h->key[i] = h->key[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->key[i] = key;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->key[0], last = h->key[--h->n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && h->key[child + 1] < h->key[child])
            child++;
        if (h->key[child] >= last)
            break;
        h->key[i] = h->key[child];
        i = child;
    }
    h->key[i] = last;
    return top;
}

static void push_pair(const struct dt_pairs *t, struct heap *h, const struct node *node, int32_t at)
{
    int32_t id;
    if (at < 0 || node[at].next < 0)
        return;
    uint32_t rank = pair_rank(t, node[at].id, node[node[at].next].id, &id);
    if (rank != NO_RANK)
        heap_push(h, (uint64_t)rank << 32 | (uint32_t)at);
}

static int64_t merge_list(const struct dt_pairs *t, struct node *node, struct heap *h)
{
    while (h->n > 0) {
        uint64_t key = heap_pop(h);
        int32_t at = (int32_t)(key & 0xffffffffu), id = -1;
        if (node[at].id < 0 || node[at].next < 0)
            continue;
        int32_t right = node[at].next;
        if (pair_rank(t, node[at].id, node[right].id, &id) != key >> 32)
            continue;
        node[at].id = id;
        node[at].next = node[right].next;
        node[right].id = -1;
        if (node[at].next >= 0)
            node[node[at].next].previous = at;
        push_pair(t, h, node, node[at].previous);
        push_pair(t, h, node, at);
    }
    return 0;
}

/* Every merge removes a node and pushes at most two pairs: 3 n keys are enough. */
static int merge_long(struct dt_encoder *e, int32_t *symbol, int64_t n, int64_t *left)
{
    size_t nodes = (size_t)n * sizeof(struct node), keys = (size_t)n * 3 * sizeof(uint64_t);
    if (e->work_bytes < nodes + keys) {
        free(e->work);
        e->work = malloc(nodes + keys);
        e->work_bytes = e->work ? nodes + keys : 0;
        if (!e->work)
            return DT_FAIL(DT_E_MEMORY, "no memory to merge a word of %lld symbols", (long long)n);
    }
    struct heap h = {e->work, 0};
    struct node *node = (struct node *)((char *)e->work + keys);
    for (int32_t i = 0; i < n; i++)
        node[i] = (struct node){symbol[i], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i < n; i++)
        push_pair(&e->t->merges, &h, node, i);
    merge_list(&e->t->merges, node, &h);
    *left = 0;
    for (int32_t i = 0; i >= 0; i = node[i].next)
        symbol[(*left)++] = node[i].id;
    return 0;
}

/* ---- Symbols of a word ------------------------------------------------------------------- */

/* Appends the symbol of one character written s[n], or its bytes, or the unknown token. */
static int push_symbol(struct dt_encoder *e, const char *s, size_t n, bool *unknown)
{
    const struct dt_tokenizer *t = e->t;
    int32_t id = dt_vocab_find_model(&t->vocab, s, n);
    if (id >= 0) {
        if (*unknown)
            DT_TRY(dt_ids_push(e->out, t->unk));
        *unknown = false;
        return dt_ids_push(e->out, id);
    }
    if (t->byte_fallback) {
        size_t k = 0;
        while (k < n && t->fallback_id[(unsigned char)s[k]] >= 0)
            k++;
        if (k == n) {
            for (k = 0; k < n; k++)
                DT_TRY(dt_ids_push(e->out, t->fallback_id[(unsigned char)s[k]]));
            return 0;
        }
    }
    if (t->unk >= 0) {
        if (*unknown && !t->fuse_unk)
            DT_TRY(dt_ids_push(e->out, t->unk));
        *unknown = true;
    }
    return 0; /* neither byte nor unknown token: the character is lost, as in the library */
}

/* The initial symbols of a written word onto e->out. */
static int push_symbols(struct dt_encoder *e, const char *p, size_t n)
{
    const struct dt_tokenizer *t = e->t;
    struct dt_text with = {0};
    bool unknown = false;
    int rc = 0;
    for (size_t i = 0, size; i < n; i += size) {
        dt_utf8_get(p + i, &size);
        bool first = i == 0, last = i + size == n;
        if ((first || !t->prefix) && (!last || !t->suffix)) {
            DT_CHECK(done, rc, push_symbol(e, p + i, size, &unknown));
            continue;
        }
        with.n = 0;
        if (!first && t->prefix)
            DT_CHECK(done, rc, dt_text_append(&with, t->prefix, t->prefix_n));
        DT_CHECK(done, rc, dt_text_append(&with, p + i, size));
        if (last && t->suffix)
            DT_CHECK(done, rc, dt_text_append(&with, t->suffix, t->suffix_n));
        DT_CHECK(done, rc, push_symbol(e, with.p, with.n, &unknown));
    }
    if (unknown)
        DT_CHECK(done, rc, dt_ids_push(e->out, t->unk));
done:
    dt_text_free(&with);
    return rc;
}

static int encode_word(struct dt_encoder *e, const char *p, size_t n)
{
    const struct dt_tokenizer *t = e->t;
    int64_t from = e->out->n;
    if (t->raw && (t->ignore_merges || !t->bytes_complete)) {
        e->written.n = 0;
        DT_TRY(dt_bytes_written(p, n, &e->written));
    }
    const char *w = t->raw ? e->written.p : p;
    size_t w_n = t->raw ? e->written.n : n;
    if (t->ignore_merges) {
        int32_t id = dt_vocab_find_model(&t->vocab, w, w_n);
        if (id >= 0)
            return dt_ids_push(e->out, id);
    }
    if (t->raw && t->bytes_complete) {
        DT_TRY(dt_grow(&e->out->p, &e->out->capacity, from + (int64_t)n, sizeof *e->out->p));
        for (size_t i = 0; i < n; i++)
            e->out->p[from + (int64_t)i] = t->byte_id[(unsigned char)p[i]];
        e->out->n = from + (int64_t)n;
    } else {
        DT_TRY(push_symbols(e, w, w_n));
    }
    int64_t count = e->out->n - from;
    if (count > INT32_MAX - 1)
        return DT_FAIL(DT_E_UNSUPPORTED, "a word of %lld symbols is too long; cut the text first",
                       (long long)count);
    if (count <= 1)
        return 0;
    if (count <= SHORT_WORD)
        count = merge_short(&t->merges, e->out->p + from, count);
    else
        DT_TRY(merge_long(e, e->out->p + from, count, &count));
    e->out->n = from + count;
    return 0;
}

int dt_bpe_word(struct dt_encoder *e, const char *p, size_t n)
{
    if (n == 0)
        return 0;
    if (n > CACHE_WORD)
        return encode_word(e, p, n);
    if (n == 1 && e->t->raw && e->t->bytes_complete)
        return dt_ids_push(e->out, e->t->byte_id[(unsigned char)p[0]]);
    uint64_t hash = XXH3_64bits(p, n) | 1;
    struct cache_slot *s = cache_find(e->cache, hash, p, n);
    if (s->hash != 0)
        return dt_ids_append(e->out, e->cache->ids.p + s->ids, s->count);
    int64_t from = e->out->n;
    DT_TRY(encode_word(e, p, n));
    int64_t count = e->out->n - from;
    if (count == 0 || count > UINT16_MAX) /* nothing to keep, or more than a slot counts */
        return 0;
    return cache_put(e->cache, hash, p, n, e->out->p + from, count);
}
