/* What a run will take, from the same sizing code that makes the arenas; nothing is allocated. */
#ifndef DT_TRAIN_ESTIMATE_H
#define DT_TRAIN_ESTIMATE_H

#include "train/execute.h"
#include "train/run_config.h"

struct dt_estimate {
    size_t state;       /* weights, gradients, moments of what trains; weights of what is frozen */
    size_t activations; /* slots, scratch, tables */
    size_t batches;     /* tokens of two global batches and of evaluation */
    size_t preparation; /* tokenizing, before the arenas exist: counts only where it is more than
                           the rest */
    size_t process;     /* program, libraries, thread stacks */
    size_t total;       /* of one worker */
    size_t all_workers; /* of all of them and the coordinator, when all are on one machine; unless
                           one rank was asked for */
    double step_flops;  /* of a full batch */
    int64_t parameters, trainable;
};

/* From the configuration alone: the largest batch that it allows. */
struct dt_batch_bound dt_batch_bound_of(const struct dt_run_config *c);
/* Which tensors train: everything but what train.freeze names. trainable: [tensor_count].
 * DT_E_CONFIG for a pattern that matches nothing. */
int dt_freeze(const struct dt_arch *arch, const struct dt_config_strings *patterns,
              bool *trainable);
struct dt_executor_options dt_executor_options_of(const struct dt_run_config *c,
                                                  struct dt_batch_bound bound, int32_t rank);
struct dt_state_options dt_state_options_of(const struct dt_run_config *c, const bool *trainable,
                                            int32_t rank, struct dt_comm *comm);

/* rank: of this worker, -1 of the one that needs most. preparation: bytes while texts are
 * tokenized. Corpora are mapped and forgotten batch by batch, so they take nothing that counts. The
 * team must stand (dt_ops_set_threads). */
int dt_estimate_run(const struct dt_arch *arch, const struct dt_run_config *c,
                    const bool *trainable, struct dt_batch_bound bound, size_t preparation,
                    int32_t rank, struct dt_estimate *out);
/* The bytes that this process may use: memory.limit, the control group's limit, what the machine
 * has free. `what` says which. */
size_t dt_memory_allowed(const struct dt_run_config *c, const char **what);
/* DT_E_CONFIG when the estimate is more than allowed, saying which key helps and by how much. */
int dt_estimate_check(const struct dt_arch *arch, const struct dt_run_config *c,
                      const bool *trainable, struct dt_batch_bound bound,
                      const struct dt_estimate *e);

#endif
