/* From files to the batch of a step.
 *
 * files -> documents or rows -> ids and loss masks (tokenized once into Megatron-compatible
 * .bin/.idx plus a sidecar) -> samples (pieces of at most max_length) -> batches. A *sample* is
 * what one packed sequence is made of: n input tokens and, for each, the target it predicts, or -1
 * where it does not train. Lengths come from the index; tokens are read only by dt_dataset_read.
 *
 * The content of batch s is a pure function of (seed, s): the samples of epoch e stand in the order
 * of a permutation keyed by (seed, e), and are taken in order while they fit. */
#ifndef DT_DATA_DATA_H
#define DT_DATA_DATA_H

#include "data/tokenizer.h"

enum dt_bad_row { DT_BAD_ROW_FAIL, DT_BAD_ROW_SKIP };

struct dt_data_options {
    const char *const *files; /* .jsonl[.gz], .bin (or prefix), text */
    int64_t file_count;
    const struct dt_tokenizer *tokenizer; /* may be NULL when every file holds ids */
    int64_t max_length;                   /* most input tokens of a sample */
    int64_t vocab_size;                   /* ids must be below; 0: not checked */
    enum dt_bad_row on_bad_row;
    const char *format;        /* "auto" or a row format's name */
    const char *chat_template; /* "auto" or a template's name */
    const char
        *model_dir; /* where tokenizer_config.json / chat_template.jinja may stand; may be NULL */
    int32_t end_of_text;   /* id that closes each text document; -1: none */
    const char *cache_dir; /* tokenized files go here; NULL: a temporary one */
    double eval_fraction;  /* documents held out by hash of their tokens; see `part` */
    enum { DT_PART_ALL, DT_PART_TRAIN, DT_PART_EVAL } part;
    uint64_t seed;     /* of the hold-out */
    int threads;       /* that tokenize; 0: as many as there are cores */
    int64_t row_limit; /* read only this many rows of a JSONL file; 0: all */
};

struct dt_dataset;
/* Tokenizes what is not in the cache, with progress. Prints (dt_info) per file what was found:
 * format, documents, tokens, truncated, skipped. */
int dt_dataset_open(const struct dt_data_options *options, struct dt_dataset **out);
void dt_dataset_close(struct dt_dataset *d);
int64_t dt_dataset_samples(const struct dt_dataset *d);
int64_t dt_dataset_tokens(const struct dt_dataset *d); /* input tokens of all samples */
int64_t dt_dataset_loss_tokens(const struct dt_dataset *d);
int64_t dt_dataset_bytes(const struct dt_dataset *d); /* of text behind the samples; 0: unknown */
int64_t dt_dataset_length(const struct dt_dataset *d, int64_t sample); /* input tokens, >= 1 */
/* ids[length], targets[length]; reads the mapped file. */
void dt_dataset_read(const struct dt_dataset *d, int64_t sample, int32_t *ids, int32_t *targets);
/* After a batch was read: the memory of the mapped files goes back to the system, so that a corpus
 * of any size costs a batch's pages and no more. */
void dt_dataset_forget(const struct dt_dataset *d);
uint64_t
dt_dataset_hash(const struct dt_dataset *d); /* identity of content and order, for resume */

/* One tokenized corpus: PREFIX.bin and PREFIX.idx as Megatron writes them, and PREFIX.mask of ours
 * (which tokens train, bytes of text, checksums). Without PREFIX.mask every token trains. */
struct dt_corpus;
struct dt_corpus_info {
    const char *format;        /* row format it was made from; "" when unknown */
    const char *chat_template; /* that wrote it; "" when none did */
    const char *dtype;         /* "U16" or "I32" */
    int64_t documents, tokens, loss_tokens;
    int64_t bytes;       /* of text behind the trained tokens; -1: unknown */
    int64_t rows;        /* documents and skipped rows; -1: unknown */
    int64_t skipped;     /* bad rows; -1: unknown */
    int64_t empty_lines; /* -1: unknown */
    int64_t max_id;
    bool has_masks;
    uint64_t hash; /* of every token and mask */
};
/* `prefix` may also be the path of the .bin or the .idx. DT_E_DATA when anything does not fit. */
int dt_corpus_open(const char *prefix, struct dt_corpus **out);
void dt_corpus_close(struct dt_corpus *c);
/* Gives back the pages that were read (base/file.h, dt_map_forget). */
void dt_corpus_forget(const struct dt_corpus *c);
void dt_corpus_describe(const struct dt_corpus *c, struct dt_corpus_info *out);
int64_t dt_corpus_length(const struct dt_corpus *c, int64_t document); /* tokens */
/* Tokens [first, first + count) of a document: ids[count]; trains[count] (0 or 1) may be NULL. */
void dt_corpus_read(const struct dt_corpus *c, int64_t document, int64_t first, int64_t count,
                    int32_t *ids, uint8_t *trains);
/* Tokenizes options->files (text and JSONL, in order) into PREFIX.bin, .idx and .mask. */
int dt_corpus_build(const struct dt_data_options *options, const char *prefix);
/* The corpus behind one file: itself, or tokenized into the cache. */
int dt_corpus_of_file(const struct dt_data_options *options, const char *file,
                      struct dt_corpus **out);

struct dt_sampler_options {
    uint64_t seed;
    bool shuffle;
    int64_t batch_tokens; /* one of these two is > 0 */
    int64_t batch_sequences;
};

struct dt_sampler;
int dt_sampler_new(const struct dt_dataset *d, const struct dt_sampler_options *options,
                   struct dt_sampler **out);
void dt_sampler_free(struct dt_sampler *s);
/* Steps of one epoch differ by its order (greedy filling); dt_sampler_steps counts those of epochs
 * 0..epochs-1. */
int dt_sampler_steps(struct dt_sampler *s, int64_t epochs, int64_t *steps);
/* The samples of global batch `step` (0-based) into a caller's array that holds
 * dt_sampler_max_samples. Any step may be asked for, in any order (O(1) amortised when in order).
 */
int64_t dt_sampler_max_samples(const struct dt_sampler *s);
int64_t
dt_sampler_max_tokens(const struct dt_sampler *s); /* most input tokens any batch can have */
int dt_sampler_batch(struct dt_sampler *s, int64_t step, int64_t *samples, int64_t *count,
                     int64_t *epoch);

#endif
