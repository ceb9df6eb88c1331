/* The small things of a tokenizer: growing lists, look-ups, closing. */
#include "data/tokenizer_internal.h"

#include <stdio.h>

int dt_grow(void *array, int64_t *capacity, int64_t needed, size_t item)
{
    if (needed <= *capacity)
        return 0;
    int64_t want = *capacity < 8 ? 16 : *capacity * 2;
    if (want < needed)
        want = needed;
    void *old, *p = NULL;
    memcpy(&old, array, sizeof old);
    if ((uint64_t)want <= SIZE_MAX / 2 / item)
        p = realloc(old, (size_t)want * item);
    if (!p)
        return DT_FAIL(DT_E_MEMORY, "no memory for %lld items of %zu bytes", (long long)want, item);
    memcpy(array, &p, sizeof p);
    *capacity = want;
    return 0;
}

int dt_ids_push(struct dt_ids *ids, int32_t id)
{
    DT_TRY(dt_grow(&ids->p, &ids->capacity, ids->n + 1, sizeof *ids->p));
    ids->p[ids->n++] = id;
    return 0;
}

int dt_ids_append(struct dt_ids *ids, const int32_t *p, int64_t n)
{
    if (n == 0)
        return 0;
    DT_TRY(dt_grow(&ids->p, &ids->capacity, ids->n + n, sizeof *ids->p));
    memcpy(ids->p + ids->n, p, (size_t)n * sizeof *p);
    ids->n += n;
    return 0;
}

void dt_ids_free(struct dt_ids *ids)
{
    free(ids->p);
    *ids = (struct dt_ids){0};
}

int dt_text_reserve(struct dt_text *t, size_t more)
{
    if (more > SIZE_MAX / 4 || t->n > SIZE_MAX / 4)
        return DT_FAIL(DT_E_MEMORY, "text of %zu + %zu bytes is too long", t->n, more);
    size_t needed = t->n + more + 1;
    if (needed <= t->capacity)
        return 0;
    size_t want = t->capacity * 2 > needed ? t->capacity * 2 : needed;
    char *p = realloc(t->p, want);
    if (!p)
        return DT_FAIL(DT_E_MEMORY, "no memory for a text of %zu bytes", want);
    t->p = p;
    t->capacity = want;
    return 0;
}

int dt_text_append(struct dt_text *t, const char *p, size_t n)
{
    DT_TRY(dt_text_reserve(t, n));
    if (n > 0)
        memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = '\0';
    return 0;
}

void dt_text_free(struct dt_text *t)
{
    free(t->p);
    *t = (struct dt_text){0};
}

void dt_stages_free(struct dt_stages *s)
{
    for (int i = 0; i < s->n; i++) {
        dt_pattern_free(&s->p[i].pattern);
        free(s->p[i].content);
    }
    free(s->p);
    *s = (struct dt_stages){0};
}

void dt_tokenizer_close(struct dt_tokenizer *t)
{
    if (!t)
        return;
    dt_vocab_free(&t->vocab);
    free(t->merges.slot);
    free(t->added);
    free(t->plain.edge.slot);
    free(t->plain.match);
    free(t->normalized.edge.slot);
    free(t->normalized.match);
    dt_stages_free(&t->normalizers);
    dt_stages_free(&t->pre);
    dt_stages_free(&t->decoders);
    dt_ids_free(&t->before);
    dt_ids_free(&t->after);
    free(t->prefix);
    free(t->suffix);
    free(t->path);
    free(t);
}

int64_t dt_tokenizer_vocab_size(const struct dt_tokenizer *t)
{
    return t->vocab.size;
}

int32_t dt_tokenizer_id(const struct dt_tokenizer *t, const char *token, size_t bytes)
{
    return dt_vocab_find(&t->vocab, token, bytes);
}

const char *dt_tokenizer_token(const struct dt_tokenizer *t, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= t->vocab.size || !t->vocab.token[id].flags)
        return NULL;
    *bytes = t->vocab.token[id].n;
    return t->vocab.text.p + t->vocab.token[id].offset;
}

bool dt_tokenizer_is_special(const struct dt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size && (t->vocab.token[id].flags & DT_TOKEN_SPECIAL);
}

int32_t dt_tokenizer_eos(const struct dt_tokenizer *t)
{
    return t->eos;
}

int32_t dt_tokenizer_bos(const struct dt_tokenizer *t)
{
    return t->bos;
}

uint64_t dt_tokenizer_hash(const struct dt_tokenizer *t)
{
    return t->hash;
}

const char *dt_tokenizer_path(const struct dt_tokenizer *t)
{
    return t->path;
}
