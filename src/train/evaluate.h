/* A model over a file: what `ductile eval` and the library's ductile_evaluate open. */
#ifndef DT_TRAIN_EVALUATE_H
#define DT_TRAIN_EVALUATE_H

#include "train/session.h"

struct dt_file_options {
    const char *model;         /* as dt_session_open */
    const char *data;          /* a corpus, JSONL or text file */
    const char *format;        /* "auto" or a row format's name */
    const char *chat_template; /* "auto" or a template's name */
    const char *end_of_text;   /* "auto", "none" or a token */
    int64_t max_length;        /* longest sequence; 0: the model's positions */
    enum dt_dtype compute;
    bool gradients; /* the executor's largest batch is the whole file, and its gradients are kept */
};

/* Zero-initialise; close also after a failure. */
struct dt_file_evaluation {
    struct dt_session session;
    struct dt_tokenizer *tokenizer;
    struct dt_dataset *data;
    struct dt_executor executor;
};

/* Kernels are selected and the team stands. */
int dt_file_evaluation_open(const struct dt_file_options *o, struct dt_file_evaluation *out);
void dt_file_evaluation_close(struct dt_file_evaluation *e);

#endif
