/* A model opened for use: what eval, logits, generate and export start from, and evaluation itself.
 */
#ifndef DT_TRAIN_SESSION_H
#define DT_TRAIN_SESSION_H

#include "train/execute.h"

struct dt_session {
    char path[DT_PATH]; /* the directory that config.json was found in */
    struct dt_arch *arch;
    struct dt_state state;
};

/* `path`: a Hugging Face directory, a checkpoint, or a run's directory (its newest valid
 * checkpoint). */
int dt_session_open(const char *path, enum dt_state_kind kind, struct dt_session *out);
void dt_session_close(struct dt_session *s);
/* The directory behind a MODEL. */
int dt_model_directory(const char *path, char out[DT_PATH]);

/* The id that closes a text: `wanted` "auto" (eos_token of tokenizer_config.json, else
 * config.json's first eos), "none" (-1), or a token's text. tokenizer may be NULL. */
int dt_end_of_text(const char *wanted, const struct dt_arch *arch,
                   const struct dt_tokenizer *tokenizer, int32_t *out);
/* tokenizer.json in `dir`; *out NULL when there is none. Warns when config.json and the tokenizer
 * disagree on eos; DT_E_DATA when the tokenizer has ids that the model lacks. */
int dt_tokenizer_of(const char *dir, const struct dt_arch *arch, struct dt_tokenizer **out);

/* This worker's part of the first `limit` samples (0: all), in order. `control` may be NULL; when
 * it asks to stop, evaluation ends early and is not `complete`. `shown`: a progress line. */
int dt_evaluate(struct dt_executor *e, const struct dt_dataset *d, int64_t limit,
                struct dt_control *control, bool shown, struct dt_evaluation *out);

#endif
