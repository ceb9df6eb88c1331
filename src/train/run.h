/* A training run: everything between RUN.yaml and a directory that transformers can load.
 *
 * setup.c opens what the run needs, in the order in which mistakes are cheap to find; loop.c takes
 * the steps; save.c writes checkpoints; metrics.c says what happened. */
#ifndef DT_TRAIN_RUN_H
#define DT_TRAIN_RUN_H

#include "train/estimate.h"
#include "train/execute.h"
#include "train/run_config.h"
#include "train/session.h"

#include <stdio.h>

struct dt_train_options {
    bool dry_run;             /* everything up to the first step, then stop */
    bool start_over;          /* move existing checkpoints aside instead of going on from them */
    const char *const *allow; /* keys that may differ from the run's first configuration */
    int allow_count;
};

struct dt_run {
    const struct dt_run_config *config;
    const struct dt_train_options *options;
    char model_dir[DT_PATH], checkpoints[DT_PATH];
    struct dt_arch *arch;
    struct dt_tokenizer *tokenizer;  /* only while data is opened */
    struct dt_dataset *train, *eval; /* eval: NULL when there is none */
    struct dt_sampler *sampler;
    bool *trainable; /* [tensor_count] */
    struct dt_state state;
    struct dt_executor executor;
    struct dt_control control;
    struct dt_loader *loader;
    struct dt_run_lock lock;
    bool locked;
    FILE *metrics;           /* OUTPUT/metrics.jsonl; NULL: not open */
    long metrics_size;       /* up to its last whole line */
    int statm;               /* /proc/self/statm, -1 */
    int64_t first;           /* last step done before this start */
    int64_t steps;           /* of the whole run */
    int64_t samples, tokens; /* consumed by committed steps, this start included */
    int64_t saved;           /* newest step on disk, -1: none */
    bool save_failed;        /* the last attempt did */
    double peak_gflops;      /* of this machine, measured at the start; 0: not */
};

/* The whole of `ductile train`. DT_E_STOPPED after an orderly stop, DT_E_SAVE when the last save
 * failed. */
int dt_train_run(const struct dt_run_config *config, const struct dt_train_options *options);

/* ---- what the files of this part share ---- */
int dt_run_open(struct dt_run *r, const struct dt_run_config *config,
                const struct dt_train_options *options);
void dt_run_close(struct dt_run *r);
/* A start that finds nothing to do is no start without progress. */
void dt_run_forget_starts(const struct dt_run *r);
/* Saves state after `step`, then deletes by retention. A failure is told in one line and remembered
 * in the run. */
void dt_run_save(struct dt_run *r, int64_t step);
int dt_run_metrics_open(struct dt_run *r);
void dt_run_metric_step(struct dt_run *r, const struct dt_decision *d,
                        const struct dt_global_batch *b, double seconds);
void dt_run_metric_eval(struct dt_run *r, int64_t step, const struct dt_evaluation *e,
                        double seconds);
void dt_run_metric_event(struct dt_run *r, const char *event, int64_t step, const char *detail);
int64_t dt_run_resident_bytes(const struct dt_run *r);

#endif
