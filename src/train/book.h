/* The books of a run: what is decided, told and saved. One a run: the local control keeps them when
 * there is one worker, the coordinator when there are several. Whoever keeps them needs no model in
 * memory.
 *
 * book.c decides and counts; metrics.c writes metrics.jsonl and the log line; save.c opens and
 * commits checkpoints, whose data the workers write. */
#ifndef DT_TRAIN_BOOK_H
#define DT_TRAIN_BOOK_H

#include "base/log.h"
#include "state/state.h"
#include "train/control.h"
#include "train/run_config.h"

#include <stdio.h>

struct dt_book {
    const struct dt_run_config *config;
    const struct dt_arch *arch;
    const char *model_dir, *checkpoints; /* the run's */
    uint64_t data_hash, plan_hash;
    bool *trainable;             /* [tensor_count] */
    enum dt_dtype *frozen_dtype; /* [tensor_count] */
    struct dt_optimizer optimizer;
    int64_t spaces;
    int64_t *skipped; /* [spaces] steps in a row */
    int32_t workers;
    FILE *metrics;           /* OUTPUT/metrics.jsonl; NULL: not open */
    long metrics_size;       /* up to its last whole line */
    int statm;               /* /proc/self/statm, -1 */
    int64_t first;           /* last step done before this start */
    int64_t steps;           /* of the whole run */
    int64_t decided;         /* last step */
    int64_t samples, tokens; /* consumed by decided steps, earlier starts included */
    int64_t saved;           /* newest step on disk, -1: none */
    bool save_failed;        /* the last attempt did */
    bool last_skipped;       /* the last step of a space with trained tokens was not finite */
    double peak_gflops;      /* of all workers, measured at the start; 0: not */
    double mark;             /* clock: since then the present step is under way */
    double save_began;
    int first_file; /* handle of a save's first data file */
    struct dt_progress progress;
    bool shown; /* progress has begun */
};

struct dt_run;
/* From an opened run (run.h); metrics.jsonl is opened. */
int dt_book_open(struct dt_book *b, const struct dt_run *run);
void dt_book_close(struct dt_book *b);
/* The first step is about to begin; peak: of all workers together. */
void dt_book_begin(struct dt_book *b, double peak_gflops);

/* All votes in, added up: the decision, counted and written down. resident: bytes of all workers.
 * DT_E_NUMERIC after too many skipped steps in a row. */
int dt_book_decide(struct dt_book *b, const struct dt_vote *sum, bool stop, int64_t resident,
                   struct dt_decision *out);
void dt_book_evaluated(struct dt_book *b, int64_t step, const struct dt_evaluation *sum);
void dt_book_event(struct dt_book *b, const char *event, int64_t step, const char *detail);
int64_t dt_book_resident(const struct dt_book *b); /* of this process */

/* A save: begin makes the temporary directory with everything in it but the data, whose files are
 * there with their size; workers write their parts; each part is claimed; end commits (rc >= 0) or
 * throws away, deletes by retention and tells. true: a checkpoint of this step stands. w may be
 * NULL when begin failed. */
int dt_book_save_begin(struct dt_book *b, int64_t step, struct dt_checkpoint_writer **w);
int dt_book_save_claim(struct dt_book *b, struct dt_checkpoint_writer *w,
                       const struct dt_checkpoint_part *part);
bool dt_book_save_end(struct dt_book *b, int64_t step, struct dt_checkpoint_writer *w, int rc);

/* How a run that came to an end in good order ends: the words, and DT_OK, DT_E_STOPPED, DT_E_SAVE
 * or DT_E_NUMERIC. */
int dt_book_finish(struct dt_book *b, bool stopped);

/* ---- what the files of this part share (metrics.c) ---- */
int book__metrics_open(struct dt_book *b);
void book__metrics_step(struct dt_book *b, const struct dt_decision *d, const struct dt_vote *sum,
                        double seconds, int64_t resident);
void book__metrics_eval(struct dt_book *b, int64_t step, const struct dt_evaluation *sum,
                        double seconds);

/* One worker: a control with books. */
int dt_control_books(struct dt_book *book, struct dt_state *state, struct dt_control *out);

#endif
