/* Inside the tokenizer: what a tokenizer.json becomes.
 *
 * text -> added tokens cut out -> normalizers -> pre-tokenizers -> words -> BPE -> ids -> template.
 * Every "Sequence" of the file is flattened, so each of these is a plain list of stages. Offsets
 * into the original text are not kept: only ids are wanted. Byte-level pieces stay raw bytes until
 * they meet the vocabulary, whose keys write byte b as the character dt_byte_char(b). */
#ifndef DT_DATA_TOKENIZER_INTERNAL_H
#define DT_DATA_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Unicode (tokenizer_unicode.c) ------------------------------------------------------- */

enum dt_class {
    DT_CLASS_LETTER = 1,       /* \p{L} */
    DT_CLASS_NUMBER = 2,       /* \p{N} of the regex engine */
    DT_CLASS_SPACE = 4,        /* \s */
    DT_CLASS_WORD = 8,         /* \w */
    DT_CLASS_NUMERIC = 16,     /* what Digits splits */
    DT_CLASS_PUNCTUATION = 32, /* what Punctuation splits, ASCII symbols included */
    DT_CLASS_MARK = 64,        /* what StripAccents removes */
};

/* Two-level table of dt_class bits; built once, on the first dt_tokenizer_open. */
struct dt_classes {
    uint16_t block[0x110000 >> 7]; /* -> index of a block of 128 in bits */
    uint8_t bits[640][128];
};
extern struct dt_classes dt_classes;
void dt_classes_build(void);

static inline unsigned dt_class_of(uint32_t c)
{
    return dt_classes.bits[dt_classes.block[c >> 7]][c & 127];
}

/* Offset of the first byte that is not valid UTF-8, or n. */
size_t dt_utf8_valid(const char *text, size_t n);

/* The code point at p (valid UTF-8) and its size in bytes. */
static inline uint32_t dt_utf8_get(const char *p, size_t *size)
{
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) {
        *size = 1;
        return u[0];
    }
    if (u[0] < 0xe0) {
        *size = 2;
        return (uint32_t)(u[0] & 31) << 6 | (u[1] & 63u);
    }
    if (u[0] < 0xf0) {
        *size = 3;
        return (uint32_t)(u[0] & 15) << 12 | (uint32_t)(u[1] & 63) << 6 | (u[2] & 63u);
    }
    *size = 4;
    return (uint32_t)(u[0] & 7) << 18 | (uint32_t)(u[1] & 63) << 12 | (uint32_t)(u[2] & 63) << 6 |
           (u[3] & 63u);
}

size_t dt_utf8_put(uint32_t c, char out[4]);
uint32_t dt_byte_char(unsigned char b); /* GPT-2's printable stand-in for a byte */
int dt_char_byte(uint32_t c);           /* its inverse; -1: not one */
/* Appends the stand-ins of n raw bytes. */
int dt_bytes_written(const char *p, size_t n, struct dt_text *out);
/* Ranges [from, to] where the category's membership is newer than the regex library may know; calls
 * back for each. `category` "L" or "Lu". */
void dt_newer_ranges(const char *category, void (*range)(uint32_t from, uint32_t to, void *arg),
                     void *arg);
bool dt_is_inert(
    uint32_t c); /* normal forms leave it alone: assigned after their tables were made */
uint32_t dt_lower(uint32_t c);

/* ---- Patterns (tokenizer_regex.c, pretokenize_scan.c) ------------------------------------ */

enum dt_pattern_kind {
    DT_PATTERN_LITERAL,
    DT_PATTERN_GPT2,  /* hand-written scanners of the patterns everybody uses */
    DT_PATTERN_LLAMA, /* Llama 3 and Qwen 2; max_digits 3 and 1 */
    DT_PATTERN_REGEX,
};

struct dt_pattern {
    enum dt_pattern_kind kind;
    int max_digits;
    char *literal; /* owned */
    size_t literal_n;
    void *code; /* pcre2_code, owned */
};

/* One thread's scratch for regex matching. */
struct dt_matcher {
    void *data, *context, *stack; /* pcre2_match_data, pcre2_match_context, pcre2_jit_stack */
};

#define DT_GPT2_REGEX                                                                              \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

int dt_pattern_regex(struct dt_pattern *p, const char *regex, size_t n, bool scanners);
int dt_pattern_literal(struct dt_pattern *p, const char *text, size_t n);
void dt_pattern_free(struct dt_pattern *p);
void dt_matcher_free(struct dt_matcher *m);

/* Walks the matches of a pattern in a text, as find_iter does. */
struct dt_matches {
    const struct dt_pattern *pattern;
    struct dt_matcher *matcher;
    const char *text;
    size_t n, at;
    int64_t last_end; /* end of the last match, -1 before the first */
};
/* 1: *start, *end are set; 0: no more; negative: error. */
int dt_matches_next(struct dt_matches *m, size_t *start, size_t *end);
/* End of the token that starts at `at` < n. */
size_t dt_scan_gpt2(const char *text, size_t n, size_t at);
size_t dt_scan_llama(const char *text, size_t n, size_t at, int max_digits);

/* ---- Vocabulary and merges (bpe.c) ------------------------------------------------------- */

/* Open-addressing map of 64-bit keys (never 0 after mixing the caller's +1) to 32-bit pairs. */
struct dt_pair_slot {
    uint64_t key; /* (left << 32 | right) + 1; 0: free */
    uint32_t rank, id;
};
struct dt_pairs {
    struct dt_pair_slot *slot;
    size_t mask, count;
};
int dt_pairs_reserve(struct dt_pairs *t, size_t count);
void dt_pairs_put(struct dt_pairs *t, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
static inline const struct dt_pair_slot *dt_pairs_get(const struct dt_pairs *t, uint32_t left,
                                                      uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) + 1;
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & t->mask;
    while (t->slot[i].key != 0) {
        if (t->slot[i].key == key)
            return &t->slot[i];
        i = (i + 1) & t->mask;
    }
    return NULL;
}

enum { DT_TOKEN_PRESENT = 1, DT_TOKEN_MODEL = 2, DT_TOKEN_ADDED = 4, DT_TOKEN_SPECIAL = 8 };

struct dt_token {
    size_t offset;  /* in dt_vocab.text */
    size_t decoded; /* where the text stands that decoding starts from: see dt_load_tries */
    uint32_t n, decoded_n;
    uint32_t flags;
};

struct dt_vocab {
    struct dt_text text;
    struct dt_token *token; /* by id; holes have no flags */
    int64_t size;           /* highest id + 1 */
    int64_t limit;          /* tokens allocated */
    int32_t *slot;          /* hash of the written form -> id, -1: free */
    size_t mask;
};
int dt_vocab_reserve(struct dt_vocab *v, int64_t highest, int64_t count);
int dt_vocab_add(struct dt_vocab *v, const char *p, size_t n, int64_t id, unsigned flags);
int32_t dt_vocab_find(const struct dt_vocab *v, const char *p, size_t n); /* -1: none */
int32_t dt_vocab_find_model(const struct dt_vocab *v, const char *p, size_t n);
void dt_vocab_free(struct dt_vocab *v);

/* ---- Stages ------------------------------------------------------------------------------ */

enum dt_stage_kind {
    /* normalizers */
    DT_NORM_NFC,
    DT_NORM_NFD,
    DT_NORM_NFKC,
    DT_NORM_NFKD,
    DT_NORM_LOWERCASE,
    DT_NORM_STRIP,
    DT_NORM_STRIP_ACCENTS,
    DT_NORM_REPLACE,
    DT_NORM_PREPEND,
    /* pre-tokenizers */
    DT_PRE_BYTE_LEVEL,
    DT_PRE_WRITE_BYTES, /* put after a ByteLevel that is not the last stage */
    DT_PRE_SPLIT,
    DT_PRE_DIGITS,
    DT_PRE_WHITESPACE,
    DT_PRE_WHITESPACE_SPLIT,
    DT_PRE_PUNCTUATION,
    DT_PRE_METASPACE,
    /* decoders */
    DT_DEC_BYTE_LEVEL,
    DT_DEC_BYTE_FALLBACK,
    DT_DEC_FUSE,
    DT_DEC_STRIP,
    DT_DEC_REPLACE,
    DT_DEC_METASPACE,
    DT_DEC_BPE,
};

enum dt_behavior {
    DT_ISOLATED,
    DT_REMOVED,
    DT_MERGED_WITH_PREVIOUS,
    DT_MERGED_WITH_NEXT,
    DT_CONTIGUOUS,
};

enum dt_prepend { DT_PREPEND_NEVER, DT_PREPEND_FIRST, DT_PREPEND_ALWAYS };

struct dt_stage {
    enum dt_stage_kind kind;
    struct dt_pattern pattern; /* Replace, Split, ByteLevel with use_regex */
    enum dt_behavior behavior;
    bool invert;
    bool add_prefix_space, use_regex; /* ByteLevel */
    bool individual;                  /* Digits */
    bool left, right;                 /* Strip normalizer */
    bool split;                       /* Metaspace */
    enum dt_prepend prepend;          /* Metaspace */
    char *content;                    /* Replace, Prepend, Strip, Metaspace's replacement, suffix */
    size_t content_n;
    int64_t start, stop; /* Strip decoder */
};

struct dt_stages {
    struct dt_stage *p;
    int n;
};

struct dt_added {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Leftmost-longest search for added tokens: a trie of bytes over a pair table. */
struct dt_trie {
    struct dt_pairs edge; /* (node, byte) -> id = next node */
    int32_t *match;       /* by node: index into dt_tokenizer.added, -1: none */
    int64_t nodes, capacity;
    bool first[256];
    int64_t count; /* tokens */
};

struct dt_tokenizer {
    char *path;
    uint64_t hash;
    struct dt_vocab vocab;
    struct dt_pairs merges;
    struct dt_added *added;
    int64_t added_count;
    struct dt_trie plain, normalized; /* searched before and after the normalizers */
    struct dt_stages normalizers, pre, decoders;
    bool has_decoder;
    /* model */
    int32_t unk; /* -1: none */
    bool fuse_unk, byte_fallback, ignore_merges;
    char *prefix, *suffix; /* of continuing subwords, of ends of words; NULL: none */
    size_t prefix_n, suffix_n;
    bool raw;                 /* the last pre-tokenizer is ByteLevel: words are raw bytes */
    bool bytes_complete;      /* every raw byte has its token and no prefix or suffix is set */
    int32_t byte_id[256];     /* initial token of a raw byte */
    int32_t fallback_id[256]; /* <0xAB> */
    /* template */
    struct dt_ids before, after;
    int32_t bos, eos;
};

struct dt_word_cache;

struct dt_span {
    size_t start, end;
    bool match;
};
struct dt_spans {
    struct dt_span *p;
    int64_t n, capacity;
};

struct dt_encoder {
    const struct dt_tokenizer *t;
    struct dt_matcher matcher;
    struct dt_text norm[2];      /* normalizers write into these in turn */
    struct dt_text *stage_text;  /* one a pre-tokenizer that changes the text */
    struct dt_spans *stage_span; /* and its cuts */
    struct dt_text written;      /* a raw word in the vocabulary's letters */
    int32_t *scratch;            /* decomposed text */
    int64_t scratch_capacity;
    void *work; /* symbols and heap of long words */
    size_t work_bytes;
    struct dt_word_cache *cache;
    struct dt_ids *out; /* of the call in progress */
    unsigned flags;
};

/* Run all normalizers over a piece; *p and *n then point at the result. */
int dt_normalize(struct dt_encoder *e, const char **p, size_t *n);
/* Cut a piece into words and encode each; `at_start`: the text begins with it. */
int dt_pretokenize(struct dt_encoder *e, const char *p, size_t n, bool at_start);
/* One word to e->out. */
int dt_bpe_word(struct dt_encoder *e, const char *p, size_t n);
int dt_word_cache_new(struct dt_word_cache **out);
void dt_word_cache_free(struct dt_word_cache *c);
/* Appends p[n] with every match of the stage's pattern replaced by its content. */
int dt_replace_all(const struct dt_stage *s, struct dt_matcher *m, const char *p, size_t n,
                   struct dt_text *out);

int dt_text_reserve(struct dt_text *t, size_t more);
int dt_grow(void *array, int64_t *capacity, int64_t needed, size_t item);

/* ---- Loading ----------------------------------------------------------------------------- */

int dt_load_model(struct dt_tokenizer *t, const json_t *model, size_t added);
int dt_load_added(struct dt_tokenizer *t, const json_t *added);
int dt_load_tries(struct dt_tokenizer *t);
int dt_load_normalizer(struct dt_stages *out, const json_t *j);
int dt_load_pre_tokenizer(struct dt_stages *out, const json_t *j);
int dt_load_decoder(struct dt_stages *out, const json_t *j);
int dt_load_post_processor(struct dt_tokenizer *t, const json_t *j);
void dt_stages_free(struct dt_stages *s);

/* Typed reads of a JSON object; `where` names the object in messages. A missing key leaves the
 * default; a wrong type is DT_E_DATA. */
int dt_json_bool(const json_t *j, const char *where, const char *key, bool *out);
int dt_json_string(const json_t *j, const char *where, const char *key, const char **p, size_t *n);
/* Refuse keys of an object that are not in the space-separated list. */
int dt_json_keys(const json_t *j, const char *where, const char *allowed);
/* A tokenizer.json in memory; `name` stands for its path in messages. */
int dt_tokenizer_parse(const char *text, size_t n, const char *name, struct dt_tokenizer **out);
/* The same into a tokenizer that has its path (tokenizer_load.c). */
int dt_tokenizer_load_text(struct dt_tokenizer *t, const char *text, size_t n);
int dt_read_file(const char *path, size_t limit, struct dt_text *out);

#endif
