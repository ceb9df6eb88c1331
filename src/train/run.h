/* A training run: everything between RUN.yaml and a directory that transformers can load.
 *
 * setup.c opens what the run needs, in the order in which mistakes are cheap to find; engine.c
 * makes what computes; loop.c takes the steps; book.h is what decides and saves. With one worker
 * all of it is one process. With several the coordinator opens the run and keeps the books, and
 * every worker opens the run as a follower and has an engine (cluster/). */
#ifndef DT_TRAIN_RUN_H
#define DT_TRAIN_RUN_H

#include "train/book.h"
#include "train/estimate.h"
#include "train/execute.h"
#include "train/run_config.h"
#include "train/session.h"

struct dt_train_options {
    bool dry_run;             /* everything up to the first step, then stop */
    bool start_over;          /* move existing checkpoints aside instead of going on from them */
    const char *const *allow; /* keys that may differ from the run's first configuration */
    int allow_count;
    /* A worker that follows a coordinator: it decides nothing about the directory and is told where
     * the run goes on. */
    bool follow;
    int32_t rank;
    int64_t first;          /* last step done */
    const char *checkpoint; /* "": the model */
    struct dt_comm *comm;
};

struct dt_run {
    const struct dt_run_config *config;
    const struct dt_train_options *options;
    char model_dir[DT_PATH], checkpoints[DT_PATH];
    char checkpoint[DT_PATH]; /* that the run goes on from, "" none */
    struct dt_arch *arch;
    struct dt_tokenizer *tokenizer;  /* only while data is opened */
    struct dt_dataset *train, *eval; /* eval: NULL when there is none */
    struct dt_sampler *sampler;
    bool *trainable; /* [tensor_count] */
    struct dt_batch_bound bound;
    struct dt_run_lock lock;
    bool locked;
    int64_t first;           /* last step done before this start */
    int64_t steps;           /* of the whole run */
    int64_t saved;           /* newest step on disk at the start, -1: none */
    int64_t samples, tokens; /* consumed up to `first` */
};

/* What computes, on one worker. */
struct dt_engine {
    struct dt_state state;
    struct dt_executor executor;
    struct dt_loader *loader;
};

/* The whole of `ductile train` with one worker in this process. DT_E_STOPPED after an orderly stop,
 * DT_E_SAVE when the last save failed. */
int dt_train_run(const struct dt_run_config *config, const struct dt_train_options *options);

/* ---- its parts ---- */
/* Everything but arenas: model, directory, data, memory. Kernels and the team are set. */
int dt_run_open(struct dt_run *r, const struct dt_run_config *config,
                const struct dt_train_options *options);
void dt_run_close(struct dt_run *r);
/* false: said so, and there is nothing to train (dry run, or all steps are done). */
bool dt_run_has_work(struct dt_run *r);
/* Arenas, weights, and the thread that reads data. */
int dt_engine_open(struct dt_engine *e, const struct dt_run *r);
void dt_engine_close(struct dt_engine *e);
/* Measured GFLOP/s of this process's team, told with the kernels. */
double dt_engine_peak(const struct dt_run *r, char *words, size_t size);
/* All steps. *stopped: asked to stop, work remains. */
int dt_run_loop(struct dt_run *r, struct dt_engine *e, struct dt_control *control, bool *stopped);

#endif
