/* The data thread: while step s computes, the tokens of step s + 1 are copied from the mapped
 * corpus into a buffer that was made before the first step. Everything that can wait on a disk
 * waits here. */
#ifndef DT_TRAIN_LOADER_H
#define DT_TRAIN_LOADER_H

#include "data/data.h"

/* A global batch: its sequences one after another. */
struct dt_global_batch {
    int64_t step, epoch;
    int64_t sequences, tokens;
    int64_t *length;                   /* [sequences] */
    int64_t *sample;                   /* [sequences] */
    int32_t *ids, *targets, *position; /* [tokens] */
    int64_t loss_tokens;
};

/* Arrays for up to so many sequences and tokens. */
int dt_global_batch_new(int64_t sequences, int64_t tokens, struct dt_global_batch *out);
void dt_global_batch_free(struct dt_global_batch *b);
size_t dt_global_batch_bytes(int64_t sequences, int64_t tokens);
/* Read `count` samples into it. */
void dt_global_batch_read(struct dt_global_batch *b, const struct dt_dataset *d,
                          const int64_t *samples, int64_t count);

struct dt_loader;
/* Batches of steps first, first + 1, ... (0-based) in order. */
int dt_loader_new(const struct dt_dataset *d, struct dt_sampler *s, int64_t first, int64_t end,
                  struct dt_loader **out);
void dt_loader_free(struct dt_loader *l);
/* The batch of the next step; valid until the next call. Waits at most two minutes (DT_E_TIMEOUT).
 */
int dt_loader_next(struct dt_loader *l, struct dt_global_batch **out);

#endif
