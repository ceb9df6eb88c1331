/* Shared by the tests of this room: a directory for each test, and files in it. */
#ifndef DT_TEST_DATA_H
#define DT_TEST_DATA_H

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        int assert_rc_ = (expr);                                                                   \
        if (assert_rc_ != DT_OK)                                                                   \
            fail_msg("%s: %s (%s)", #expr, dt_error_message(), dt_error_trail());                  \
    } while (0)
#define assert_fails(expr, expected, words)                                                        \
    do {                                                                                           \
        int assert_rc_ = (expr);                                                                   \
        if (assert_rc_ != (expected))                                                              \
            fail_msg("%s gave %d, expected %d: %s", #expr, assert_rc_, (expected),                 \
                     dt_error_message());                                                          \
        if (!strstr(dt_error_message(), words))                                                    \
            fail_msg("'%s' is not in: %s", words, dt_error_message());                             \
    } while (0)

static char test_dir[DT_PATH];

static int make_dir(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    dt_log_set_level(DT_LOG_ERROR);
    snprintf(test_dir, sizeof test_dir, "%s/dt-data-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    return mkdtemp(test_dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return dt_remove_tree(test_dir);
}

/* A path in the directory; several results may be in use at once. */
static const char *in_dir(const char *name)
{
    static char paths[128][DT_PATH + 64];
    static int next;
    char *p = paths[next++ % 128];
    snprintf(p, sizeof paths[0], "%s/%s", test_dir, name);
    return p;
}

static const char *put_bytes(const char *name, const void *data, size_t size)
{
    const char *path = in_dir(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    return path;
}

static inline const char *put_text(const char *name, const char *text)
{
    return put_bytes(name, text, strlen(text));
}

static inline void add_to(char *text, size_t room, const char *more)
{
    if (strlen(text) + strlen(more) + 1 > room)
        abort();
    strcat(text, more);
}

#endif
