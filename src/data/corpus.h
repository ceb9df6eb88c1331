/* The parts of a corpus on disk, inside this room: the Megatron index, the sidecar with the masks,
 * and the writer of all three files. All numbers in the files are little endian. */
#ifndef DT_DATA_CORPUS_H
#define DT_DATA_CORPUS_H

#include "base/file.h"
#include "base/hash.h"
#include "data/data.h"

/* ---- PREFIX.idx (megatron.c) ----------------------------------------------------------------
 * "MMIDIDX\0\0", version (u64) 1, dtype code (u8), sequences S (u64), documents + 1 (u64); then
 * sizes i32[S] in tokens, pointers i64[S] in bytes, first sequence of each document i64[D + 1].
 * Sequences of one document stand one behind the other, so a document is one range of the .bin. */
enum { DT_IDX_HEADER = 34 };

struct dt_idx {
    const unsigned char *sizes, *pointers, *firsts; /* as in the file: not aligned */
    int64_t sequences, documents;
    size_t item; /* bytes of a token: 2 (u16) or 4 (i32) */
};
/* `bin_size` is that of the .bin; after success every document lies inside of it. */
int dt_idx_parse(const unsigned char *data, size_t size, size_t bin_size, const char *path,
                 struct dt_idx *out);
void dt_idx_document(const struct dt_idx *x, int64_t document, size_t *offset, int64_t *length);

/* ---- PREFIX.mask (sidecar.c): header, one bit a token, one record a document ---------------- */
enum { DT_BAD_JSON, DT_BAD_KEYS, DT_BAD_IDS, DT_BAD_CHAT, DT_BAD_EMPTY, DT_BAD_REASONS };
extern const char *const dt_bad_reasons[DT_BAD_REASONS]; /* "not valid JSON", ... */

struct dt_mask_header {
    char magic[8];
    uint64_t hash; /* of the bits, the records and this header with 0 here */
    uint64_t bin_bytes, bin_hash, idx_hash;
    int64_t documents, tokens, loss_tokens, bytes, rows, empty_lines, max_id;
    int64_t skipped[DT_BAD_REASONS];
    uint32_t has_bits, item;
    char format[24], chat_template[24];
};

struct dt_document {
    int64_t bytes; /* of text behind the trained tokens; -1: unknown */
    int64_t loss;  /* tokens that are a target */
    int64_t line;  /* in its source; 0: none */
    uint64_t hash; /* of its ids as i32 */
    uint64_t flags;
};
enum { DT_DOCUMENT_ROW = 1 }; /* a fine-tuning row: truncated, never cut into pieces */

struct dt_mask {
    struct dt_mask_header header;
    const unsigned char *bits; /* NULL: all tokens train */
    const unsigned char *records;
};
int dt_mask_parse(const unsigned char *data, size_t size, const char *path, struct dt_mask *out);
uint64_t dt_mask_checksum(const struct dt_mask_header *header, uint64_t body_hash);
extern const char dt_mask_magic[8];
void dt_mask_record(const struct dt_mask *m, int64_t document, struct dt_document *out);
/* How many of the bits [first, first + count) are set. */
int64_t dt_mask_count(const unsigned char *bits, int64_t first, int64_t count);

/* ---- an open corpus (corpus.c) ----------------------------------------------------------------
 */
struct dt_corpus {
    char prefix[DT_PATH];
    struct dt_map bin_map, idx_map, mask_map;
    struct dt_idx idx;
    struct dt_mask mask;
    bool has_mask;
    int64_t tokens, max_id, loss_tokens;
    uint64_t hash;
    bool temporary; /* removed by close */
};
/* Record of a document; made up when there is no sidecar. */
void dt_corpus_document(const struct dt_corpus *c, int64_t document, struct dt_document *out);
/* Targets that train when only the first `length` tokens are kept. */
int64_t dt_corpus_loss(const struct dt_corpus *c, int64_t document, int64_t length);

/* ---- writing (writer.c) -----------------------------------------------------------------------
 */
struct dt_corpus_writer;
/* `item`: 2 or 4. `has_bits`: documents may have tokens that do not train. */
int dt_corpus_writer_new(const char *prefix, size_t item, bool has_bits,
                         struct dt_corpus_writer **out);
/* Megatron stores the length of a sequence in 32 bits; longer documents become several. */
void dt_corpus_writer_set_sequence_limit(struct dt_corpus_writer *w, int64_t tokens);
/* `trains` may be NULL (all). Fills in loss and hash of `record`. */
int dt_corpus_writer_add(struct dt_corpus_writer *w, const int32_t *ids, const uint8_t *trains,
                         int64_t n, const struct dt_document *record);
/* Of `totals`, rows, empty_lines, skipped, format and chat_template are taken. Data is flushed,
 * then the three files are renamed into place, the index last. Frees the writer, also on failure.
 */
int dt_corpus_writer_finish(struct dt_corpus_writer *w, const struct dt_mask_header *totals);
void dt_corpus_writer_abandon(
    struct dt_corpus_writer *w); /* removes what was written; NULL is fine */

#endif
