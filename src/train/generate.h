/* Text from a model: a KV cache, and the choice of the next token. */
#ifndef DT_TRAIN_GENERATE_H
#define DT_TRAIN_GENERATE_H

#include "train/session.h"

struct dt_sampling {
    double temperature; /* 0: the most likely token, lowest id on a tie */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
};

struct dt_generator {
    struct dt_model model;
    struct dt_arena arena;
    struct dt_cache cache;
    float *logits;  /* [V] */
    int32_t *order; /* [V] scratch of the choice */
    int32_t position[256];
    int64_t steps; /* tokens chosen so far: key of the randomness */
};

enum { DT_PREFILL = 256 }; /* rows of one forward */

/* context: most tokens of prompt and continuation. */
int dt_generator_open(const struct dt_session *s, enum dt_dtype compute, int64_t context,
                      struct dt_generator *out);
void dt_generator_close(struct dt_generator *g);
/* Append tokens to the context; afterwards `logits` are those of the last. DT_E_DATA when it is
 * full. */
int dt_generator_feed(struct dt_generator *g, const int32_t *ids, int64_t n);
int32_t dt_generator_choose(struct dt_generator *g, const struct dt_sampling *how);

#endif
