/* Ductile as a library: train a model, evaluate one.
 *
 * Functions that can fail return 0 or one negative code; ductile_error_message says in words, for
 * the calling thread, what was found, what was expected and what to do. Nothing here ends the
 * process for an error, and nothing is printed but progress on standard error (ductile_set_quiet
 * stops that).
 *
 * Build with `pkg-config --cflags --libs ductile`; examples/embed is a whole program.
 * One call at a time in a process: the kernels and their threads are shared. */
#ifndef DUCTILE_DUCTILE_H
#define DUCTILE_DUCTILE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DUCTILE_API __attribute__((visibility("default")))

/* "0.1.0" */
DUCTILE_API const char *ductile_version(void);

/* The last failure of the calling thread; "" if there was none. Valid until its next call. */
DUCTILE_API const char *ductile_error_message(void);
/* "E_CONFIG" and the like. */
DUCTILE_API const char *ductile_error_name(int code);
/* What the `ductile` program would exit with: 0 done, 2 bad usage or configuration, 3 bad data or
 * model, 74 the last save failed, 75 stopped before the end (call again to go on), 93 no progress
 * over several starts, 1 anything else. */
DUCTILE_API int ductile_error_exit_code(int code);

/* 1: only warnings and errors on standard error; 0: everything, which is how it starts. */
DUCTILE_API void ductile_set_quiet(int quiet);

/* `ductile train RUN.yaml`: trains, or goes on from the newest checkpoint of the run's directory.
 * `overrides` are `count` strings "section.key=value" (docs/config.md has the keys); NULL with 0
 * for none. While it runs, SIGTERM, SIGINT and SIGUSR1 save at the next step boundary and make it
 * return the code whose exit code is 75, and a second one ends the process; afterwards the caller's
 * handlers are back. */
DUCTILE_API int ductile_train(const char *run_yaml, const char *const *overrides, int count);

/* Zero everywhere is a sound choice: what the same command without options does. */
struct ductile_evaluate_options {
    int float32;        /* 1: matrix products in float32; 0: in bfloat16 */
    int threads;        /* 0: every core this process may use */
    int64_t max_length; /* longest sequence in tokens; 0: the model's positions */
    const char
        *kernels; /* a kernel set by name (`ductile doctor` lists them); NULL: the fastest here */
};

struct ductile_evaluation {
    double loss;    /* mean over the tokens that count, in nats */
    int64_t tokens; /* that count */
    int64_t sequences;
    double bits_per_byte; /* of the text; 0 when its size is not known */
};

/* `ductile eval MODEL --data FILE`. `model` is a Hugging Face directory, a checkpoint, or a run's
 * directory (its newest checkpoint); `data` a corpus, JSONL or text file. `options` may be NULL. */
DUCTILE_API int ductile_evaluate(const char *model, const char *data,
                                 const struct ductile_evaluate_options *options,
                                 struct ductile_evaluation *out);

#ifdef __cplusplus
}
#endif

#endif
