/* The data thread: while step s computes, the lengths of step s + 1 are dispatched and this
 * worker's tokens copied from the mapped corpus into a buffer that was made before the first step.
 * Everything that can wait on a disk waits here. */
#ifndef DT_TRAIN_LOADER_H
#define DT_TRAIN_LOADER_H

#include "data/data.h"
#include "plan/plan.h"

/* The most that a global batch may have, and its longest sequence. */
struct dt_batch_bound {
    int64_t sequences, tokens, longest;
};

/* A global batch: all lengths, and the tokens of this worker's sequences one after another in the
 * order of the dispatch. */
struct dt_global_batch {
    const struct dt_plan *plan;
    int32_t rank;
    int64_t step, epoch;
    int64_t sequences, tokens; /* of all workers */
    int64_t *length;           /* [sequences] */
    int64_t *sample;           /* [sequences] */
    struct dt_dispatch dispatch;
    int32_t *ids, *targets, *position; /* [dispatch.tokens] */
    int64_t loss_tokens;               /* of this worker */
};

/* Arrays for batches within the bound. The plan is the caller's. */
int dt_global_batch_new(const struct dt_plan *plan, int32_t rank,
                        const struct dt_batch_bound *bound, struct dt_global_batch *out);
void dt_global_batch_free(struct dt_global_batch *b);
size_t dt_global_batch_bytes(const struct dt_plan *plan, int32_t rank,
                             const struct dt_batch_bound *bound);
/* Once sequences and length[] are set: who takes what; positions and `tokens` follow. */
int dt_global_batch_dispatch(struct dt_global_batch *b);
/* `count` samples: their lengths, the dispatch, and this worker's tokens. */
int dt_global_batch_read(struct dt_global_batch *b, const struct dt_dataset *d,
                         const int64_t *samples, int64_t count);

struct dt_loader;
/* Batches of steps first, first + 1, ... (0-based) in order. */
int dt_loader_new(const struct dt_dataset *d, struct dt_sampler *s, const struct dt_plan *plan,
                  int32_t rank, const struct dt_batch_bound *bound, int64_t first, int64_t end,
                  struct dt_loader **out);
void dt_loader_free(struct dt_loader *l);
/* The batch of the next step; valid until the next call. Waits at most two minutes (DT_E_TIMEOUT).
 */
int dt_loader_next(struct dt_loader *l, struct dt_global_batch **out);

#endif
