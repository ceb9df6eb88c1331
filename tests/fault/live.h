/* For tests that do something to a program while it runs: start it, wait for words or for the
 * shim's stop, send signals, collect the rest. */
#ifndef DT_TESTS_FAULT_LIVE_H
#define DT_TESTS_FAULT_LIVE_H

#include "program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#define LIVE_SECONDS                                                                               \
    120 /* a loaded machine is slow; a program that hangs must still end the test */

struct live {
    pid_t pid;
    int fd;
    size_t used;
    bool cut; /* more came than fits; only counted */
    char text[1 << 19];
};

/* In memory where there is such a place: thousands of fsyncs. */
static inline void live_open(const char *name)
{
    snprintf(program_dir, sizeof program_dir, "%s/ductile-%s-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", name);
    if (!mkdtemp(program_dir))
        abort();
}

/* One layer, some thousand parameters, 4 steps, saves at 2 and 4 of which one is kept: a whole run
 * has about 250 file operations. */
static inline void live_micro_run(void)
{
    if (program_run("mkdir -p micro") != 0)
        abort();
    program_write("micro/config.json", "{\"model_type\":\"llama\",\"hidden_size\":16,\"num_hidden_"
                                       "layers\":1,\"num_attention_heads\":2,"
                                       "\"num_key_value_heads\":1,\"intermediate_size\":32,\"vocab_"
                                       "size\":64,\"max_position_embeddings\":64,"
                                       "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}");
    program_write("micro.yaml",
                  "model: micro\ninit: random\noutput: out\nseed: 3\n"
                  "data: {train: [micro.jsonl], max_length: 16}\nbatch: {tokens: 32}\n"
                  "microbatch: {tokens: 16}\ntrain: {steps: 4, dtype: float32}\n"
                  "checkpoint: {every: 2, keep: 1}\nthreads: 1\n");
    if (program_run("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo \"{\\\"input_ids\\\": "
                    "[1,2,3,$i,5,6,7,$((i+8))]}\"; "
                    "done > micro.jsonl") != 0)
        abort();
}

/* `command` runs in the test's directory; $D is the program, $SHIM the setting that puts the shim
 * in front of it. */
__attribute__((format(printf, 2, 3))) static inline void live_start(struct live *l, const char *fmt,
                                                                    ...)
{
    char command[2048], whole[4096];
    int ends[2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    snprintf(
        whole, sizeof whole,
        "cd '%s' && export OMP_WAIT_POLICY=passive ASAN_OPTIONS=verify_asan_link_order=0 D='%s' "
        "SHIM='LD_PRELOAD=%s' && exec env %s",
        program_dir, DT_DUCTILE, DT_FAULT_SHIM, command);
    *l = (struct live){.fd = -1};
    if (pipe2(ends, O_CLOEXEC) != 0)
        abort();
    l->pid = fork();
    if (l->pid < 0)
        abort();
    if (l->pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", whole, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    l->fd = ends[0];
}

/* Reads what is there; false at the end of the stream or when nothing came in time. */
static inline bool live_read(struct live *l)
{
    char more[4096];
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    if (poll(&p, 1, LIVE_SECONDS * 1000) <= 0) {
        kill(l->pid, SIGKILL);
        return false;
    }
    ssize_t n = read(l->fd, more, sizeof more);
    if (n <= 0)
        return false;
    size_t room = sizeof l->text - 1 - l->used, take = (size_t)n < room ? (size_t)n : room;
    memcpy(l->text + l->used, more, take);
    l->cut |= take < (size_t)n;
    l->used += take;
    l->text[l->used] = '\0';
    return true;
}

static inline bool live_wait_for(struct live *l, const char *words)
{
    while (!strstr(l->text, words))
        if (!live_read(l))
            return false;
    return true;
}

/* Waits until the shim has stopped it. */
static inline bool live_stopped(struct live *l)
{
    int status;
    return waitpid(l->pid, &status, WUNTRACED) == l->pid && WIFSTOPPED(status);
}

/* Exit code, 128 + signal when killed; all that it said is in text. */
static inline int live_end(struct live *l)
{
    int status;
    while (live_read(l))
        ;
    close(l->fd);
    if (waitpid(l->pid, &status, 0) != l->pid)
        abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define live_expect(l, code)                                                                       \
    do {                                                                                           \
        int live_code_ = live_end(l);                                                              \
        if (live_code_ != (code))                                                                  \
            fail_msg("exit code %d instead of %d:\n%s", live_code_, (code), (l)->text);            \
    } while (0)

#define live_expect_words(l, words)                                                                \
    do {                                                                                           \
        if (!strstr((l)->text, (words)))                                                           \
            fail_msg("\"%s\" is not in:\n%s", (words), (l)->text);                                 \
    } while (0)

#endif
