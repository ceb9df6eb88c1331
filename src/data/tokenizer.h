/* tokenizer.json as Hugging Face's tokenizers library reads it: text <-> ids.
 *
 * A tokenizer is immutable after dt_tokenizer_open and may be shared by threads; an encoder holds
 * one thread's scratch and word cache. */
#ifndef DT_DATA_TOKENIZER_H
#define DT_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_tokenizer;
struct dt_encoder;

/* A growing list of ids. Zero-initialise; dt_ids_free when done. */
struct dt_ids {
    int32_t *p;
    int64_t n, capacity;
};
int dt_ids_push(struct dt_ids *ids, int32_t id);
int dt_ids_append(struct dt_ids *ids, const int32_t *p, int64_t n);
void dt_ids_free(struct dt_ids *ids);

/* `path`: a tokenizer.json, or a directory that holds one (its tokenizer_config.json and
 * special_tokens_map.json are read too when present). DT_E_DATA / DT_E_UNSUPPORTED by name for
 * anything that cannot be honoured exactly. */
int dt_tokenizer_open(const char *path, struct dt_tokenizer **out);
void dt_tokenizer_close(struct dt_tokenizer *t);

int64_t
dt_tokenizer_vocab_size(const struct dt_tokenizer *t); /* highest id + 1, added tokens included */
int32_t dt_tokenizer_id(const struct dt_tokenizer *t, const char *token,
                        size_t bytes); /* -1: none */
/* Written form of a token (not decoded); NULL: no such id. */
const char *dt_tokenizer_token(const struct dt_tokenizer *t, int32_t id, size_t *bytes);
bool dt_tokenizer_is_special(const struct dt_tokenizer *t, int32_t id);
/* eos_token / bos_token of tokenizer_config.json; -1: none named. */
int32_t dt_tokenizer_eos(const struct dt_tokenizer *t);
int32_t dt_tokenizer_bos(const struct dt_tokenizer *t);
/* XXH3 of everything that decides ids: key of caches. */
uint64_t dt_tokenizer_hash(const struct dt_tokenizer *t);
const char *dt_tokenizer_path(const struct dt_tokenizer *t); /* of the tokenizer.json */

enum {
    DT_ENCODE_SPECIAL =
        1, /* the post-processor adds its tokens (bos ...), as add_special_tokens=True */
    DT_ENCODE_PLAIN = 2, /* special tokens inside the text are ordinary text (untrusted input) */
};

int dt_encoder_new(const struct dt_tokenizer *t, struct dt_encoder **out);
void dt_encoder_free(struct dt_encoder *e);
/* Appends the ids of UTF-8 `text` to *out. Invalid UTF-8 is DT_E_DATA with the byte offset. */
int dt_encode(struct dt_encoder *e, const char *text, size_t bytes, unsigned flags,
              struct dt_ids *out);

/* A growing text; always zero-terminated. Zero-initialise; dt_text_free when done. */
struct dt_text {
    char *p;
    size_t n, capacity;
};
int dt_text_append(struct dt_text *t, const char *p, size_t n);
void dt_text_free(struct dt_text *t);
/* As decode(ids, skip_special_tokens). */
int dt_decode(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, bool skip_special,
              struct dt_text *out);
/* Streaming decode for generation: appends only text that later ids can no longer change (whole
 * UTF-8 characters); state is the number of ids already given out. */
int dt_decode_next(const struct dt_tokenizer *t, const int32_t *ids, int64_t n, int64_t *state,
                   bool last, struct dt_text *out);

/* Learn a byte-level BPE (GPT-2 pre-tokenizer) of `vocab_size` tokens, special tokens first, from
 * text files; writes tokenizer.json and tokenizer_config.json into `directory`. */
struct dt_tokenizer_training {
    const char *const *files;
    int64_t file_count;
    int64_t vocab_size;
    const char *const *special; /* e.g. "<|endoftext|>" (eos) */
    int64_t special_count;
    int64_t min_frequency;
    const char *directory;
};
int dt_tokenizer_train(const struct dt_tokenizer_training *training);

#endif
