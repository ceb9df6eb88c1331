/* RUN.yaml: what a run is. The keys, their defaults and ranges stand in the table of run_config.c;
 * docs/config.md is generated from it. This struct is the resolved form: every default filled in,
 * every path absolute, checked against itself. No file but the configuration has been looked at. */
#ifndef DT_TRAIN_RUN_CONFIG_H
#define DT_TRAIN_RUN_CONFIG_H

#include "base/config.h"

enum dt_run_init { DT_INIT_PRETRAINED, DT_INIT_RANDOM };

enum dt_run_dtype { DT_RUN_BFLOAT16, DT_RUN_FLOAT32 };
enum dt_run_recompute { DT_RECOMPUTE_NONE, DT_RECOMPUTE_BLOCK };
enum dt_run_reduction { DT_REDUCTION_FLOAT, DT_REDUCTION_EXACT };
enum dt_run_schedule { DT_LR_CONSTANT, DT_LR_LINEAR, DT_LR_COSINE, DT_LR_WSD };

struct dt_run_config {
    char *model;  /* a MODEL: Hugging Face directory or checkpoint */
    int init;     /* enum dt_run_init */
    char *output; /* the run's directory */
    int64_t seed;

    struct {
        struct dt_config_strings train; /* at least one */
        struct dt_config_strings eval;  /* may be empty */
        double eval_fraction;           /* 0 when `eval` is given */
        int64_t max_length;
        bool shuffle;
        int on_bad_row;      /* enum dt_bad_row of data/data.h */
        char *end_of_text;   /* "auto": the model's, "none", or the token's text */
        char *cache;         /* NULL: OUTPUT/cache */
        char *format;        /* auto text input_ids prompt alpaca sharegpt messages */
        char *chat_template; /* auto chatml llama2 llama3 mistral alpaca */
    } data;
    struct {
        int64_t tokens; /* exactly one of the two is > 0 */
        int64_t sequences;
    } batch;
    struct {
        int64_t tokens; /* >= data.max_length */
    } microbatch;
    struct {
        int64_t steps; /* exactly one of the two is > 0 */
        int64_t epochs;
        int dtype;                       /* enum dt_run_dtype */
        struct dt_config_strings freeze; /* shell patterns over tensor names, see fnmatch(3) */
        int recompute;                   /* enum dt_run_recompute */
    } train;
    struct {
        double lr;
        int schedule;                   /* enum dt_run_schedule */
        struct dt_config_amount warmup; /* steps, or a share of all steps */
        struct dt_config_amount decay;  /* wsd only */
        double min_lr_ratio;
        double betas[2];
        double eps, weight_decay;
        double clip; /* 0: no clipping */
    } optimizer;
    struct {
        int64_t every;     /* steps; 0: only at the end */
        int64_t sequences; /* at most so many windows, in order; 0: all */
    } eval;
    struct {
        int64_t every;      /* steps; 0: only at the end */
        int64_t keep;       /* newest ones; 0: all */
        int64_t keep_every; /* also every step divisible by this; 0: none */
    } checkpoint;
    struct {
        int64_t every; /* steps */
    } log;
    struct {
        int64_t limit; /* MiB; 0: what the machine and its control group allow */
    } memory;
    int64_t workers;                /* in all */
    int64_t threads;                /* per worker; 0: cores of its machine / workers there */
    struct dt_config_strings rates; /* [workers] or empty */
    int64_t *rate;                  /* [workers] the same in parts per million; NULL: all alike */
    int reduction;                  /* enum dt_run_reduction */
    struct {
        char *network;                 /* ADDRESS/BITS; NULL: one machine */
        int64_t agents;                /* machines */
        int64_t port;                  /* 0: any */
        char *secret;                  /* file; NULL: made for the run */
        double timeout, start_timeout; /* seconds */
    } cluster;
    char *kernels; /* "auto" or a kernel set's name */
};

extern const struct dt_config_table dt_run_config_table;

/* Read `path`, then `n` overrides "section.key=value" (with or without leading "--"; "section.key"
 * alone is true, "no-section.key" false). On failure *cfg is empty and the message lists every
 * problem. Free with dt_run_config_free in either case. */
int dt_run_config_load(const char *path, const char *const *overrides, int n,
                       struct dt_run_config *cfg);
/* The same for a text in memory; relative paths are relative to `directory`. */
int dt_run_config_parse(const char *name, const char *directory, const void *text, size_t size,
                        const char *const *overrides, int n, struct dt_run_config *cfg);
void dt_run_config_free(struct dt_run_config *cfg);

/* YAML that loads back to the same configuration; a run keeps it as OUTPUT/config.yaml. */
void dt_run_config_print(const struct dt_run_config *cfg, FILE *f);
/* Of the keys that change what is trained; equal configurations have equal hashes. */
int dt_run_config_hash(const struct dt_run_config *cfg, uint64_t *out);

/* May a run that was started with the configuration in `old_yaml` go on with `now`? 0, or
 * DT_E_CONFIG with every key that changes what is trained, its old and new value, and the
 * --allow-change=KEY that confirms it. `allowed`: keys or whole sections confirmed so far. */
int dt_run_config_diff(const char *old_yaml, const struct dt_run_config *now,
                       const char *const *allowed, int n);

/* Steps of warm-up and of the final decay (wsd) in a run of `steps` steps. */
int64_t dt_run_config_warmup(const struct dt_run_config *cfg, int64_t steps);
int64_t dt_run_config_decay(const struct dt_run_config *cfg, int64_t steps);

#endif
