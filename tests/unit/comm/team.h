/* Workers that are threads of this program, over the in-process transport: opened together, given
 * one piece of work each, closed together. */
#ifndef DT_TEST_COMM_TEAM_H
#define DT_TEST_COMM_TEAM_H

#include "base/error.h"
#include "comm/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { TEAM_MOST = 9 };

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
                     assert_rc_ < 0 ? dt_error_message() : "");                                    \
        if (!strstr(dt_error_message(), words))                                                    \
            fail_msg("'%s' is not in: %s", words, dt_error_message());                             \
    } while (0)

struct team {
    int32_t size;
    struct dt_comm_hub *hub;
    struct dt_comm *comm[TEAM_MOST];
    int (*work)(struct team *t, int32_t rank); /* an error or DT_OK */
    const void *arg;
    int rc[TEAM_MOST];
    char words[TEAM_MOST][512];
};

static void team_open(struct team *t, int32_t size, double timeout)
{
    struct dt_comm_address table[TEAM_MOST];
    *t = (struct team){.size = size};
    assert_ok(dt_comm_hub_new(size, &t->hub));
    for (int32_t r = 0; r < size; r++) {
        struct dt_comm_options o = {.rank = r, .size = size, .epoch = 5, .timeout = timeout};
        assert_ok(dt_comm_local_new(t->hub, r, &o.transport));
        assert_ok(dt_comm_open(&o, &t->comm[r]));
        assert_ok(dt_comm_address(t->comm[r], &table[r].data, &table[r].bytes));
    }
    for (int32_t r = 0; r < size; r++)
        assert_ok(dt_comm_connect(t->comm[r], table));
}

static void team_close(struct team *t)
{
    for (int32_t r = 0; r < t->size; r++)
        dt_comm_close(t->comm[r]);
    dt_comm_hub_free(t->hub);
}

struct team_seat {
    struct team *team;
    int32_t rank;
};

static void *team_thread(void *arg)
{
    const struct team_seat *s = arg;
    struct team *t = s->team;
    int rc = t->work(t, s->rank);
    t->rc[s->rank] = rc;
    snprintf(t->words[s->rank], sizeof t->words[0], "%.500s", rc < 0 ? dt_error_message() : "");
    return NULL;
}

/* Everybody does `work` in a thread of its own; all must succeed. */
static void team_run(struct team *t, int (*work)(struct team *t, int32_t rank), const void *arg)
{
    pthread_t threads[TEAM_MOST];
    struct team_seat seats[TEAM_MOST];
    t->work = work;
    t->arg = arg;
    for (int32_t r = 0; r < t->size; r++) {
        seats[r] = (struct team_seat){t, r};
        assert_int_equal(pthread_create(&threads[r], NULL, team_thread, &seats[r]), 0);
    }
    for (int32_t r = 0; r < t->size; r++)
        pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < t->size; r++)
        if (t->rc[r] < 0)
            fail_msg("worker %d of %d: %s", (int)r, (int)t->size, t->words[r]);
}

#endif
