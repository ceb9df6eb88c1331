/* Errors are values.
 *
 * Every function that can fail returns 0 (DT_OK) or one negative code from the table below. The
 * *trail* (thread-local) keeps the words: one message, written where the failure was found, says
 * what was found, what was expected and what to do; callers may put context in front of it
 * ("runs/bible/config.json: ..."); the places passed on the way up are recorded for --verbose.
 *
 *     if (n < 1)
 *         return DT_FAIL(DT_E_DATA, "%s: expected at least one token, found none", path);
 *     DT_TRY(dt_file_read(path, &text, &size));          // forwards a failure
 *     DT_CHECK(done, rc, dt_file_read(path, ...));       // sets rc and jumps to `done` on failure
 *
 * Libraries never exit, never abort, and never print an error themselves.
 */
#ifndef DT_BASE_ERROR_H
#define DT_BASE_ERROR_H

#include <stddef.h>

/*     name        value  exit  text */
#define DT_ERRORS(X)                                                                               \
    X(OK, 0, 0, "ok")                                                                              \
    X(E_INTERNAL, -1, 1, "internal error")                                                         \
    X(E_USAGE, -2, 2, "bad usage")                                                                 \
    X(E_CONFIG, -3, 2, "bad configuration")                                                        \
    X(E_UNSUPPORTED, -4, 2, "not supported")                                                       \
    X(E_DATA, -5, 3, "bad data")                                                                   \
    X(E_MODEL, -6, 3, "bad model")                                                                 \
    X(E_CHECKPOINT, -7, 3, "bad checkpoint")                                                       \
    X(E_IO, -8, 1, "input/output error")                                                           \
    X(E_NOT_FOUND, -9, 3, "not found")                                                             \
    X(E_MEMORY, -10, 1, "out of memory")                                                           \
    X(E_BUSY, -11, 1, "in use by another run")                                                     \
    X(E_NUMERIC, -12, 1, "numeric failure")                                                        \
    X(E_TIMEOUT, -13, 1, "timed out")                                                              \
    X(E_SAVE, -14, 74, "the last save failed")                                                     \
    X(E_STOPPED, -15, 75, "stopped before the end; start again to go on")                          \
    X(E_NO_PROGRESS, -16, 93, "no progress over several starts; do not requeue")                   \
    X(E_PEER, -17, 75, "a worker was lost; start again to go on")                                  \
    X(E_EPOCH, -18, 75, "the membership changed; start again to go on")

enum dt_err {
#define X(name, value, exit_code, text) DT_##name = (value),
    DT_ERRORS(X)
#undef X
};

/* Start a new trail with a message; returns `code`. Use through DT_FAIL. */
int dt_error_set(int code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Record that the failure passed here; returns `code`. */
int dt_error_pass(int code, const char *file, int line);
/* Put "text: " in front of the message; returns `code`. */
int dt_error_context(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define DT_FAIL(code, ...) dt_error_set((code), __FILE__, __LINE__, __VA_ARGS__)
#define DT_TRY(expr)                                                                               \
    do {                                                                                           \
        int dt_try_rc_ = (expr);                                                                   \
        if (dt_try_rc_ < 0)                                                                        \
            return dt_error_pass(dt_try_rc_, __FILE__, __LINE__);                                  \
    } while (0)
#define DT_CHECK(label, rc, expr)                                                                  \
    do {                                                                                           \
        (rc) = (expr);                                                                             \
        if ((rc) < 0) {                                                                            \
            dt_error_pass((rc), __FILE__, __LINE__);                                               \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

const char *dt_error_message(void);  /* of this thread's last failure; "" if none */
const char *dt_error_trail(void);    /* "file:line < file:line ...", innermost first */
const char *dt_error_name(int code); /* "E_DATA" */
const char *dt_error_text(int code); /* "bad data" */
int dt_error_exit_code(int code);    /* DESIGN 4: 0, 1, 2, 3, 74, 75, 93 */
void dt_error_clear(void);

/* Carry a failure from one thread to another (a data thread to the loop). */
struct dt_error_state {
    int code;
    char message[8192]; /* a configuration lists all its problems at once */
    char trail[512];
};
void dt_error_save(int code, struct dt_error_state *out);
int dt_error_restore(const struct dt_error_state *in); /* returns in->code */

#endif
