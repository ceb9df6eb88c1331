/* Writes a corpus: tokens and masks stream out, the index and the records of documents wait in
 * memory (52 bytes a document) until the end, because their place in the files depends on the
 * counts.
 *
 * Everything goes to temporary names beside the final ones; finish flushes and renames, the index
 * last. A reader that meets a mixture of old and new files notices it by the checksums in the
 * sidecar. */
#include "base/error.h"
#include "data/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT_BIN, OUT_MASK, OUT_IDX, OUT_FILES, OUT_BUFFER = 1 << 20 };
static const char *const suffixes[OUT_FILES] = {".bin", ".mask", ".idx"};

struct out_file {
    int fd; /* -1: not created */
    char path[DT_PATH], final[DT_PATH];
    unsigned char *buffer;
    size_t used, written;
    struct dt_hasher *hasher;
};

struct dt_corpus_writer {
    struct out_file files[OUT_FILES];
    size_t item;
    bool has_bits;
    int64_t sequence_limit;
    unsigned char bits; /* the byte that is being filled */
    int64_t tokens, loss_tokens, bytes, max_id;
    int32_t *sizes;
    int64_t sequences, sequence_room;
    int64_t *firsts; /* first sequence of each document */
    struct dt_document *records;
    int64_t documents, document_room;
};

static int out_flush(struct out_file *f)
{
    DT_TRY(dt_fd_append(f->fd, f->path, f->buffer, f->used));
    dt_hasher_add(f->hasher, f->buffer, f->used);
    f->written += f->used;
    f->used = 0;
    return DT_OK;
}

static int out_put(struct out_file *f, const void *data, size_t size)
{
    const unsigned char *p = data;
    while (size > 0) {
        if (f->used == OUT_BUFFER)
            DT_TRY(out_flush(f));
        size_t n = OUT_BUFFER - f->used < size ? OUT_BUFFER - f->used : size;
        memcpy(f->buffer + f->used, p, n);
        f->used += n;
        p += n;
        size -= n;
    }
    return DT_OK;
}

static int out_u64(struct out_file *f, uint64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> (8 * i));
    return out_put(f, b, sizeof b);
}

static int out_open(struct out_file *f, const char *prefix, const char *suffix)
{
    int n = snprintf(f->final, sizeof f->final, "%s%s", prefix, suffix);
    int m = snprintf(f->path, sizeof f->path, "%s%s.tmp.%ld", prefix, suffix, (long)getpid());
    if (n < 0 || m < 0 || m >= (int)sizeof f->path)
        return DT_FAIL(DT_E_USAGE, "the path %.80s... is too long", prefix);
    f->buffer = malloc(OUT_BUFFER);
    f->hasher = dt_hasher_new();
    if (!f->buffer || !f->hasher)
        return DT_FAIL(DT_E_MEMORY, "cannot allocate buffers to write %s", f->final);
    return dt_fd_create(f->path, &f->fd);
}

int dt_corpus_writer_new(const char *prefix, size_t item, bool has_bits,
                         struct dt_corpus_writer **out)
{
    struct dt_corpus_writer *w = calloc(1, sizeof *w);
    if (!w)
        return DT_FAIL(DT_E_MEMORY, "cannot allocate a corpus writer");
    w->item = item;
    w->has_bits = has_bits;
    w->sequence_limit = INT32_MAX;
    w->max_id = -1;
    int rc = DT_OK;
    for (int i = 0; i < OUT_FILES; i++)
        w->files[i].fd = -1;
    for (int i = 0; i < OUT_FILES; i++)
        DT_CHECK(failed, rc, out_open(&w->files[i], prefix, suffixes[i]));
    struct dt_mask_header blank = {0}; /* its place; written by finish */
    DT_CHECK(failed, rc,
             dt_fd_append(w->files[OUT_MASK].fd, w->files[OUT_MASK].path, &blank, sizeof blank));
    *out = w;
    return DT_OK;
failed:
    dt_corpus_writer_abandon(w);
    return rc;
}

void dt_corpus_writer_set_sequence_limit(struct dt_corpus_writer *w, int64_t tokens)
{
    w->sequence_limit = tokens;
}

static int grow(void *array, int64_t *room, int64_t need, size_t element)
{
    void **p = array;
    if (need <= *room)
        return DT_OK;
    int64_t more = *room * 2 > need ? *room * 2 : need + 256;
    void *bigger = realloc(*p, (size_t)more * element);
    if (!bigger)
        return DT_FAIL(DT_E_MEMORY, "cannot hold the index of %" PRId64 " documents", more);
    *p = bigger;
    *room = more;
    return DT_OK;
}

static int add_index(struct dt_corpus_writer *w, int64_t n, const struct dt_document *record)
{
    int64_t room = w->document_room;
    DT_TRY(grow(&w->firsts, &room, w->documents + 1, sizeof *w->firsts));
    DT_TRY(grow(&w->records, &w->document_room, w->documents + 1, sizeof *w->records));
    w->firsts[w->documents] = w->sequences;
    w->records[w->documents++] = *record;
    do { /* an empty document is one sequence of no tokens */
        int64_t part = n < w->sequence_limit ? n : w->sequence_limit;
        DT_TRY(grow(&w->sizes, &w->sequence_room, w->sequences + 1, sizeof *w->sizes));
        w->sizes[w->sequences++] = (int32_t)part;
        n -= part;
    } while (n > 0);
    return DT_OK;
}

static int add_tokens(struct dt_corpus_writer *w, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (w->item == 2 && ids[i] > UINT16_MAX))
            return DT_FAIL(DT_E_INTERNAL, "id %d does not fit a corpus of %zu-byte tokens", ids[i],
                           w->item);
        w->max_id = ids[i] > w->max_id ? ids[i] : w->max_id;
        uint32_t v = (uint32_t)ids[i];
        unsigned char b[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16),
                              (unsigned char)(v >> 24)};
        DT_TRY(out_put(&w->files[OUT_BIN], b, w->item));
    }
    return DT_OK;
}

static int add_bits(struct dt_corpus_writer *w, const uint8_t *trains, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (w->tokens + i) % 8;
        if (!trains || trains[i])
            w->bits = (unsigned char)(w->bits | 1u << at);
        if (at == 7) {
            DT_TRY(out_put(&w->files[OUT_MASK], &w->bits, 1));
            w->bits = 0;
        }
    }
    return DT_OK;
}

int dt_corpus_writer_add(struct dt_corpus_writer *w, const int32_t *ids, const uint8_t *trains,
                         int64_t n, const struct dt_document *record)
{
    struct dt_document r = *record;
    r.hash = dt_hash(ids, (size_t)n * sizeof *ids);
    r.loss = n > 1 && (!trains || !w->has_bits) ? n - 1 : 0;
    if (trains && w->has_bits)
        for (int64_t i = 1; i < n; i++)
            r.loss += trains[i] != 0;
    DT_TRY(add_index(w, n, &r));
    DT_TRY(add_tokens(w, ids, n));
    if (w->has_bits)
        DT_TRY(add_bits(w, trains, n));
    w->tokens += n;
    w->loss_tokens += r.loss;
    w->bytes = w->bytes < 0 || r.bytes < 0 ? -1 : w->bytes + r.bytes;
    return DT_OK;
}

static int write_index(struct dt_corpus_writer *w)
{
    struct out_file *f = &w->files[OUT_IDX];
    unsigned char code = w->item == 2 ? 8 : 4;
    DT_TRY(out_put(f, "MMIDIDX\0", 9));
    DT_TRY(out_u64(f, 1));
    DT_TRY(out_put(f, &code, 1));
    DT_TRY(out_u64(f, (uint64_t)w->sequences));
    DT_TRY(out_u64(f, (uint64_t)w->documents + 1));
    DT_TRY(out_put(f, w->sizes, (size_t)w->sequences * sizeof *w->sizes));
    uint64_t at = 0;
    for (int64_t i = 0; i < w->sequences; i++) {
        DT_TRY(out_u64(f, at));
        at += (uint64_t)w->sizes[i] * w->item;
    }
    for (int64_t i = 0; i < w->documents; i++)
        DT_TRY(out_u64(f, (uint64_t)w->firsts[i]));
    DT_TRY(out_u64(f, (uint64_t)w->sequences));
    return out_flush(f);
}

static int write_mask(struct dt_corpus_writer *w, const struct dt_mask_header *totals)
{
    struct out_file *f = &w->files[OUT_MASK];
    if (w->has_bits) {
        if (w->tokens % 8 != 0)
            DT_TRY(out_put(f, &w->bits, 1));
        int64_t bytes = (w->tokens + 7) / 8;
        static const unsigned char zero[8];
        DT_TRY(out_put(f, zero, (size_t)((8 - bytes % 8) % 8)));
    }
    DT_TRY(out_put(f, w->records, (size_t)w->documents * sizeof *w->records));
    DT_TRY(out_flush(f));
    struct dt_mask_header h = *totals;
    memcpy(h.magic, dt_mask_magic, sizeof h.magic);
    h.bin_bytes = w->files[OUT_BIN].written;
    h.bin_hash = dt_hasher_value(w->files[OUT_BIN].hasher);
    h.idx_hash = dt_hasher_value(w->files[OUT_IDX].hasher);
    h.documents = w->documents;
    h.tokens = w->tokens;
    h.loss_tokens = w->loss_tokens;
    h.bytes = w->bytes;
    h.max_id = w->max_id;
    h.has_bits = w->has_bits;
    h.item = (uint32_t)w->item;
    h.hash = dt_mask_checksum(&h, dt_hasher_value(f->hasher));
    return dt_fd_write_at(f->fd, f->path, &h, sizeof h, 0);
}

static int close_and_rename(struct dt_corpus_writer *w)
{
    for (int i = 0; i < OUT_FILES; i++) {
        struct out_file *f = &w->files[i];
        DT_TRY(dt_fd_sync(f->fd, f->path));
        int fd = f->fd;
        f->fd = -1;
        int rc = dt_fd_close(fd, f->path);
        if (rc < 0) {
            unlink(f->path);
            return rc;
        }
    }
    for (int i = 0; i < OUT_FILES; i++)
        DT_TRY(dt_rename(w->files[i].path, w->files[i].final));
    char dir[DT_PATH];
    DT_TRY(dt_path_dirname(dir, w->files[0].final));
    return dt_sync_dir(dir);
}

int dt_corpus_writer_finish(struct dt_corpus_writer *w, const struct dt_mask_header *totals)
{
    int rc;
    DT_CHECK(done, rc, out_flush(&w->files[OUT_BIN]));
    DT_CHECK(done, rc, write_index(w));
    DT_CHECK(done, rc, write_mask(w, totals));
    DT_CHECK(done, rc, close_and_rename(w));
done:
    dt_corpus_writer_abandon(w);
    return rc;
}

void dt_corpus_writer_abandon(struct dt_corpus_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < OUT_FILES; i++) {
        struct out_file *f = &w->files[i];
        if (f->fd >= 0)
            close(f->fd);
        if (f->path[0])
            unlink(f->path); /* gone already after a rename */
        free(f->buffer);
        dt_hasher_free(f->hasher);
    }
    free(w->sizes);
    free(w->firsts);
    free(w->records);
    free(w);
}
