/* For tests that start the program as a user does: a directory of their own, a tiny model and
 * corpus in it, and the exit code and output of a command. */
#ifndef DT_TESTS_PROGRAM_H
#define DT_TESTS_PROGRAM_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char program_dir[256];     /* the test's own directory */
static char program_out[1 << 16]; /* standard output and error of the last command */

static inline void program_open(const char *name)
{
    snprintf(program_dir, sizeof program_dir, "/tmp/ductile-%s-XXXXXX", name);
    if (!mkdtemp(program_dir))
        abort();
}

static inline void program_close(void)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", program_dir);
    if (system(command) != 0)
        abort();
}

/* A shell command in the test's directory; $D is the program. Returns its exit code, 128 + signal
 * when killed. */
__attribute__((format(printf, 1, 2))) static inline int program_run(const char *fmt, ...)
{
    char command[4096], whole[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole,
             "cd '%s' && export D='%s' OMP_WAIT_POLICY=passive && { %s ; } 2>&1", program_dir,
             DT_DUCTILE, command);
    FILE *f = popen(whole, "r");
    if (!f)
        abort();
    size_t n = fread(program_out, 1, sizeof program_out - 1, f);
    program_out[n] = '\0';
    char rest[4096];
    while (fread(rest, 1, sizeof rest, f) > 0)
        ;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The command must end with `code`; on a surprise its output is the test's message. */
#define program_expect(code, ...)                                                                  \
    do {                                                                                           \
        int program_code_ = program_run(__VA_ARGS__);                                              \
        if (program_code_ != (code))                                                               \
            fail_msg("exit code %d instead of %d:\n%s", program_code_, (code), program_out);       \
    } while (0)

static inline void program_write(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", program_dir, name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        abort();
}

/* model/config.json (a Llama of two layers), rows.jsonl (60 rows of ids of uneven length) and
 * run.yaml. */
static inline void program_tiny_run(void)
{
    if (program_run("mkdir -p model") != 0)
        abort();
    program_write("model/config.json", "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_"
                                       "layers\":2,\"num_attention_heads\":4,"
                                       "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_"
                                       "size\":128,\"max_position_embeddings\":128,"
                                       "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}");
    program_write(
        "run.yaml",
        "model: model\ninit: random\noutput: out\nseed: 3\n"
        "data: {train: [rows.jsonl], max_length: 64, eval_fraction: 0.1}\nbatch: {tokens: 512}\n"
        "microbatch: {tokens: 256}\ntrain: {steps: 20, dtype: float32}\noptimizer: {lr: 0.01, "
        "warmup: 3}\n"
        "eval: {every: 10}\ncheckpoint: {every: 10, keep: 3}\nthreads: 1\n");
    char path[512];
    snprintf(path, sizeof path, "%s/rows.jsonl", program_dir);
    FILE *f = fopen(path, "w");
    if (!f)
        abort();
    unsigned x = 12345;
    for (int row = 0; row < 60; row++) {
        fputs("{\"input_ids\": [", f);
        int n = 5 + row * 7 % 55;
        for (int i = 0; i < n; i++) {
            x = x * 1103515245u + 12345u;
            fprintf(f, "%s%u", i ? ", " : "", ((unsigned)(i + row) + (x >> 28)) % 128);
        }
        fputs("]}\n", f);
    }
    if (fclose(f) != 0)
        abort();
}

#endif
