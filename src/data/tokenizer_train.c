/* Training, first half: from files to distinct words with counts, and the whole in three calls.
 *
 * A text file is cut by GPT-2's pattern as encoding will cut it. It is read in pieces; a piece ends
 * before a line break that follows a character which is no white space, because there the pattern
 * always cuts, so the pieces change nothing. Of a JSONL file every string of a row counts, but for
 * the names of roles. */
#include "data/tokenizer_train.h"

#include "base/file.h"
#include "data/lines.h"
#include "data/tokenizer_internal.h"

#include <stdio.h>
#include <zlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PIECE = 1 << 20, LONGEST_WORD = 1024 };

/* ---- Words ------------------------------------------------------------------------------- */

static int rehash(struct dt_words *w)
{
    size_t size = w->slot ? (w->mask + 1) * 2 : 1 << 14;
    int64_t *slot;
    DT_TRY(DT_NEW(&slot, size));
    free(w->slot);
    w->slot = slot;
    w->mask = size - 1;
    for (int64_t k = 0; k < w->n; k++) {
        size_t i = (size_t)XXH3_64bits(w->text.p + w->word[k].offset, w->word[k].n) & w->mask;
        while (slot[i])
            i = (i + 1) & w->mask;
        slot[i] = k + 1;
    }
    return 0;
}

static int count_word(struct dt_words *w, const char *p, size_t n)
{
    if (!w->slot || (size_t)w->n * 2 > w->mask)
        DT_TRY(rehash(w));
    size_t i = (size_t)XXH3_64bits(p, n) & w->mask;
    for (; w->slot[i]; i = (i + 1) & w->mask) {
        struct dt_word *k = &w->word[w->slot[i] - 1];
        if (k->n == n && memcmp(w->text.p + k->offset, p, n) == 0) {
            k->count++;
            return 0;
        }
    }
    DT_TRY(dt_grow(&w->word, &w->capacity, w->n + 1, sizeof *w->word));
    w->word[w->n] = (struct dt_word){w->text.n, (uint32_t)n, 1};
    DT_TRY(dt_text_append(&w->text, p, n));
    w->slot[i] = ++w->n;
    return 0;
}

/* A word of more than LONGEST_WORD bytes counts as several: no token will be as long. */
static int count_text(struct dt_words *w, const char *p, size_t n)
{
    for (size_t at = 0, end; at < n; at = end) {
        end = dt_scan_gpt2(p, n, at);
        for (; end - at > LONGEST_WORD; at += LONGEST_WORD)
            DT_TRY(count_word(w, p + at, LONGEST_WORD));
        DT_TRY(count_word(w, p + at, end - at));
    }
    return 0;
}

void dt_words_free(struct dt_words *w)
{
    dt_text_free(&w->text);
    dt_text_free(&w->piece);
    free(w->word);
    free(w->slot);
    *w = (struct dt_words){0};
}

/* ---- Files ------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* How much of p[n] can be counted before more is read; n at the end of the file. */
static size_t safe_cut(const char *p, size_t n, bool last)
{
    if (last)
        return n;
    for (size_t k = n - 1; k > 0; k--)
        if (p[k] == '\n' && (unsigned char)p[k - 1] < 0x80 && !is_space(p[k - 1]))
            return k;
    return 0;
}

static int count_plain(struct dt_words *w, const char *path, gzFile f, struct dt_progress *progress)
{
    size_t before = 0;
    bool last = false;
    w->piece.n = 0;
    while (!last) {
        DT_TRY(dt_text_reserve(&w->piece, PIECE));
        int got = gzread(f, w->piece.p + w->piece.n, PIECE);
        int code;
        const char *words = gzerror(f, &code);
        if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
            return DT_FAIL(DT_E_DATA, "%s: %s", path, words);
        w->piece.n += (size_t)got;
        last = got == 0;
        size_t cut = w->piece.n == 0 ? 0 : safe_cut(w->piece.p, w->piece.n, last);
        size_t good = dt_utf8_valid(w->piece.p, cut);
        if (good < cut)
            return DT_FAIL(DT_E_DATA, "%s: not UTF-8: byte 0x%02x at offset %zu; convert it first",
                           path, (unsigned char)w->piece.p[good], before + good);
        DT_TRY(count_text(w, w->piece.p, cut));
        w->piece.n -= cut;
        if (cut > 0)
            memmove(w->piece.p, w->piece.p + cut, w->piece.n);
        before += cut;
        dt_progress_update(progress, (double)gzoffset(f), NULL);
    }
    return 0;
}

static int count_strings(struct dt_words *w, const json_t *j, int depth)
{
    const char *key;
    json_t *value;
    size_t i;
    if (depth > 32)
        return DT_FAIL(DT_E_DATA, "a row nested deeper than 32");
    if (json_is_string(j))
        return count_text(w, json_string_value(j), json_string_length(j));
    json_object_foreach((json_t *)j, key,
                        value) if (strcmp(key, "role") != 0 && strcmp(key, "from") != 0)
        DT_TRY(count_strings(w, value, depth + 1));
    json_array_foreach(j, i, value) DT_TRY(count_strings(w, value, depth + 1));
    return 0;
}

static int count_rows(struct dt_words *w, const char *path, struct dt_lines *lines,
                      struct dt_progress *progress)
{
    const char *line;
    size_t n;
    int64_t number;
    for (;;) {
        json_error_t error;
        DT_TRY(dt_lines_next(lines, &line, &n, &number));
        if (!line)
            return 0;
        if (n == 0)
            continue;
        json_t *j = json_loadb(line, n, JSON_ALLOW_NUL, &error);
        if (!j)
            return DT_FAIL(DT_E_DATA, "%s:%lld: %s", path, (long long)number, error.text);
        int rc = count_strings(w, j, 0);
        json_decref(j);
        if (rc < 0)
            return dt_error_context(rc, "%s:%lld", path, (long long)number);
        dt_progress_update(progress, (double)dt_lines_position(lines), NULL);
    }
}

int dt_words_add_file(struct dt_words *w, const char *path)
{
    struct dt_progress progress;
    size_t size = 0;
    int rc;
    DT_TRY(dt_file_size(path, &size));
    dt_progress_begin(&progress, "counting words", "bytes", (double)size);
    if (dt_path_ends_with(path, ".jsonl") || dt_path_ends_with(path, ".jsonl.gz")) {
        struct dt_lines *lines;
        DT_TRY(dt_lines_open(path, &lines));
        rc = count_rows(w, path, lines, &progress);
        dt_lines_close(lines);
    } else {
        gzFile f = gzopen(path, "rb"); /* reads plain files as they are */
        if (!f)
            return dt_file_fail("open", path);
        rc = count_plain(w, path, f, &progress);
        gzclose(f);
    }
    dt_progress_end(&progress);
    return rc;
}

/* ---- The whole --------------------------------------------------------------------------- */

static int check(const struct dt_tokenizer_training *t)
{
    if (t->file_count < 1)
        return DT_FAIL(DT_E_USAGE, "no files to learn a tokenizer from");
    if (t->vocab_size < 256 + t->special_count || t->vocab_size > 1 << 22)
        return DT_FAIL(DT_E_USAGE,
                       "a vocabulary of %lld tokens (expected %lld to %d: 256 bytes and the "
                       "special tokens are always in)",
                       (long long)t->vocab_size, 256 + (long long)t->special_count, 1 << 22);
    for (int64_t i = 0; i < t->special_count; i++) {
        if (t->special[i][0] == '\0' ||
            dt_utf8_valid(t->special[i], strlen(t->special[i])) != strlen(t->special[i]))
            return DT_FAIL(DT_E_USAGE, "special token %lld is empty or not UTF-8", (long long)i);
        for (int64_t k = 0; k < i; k++)
            if (strcmp(t->special[i], t->special[k]) == 0)
                return DT_FAIL(DT_E_USAGE, "special token \"%s\" is given twice", t->special[i]);
    }
    return 0;
}

int dt_tokenizer_train(const struct dt_tokenizer_training *t)
{
    struct dt_words words = {0};
    struct dt_learned learned = {0};
    int rc;
    dt_classes_build();
    DT_TRY(check(t));
    for (int64_t i = 0; i < t->file_count; i++)
        DT_CHECK(done, rc, dt_words_add_file(&words, t->files[i]));
    if (words.n == 0) {
        rc = DT_FAIL(DT_E_DATA, "%s: no text to learn a tokenizer from", t->files[0]);
        goto done;
    }
    DT_CHECK(done, rc,
             dt_learn(&words, t->vocab_size - t->special_count, t->min_frequency, &learned));
    rc = dt_tokenizer_write(t, &learned);
done:
    dt_words_free(&words);
    dt_learned_free(&learned);
    return rc;
}
