#include "cluster/measure.h"

#include "base/clock.h"
#include "base/error.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PINGS 100
#define LARGE ((size_t)8 << 20)
#define LARGE_ROUNDS 8

struct link {
    double latency, bandwidth; /* seconds one way, bytes a second */
};

/* One message there and one back, of `bytes`, `rounds` times: seconds of the best. */
static int ping(struct dt_comm *c, int32_t peer, bool first, char *out, char *in, size_t bytes,
                int rounds, double *best)
{
    struct dt_comm_request r[2];
    *best = 1e30;
    for (int i = 0; i < rounds; i++) {
        double began = dt_clock_seconds();
        memset(r, 0, sizeof r);
        dt_comm_recv(c, &r[0], peer, DT_COMM_TEST, 1, in, bytes);
        if (!first)
            DT_TRY(dt_comm_wait(c, &r[0], "a test message"));
        dt_comm_send(c, &r[1], peer, DT_COMM_TEST, 1, out, bytes);
        DT_TRY(dt_comm_wait_all(c, r, 2, "a test message"));
        double seconds = dt_clock_seconds() - began;
        *best = seconds < *best ? seconds : *best;
    }
    return DT_OK;
}

static int measure(struct dt_comm *c, int32_t peer, bool first, char *out, char *in,
                   struct link *link)
{
    double small, large;
    DT_TRY(ping(c, peer, first, out, in, 8, PINGS, &small));
    DT_TRY(ping(c, peer, first, out, in, LARGE, LARGE_ROUNDS, &large));
    link->latency = small / 2;
    link->bandwidth = 2 * (double)LARGE / large;
    return DT_OK;
}

static int add(struct dt_comm *c, json_t *list, int32_t peer, const struct link *link)
{
    char path[128];
    dt_comm_path(c, peer, path, sizeof path);
    json_t *o =
        json_pack("{s:i, s:i, s:s, s:f, s:f}", "from", dt_comm_rank(c), "to", peer, "path", path,
                  "latency_us", link->latency * 1e6, "bandwidth_gbs", link->bandwidth / 1e9);
    return json_array_append_new(list, o) == 0 ? DT_OK
                                               : DT_FAIL(DT_E_MEMORY, "no memory for results");
}

/* Pairs in one order that all know; whoever has no part waits at the barrier. */
static int all_pairs(struct dt_comm *c, char *out, char *in, json_t *list)
{
    struct link link = {0};
    int32_t me = dt_comm_rank(c), size = dt_comm_size(c);
    const struct dt_group everybody = {.count = size, .me = me};
    for (int32_t a = 0; a < size; a++)
        for (int32_t b = a + 1; b < size; b++) {
            if (me == a || me == b)
                DT_TRY(measure(c, me == a ? b : a, me == a, out, in, &link));
            if (me == a)
                DT_TRY(add(c, list, b, &link));
            DT_TRY(dt_barrier(c, &everybody, 1));
        }
    return DT_OK;
}

int dt_measure_links(struct dt_comm *c, char **text)
{
    char *out = calloc(1, LARGE), *in = calloc(1, LARGE);
    json_t *list = json_array();
    int rc = out && in && list ? all_pairs(c, out, in, list)
                               : DT_FAIL(DT_E_MEMORY, "no memory to measure with");
    *text = rc >= 0 ? json_dumps(list, JSON_COMPACT) : NULL;
    if (rc >= 0 && !*text)
        rc = DT_FAIL(DT_E_MEMORY, "no memory for results");
    json_decref(list);
    free(out);
    free(in);
    return rc;
}
