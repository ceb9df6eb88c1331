/* Learning a byte-level BPE: words and their counts, then merges, then a tokenizer.json. */
#ifndef DT_DATA_TOKENIZER_TRAIN_H
#define DT_DATA_TOKENIZER_TRAIN_H

#include "data/tokenizer.h"

/* Distinct words of the corpus and how often each occurs, in order of first occurrence. */
struct dt_word {
    size_t offset; /* in dt_words.text */
    uint32_t n;
    int64_t count;
};
struct dt_words {
    struct dt_text text;
    struct dt_word *word;
    int64_t n, capacity;
    int64_t *slot; /* hash -> index + 1 */
    size_t mask;
    struct dt_text piece; /* a string with something left over from the last one */
};
int dt_words_add_file(struct dt_words *w, const char *path);
void dt_words_free(struct dt_words *w);

/* What was learned: symbols 0..base-1 are the bytes in the alphabet's order, then one a merge (two
 * merges that write the same token share one). */
struct dt_learned {
    struct dt_merge {
        int32_t left, right, into;
    } * merge;
    int64_t merges, merge_capacity;
    struct dt_text text; /* written symbols, in a row */
    struct dt_symbol {
        size_t offset;
        uint32_t n;
    } * symbol;
    int64_t symbols, symbol_capacity;
};
/* Adds merges until there are `symbols` symbols or no pair occurs `min_frequency` times. */
int dt_learn(const struct dt_words *w, int64_t symbols, int64_t min_frequency,
             struct dt_learned *out);
void dt_learned_free(struct dt_learned *l);

int dt_tokenizer_write(const struct dt_tokenizer_training *training, const struct dt_learned *l);

#endif
