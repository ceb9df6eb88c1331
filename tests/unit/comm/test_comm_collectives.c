/* The collectives among 1 to 9 workers, with uneven and empty parts, in groups of other orders:
 * against a plain loop that adds in member order, bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "team.h"

#include <stdlib.h>
#include <unistd.h>

#define PATIENT 60.0

static struct team team;

static void add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* Of very different sizes, so that another order of adding gives other bits. */
static float element(int32_t member, int64_t i)
{
    static const float scale[] = {1, 1e-4f, 300, 1e-6f, 17, 1e-2f, 5000, 0.3f, 1e-5f};
    return (float)((i * 37 + member * 101) % 997 - 498) * scale[(member + i) % 9];
}

/* What a group has to do, besides who is in it. */
struct task {
    const int32_t *members; /* NULL: all */
    int32_t count;
    int64_t at[TEAM_MOST], part[TEAM_MOST], total;
    uint64_t key;
};

static void make_parts(struct task *k, int variant)
{
    k->total = 0;
    for (int32_t i = 0; i < k->count; i++) {
        k->part[i] = variant == 0 ? 64 : (i * 13 + variant * 7) % 5 == 0 ? 0 : 1 + i * 41 % 100;
        k->at[i] = k->total + variant; /* a gap before each */
        k->total = k->at[i] + k->part[i];
    }
}

/* This worker's place; false: it is not a member. */
static bool find(const struct task *k, int32_t rank, struct dt_group *g)
{
    *g = (struct dt_group){.members = k->members, .count = k->count, .me = -1};
    for (int32_t i = 0; i < k->count; i++)
        if ((k->members ? k->members[i] : i) == rank)
            g->me = i;
    return g->me >= 0;
}

static int differs(const char *what, int64_t i, double got, double wanted)
{
    return DT_FAIL(DT_E_INTERNAL, "%s, element %lld: %.17g, expected %.17g", what, (long long)i,
                   got, wanted);
}

static int reduce_scatter(struct dt_comm *c, const struct dt_group *g, const struct task *k)
{
    int64_t mine = k->part[g->me];
    float *src = malloc((size_t)(k->total + 1) * sizeof *src);
    float *dst = malloc((size_t)(mine + 1) * sizeof *dst);
    float *scratch = malloc((size_t)(k->count * mine + 1) * sizeof *scratch);
    for (int64_t i = 0; i < k->total; i++)
        src[i] = element(g->me, i);
    dst[mine] = 1234;
    int rc = dt_reduce_scatter(c, g, k->key, src, k->at, k->part, dst, scratch, add);
    for (int64_t i = 0; i < mine && rc >= 0; i++) {
        float wanted = element(0, k->at[g->me] + i);
        for (int32_t m = 1; m < k->count; m++)
            wanted += element(m, k->at[g->me] + i);
        if (memcmp(&wanted, &dst[i], sizeof wanted) != 0)
            rc = differs("reduce-scatter", i, (double)dst[i], (double)wanted);
    }
    if (rc >= 0 && dst[mine] != 1234)
        rc = differs("reduce-scatter, beyond its part", mine, (double)dst[mine], 1234);
    free(src);
    free(dst);
    free(scratch);
    return rc;
}

static int all_gather(struct dt_comm *c, const struct dt_group *g, const struct task *k)
{
    float *buffer = malloc((size_t)(k->total + 1) * sizeof *buffer);
    for (int64_t i = 0; i <= k->total; i++)
        buffer[i] = -1; /* no element is: gaps must stay */
    for (int64_t i = 0; i < k->part[g->me]; i++)
        buffer[k->at[g->me] + i] = element(g->me, i);
    int rc = dt_all_gather(c, g, k->key + 1, buffer, k->at, k->part);
    int64_t next = 0;
    for (int32_t m = 0; m < k->count && rc >= 0; m++) {
        for (; next < k->at[m] && rc >= 0; next++)
            if (buffer[next] != -1)
                rc = differs("all-gather, between parts", next, (double)buffer[next], -1);
        for (int64_t i = 0; i < k->part[m] && rc >= 0; i++, next++)
            if (buffer[next] != element(m, i))
                rc = differs("all-gather", next, (double)buffer[next], (double)element(m, i));
    }
    free(buffer);
    return rc;
}

enum { SHORT = 5 };

static int all_reduce(struct dt_comm *c, const struct dt_group *g, const struct task *k)
{
    double x[SHORT], scratch[TEAM_MOST * SHORT];
    for (int i = 0; i < SHORT; i++)
        x[i] = (double)element(g->me, i) / 3;
    DT_TRY(dt_all_reduce_small(c, g, k->key + 2, x, SHORT, scratch));
    for (int i = 0; i < SHORT; i++) {
        double wanted = (double)element(0, i) / 3;
        for (int32_t m = 1; m < k->count; m++)
            wanted += (double)element(m, i) / 3;
        if (memcmp(&wanted, &x[i], sizeof wanted) != 0)
            return differs("all-reduce", i, x[i], wanted);
    }
    return dt_all_reduce_small(c, g, k->key + 2, NULL, 0, NULL);
}

static int broadcasts(struct dt_comm *c, const struct dt_group *g, const struct task *k)
{
    for (int32_t root = 0; root < k->count; root++) {
        int64_t data[9];
        for (int i = 0; i < 9; i++)
            data[i] = g->me == root ? 100 * root + i : -1;
        DT_TRY(dt_broadcast(c, g, k->key + 3, root, data, 8 * sizeof *data));
        for (int i = 0; i < 8; i++)
            if (data[i] != 100 * root + i)
                return differs("broadcast", i, (double)data[i], 100 * root + i);
        if (g->me != root && data[8] != -1)
            return differs("broadcast, beyond its end", 8, (double)data[8], -1);
    }
    return DT_OK;
}

static int everything(struct team *t, int32_t rank)
{
    const struct task *k = t->arg;
    struct dt_comm *c = t->comm[rank];
    struct dt_group g;
    if (!find(k, rank, &g))
        return DT_OK;
    DT_TRY(reduce_scatter(c, &g, k));
    DT_TRY(all_gather(c, &g, k));
    DT_TRY(all_reduce(c, &g, k));
    DT_TRY(broadcasts(c, &g, k));
    return dt_barrier(c, &g, k->key + 4);
}

static void test_everybody(void **state)
{
    (void)state;
    for (int32_t size = 1; size <= TEAM_MOST; size++) {
        team_open(&team, size, PATIENT);
        for (int variant = 0; variant < 4; variant++) {
            struct task k = {.count = size, .key = 100};
            make_parts(&k, variant);
            team_run(&team, everything, &k);
        }
        team_close(&team);
    }
}

/* The check above could not fail if the order did not matter. */
static void test_order_matters(void **state)
{
    (void)state;
    int64_t different = 0;
    for (int64_t i = 0; i < 64; i++) {
        float forward = element(0, i), backward = element(4, i);
        for (int32_t m = 1; m < 5; m++) {
            forward += element(m, i);
            backward += element(4 - m, i);
        }
        different += forward != backward;
    }
    assert_true(different > 5);
}

static void test_groups(void **state)
{
    (void)state;
    static const int32_t members[] = {6, 2, 0, 8, 3};
    team_open(&team, TEAM_MOST, PATIENT);
    for (int32_t count = 1; count <= 5; count++)
        for (int variant = 0; variant < 3; variant++) {
            struct task k = {.members = members, .count = count, .key = 7};
            make_parts(&k, variant);
            team_run(&team, everything, &k);
        }
    team_close(&team);
}

/* ---- At the same time ---- */

struct other {
    struct dt_comm *comm;
    struct task task;
    struct dt_group group;
    int rc;
};

static void *other_thread(void *arg)
{
    struct other *o = arg;
    for (int i = 0; i < 20 && o->rc >= 0; i++)
        o->rc = reduce_scatter(o->comm, &o->group, &o->task);
    return NULL;
}

/* Two collectives with different keys, in two threads of every worker. */
static int two_at_once(struct team *t, int32_t rank)
{
    const struct task *k = t->arg;
    struct other o = {.comm = t->comm[rank], .task = *k};
    pthread_t thread;
    o.task.key = 5000;
    find(k, rank, &o.group);
    if (pthread_create(&thread, NULL, other_thread, &o) != 0)
        return DT_E_IO;
    int rc = DT_OK;
    for (int i = 0; i < 20 && rc >= 0; i++)
        rc = reduce_scatter(t->comm[rank], &o.group, k);
    pthread_join(thread, NULL);
    return rc < 0 ? rc : o.rc;
}

static void test_two_at_once(void **state)
{
    (void)state;
    struct task k = {.count = 4, .key = 1};
    make_parts(&k, 2);
    team_open(&team, 4, PATIENT);
    team_run(&team, two_at_once, &k);
    team_close(&team);
}

static _Atomic int entered;

static int barriers(struct team *t, int32_t rank)
{
    struct dt_group g = {.count = t->size, .me = rank};
    for (int i = 1; i <= 50; i++) {
        if (rank == i % t->size)
            usleep(500);
        atomic_fetch_add(&entered, 1);
        DT_TRY(dt_barrier(t->comm[rank], &g, 3));
        if (atomic_load(&entered) < i * t->size)
            return DT_FAIL(DT_E_INTERNAL, "barrier %d was left before all had come", i);
    }
    return DT_OK;
}

static void test_barrier(void **state)
{
    (void)state;
    for (int32_t size = 2; size <= TEAM_MOST; size += 3) {
        entered = 0;
        team_open(&team, size, PATIENT);
        team_run(&team, barriers, NULL);
        team_close(&team);
    }
}

/* ---- Longer than one message ---- */

static int long_parts(struct team *t, int32_t rank)
{
    static const int64_t part[] = {(int64_t)(DT_COMM_MESSAGE / sizeof(float)) + 1001, 3};
    struct task k = {.count = 2, .key = 11, .total = part[0] + part[1]};
    struct dt_group g;
    memcpy(k.part, part, sizeof part);
    k.at[1] = part[0];
    find(&k, rank, &g);
    DT_TRY(reduce_scatter(t->comm[rank], &g, &k));
    return all_gather(t->comm[rank], &g, &k);
}

static int long_broadcast(struct team *t, int32_t rank)
{
    struct dt_group g = {.count = t->size, .me = rank};
    size_t bytes = DT_COMM_MESSAGE + 77, wrong = 0;
    unsigned char *data = calloc(bytes, 1);
    if (!data)
        return DT_E_MEMORY;
    for (size_t i = 0; rank == 1 && i < bytes; i++)
        data[i] = (unsigned char)(i % 251);
    int rc = dt_broadcast(t->comm[rank], &g, 12, 1, data, bytes);
    for (size_t i = 0; i < bytes; i++)
        wrong += data[i] != i % 251;
    free(data);
    return rc < 0 || !wrong ? rc : DT_FAIL(DT_E_INTERNAL, "%zu bytes are wrong", wrong);
}

static void test_long(void **state)
{
    (void)state;
    team_open(&team, 2, PATIENT);
    team_run(&team, long_parts, NULL);
    team_run(&team, long_broadcast, NULL);
    team_close(&team);
}

static void test_nonsense(void **state)
{
    (void)state;
    static const int32_t members[] = {1, 0};
    team_open(&team, 2, PATIENT);
    struct dt_comm *c = team.comm[0];
    const struct dt_group good = {.count = 2, .me = 0};
    const struct dt_group bad[] = {{.count = 3, .me = 0},
                                   {.count = 2, .me = 2},
                                   {.count = 1, .me = 0},
                                   {.count = 0, .me = 0},
                                   {.count = 2, .me = 0, .members = members}};
    int64_t at[2] = {0}, part[2] = {0, -1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(dt_barrier(c, &bad[i], 1), DT_E_INTERNAL, "member");
    assert_fails(dt_barrier(c, &good, 1 << 24), DT_E_INTERNAL, "key is 0x1000000");
    assert_fails(dt_all_gather(c, &good, 1, NULL, at, part), DT_E_INTERNAL, "part 1 has -1");
    assert_fails(dt_broadcast(c, &good, 1, 2, NULL, 0), DT_E_INTERNAL, "broadcast from member 2");
    team_close(&team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody), cmocka_unit_test(test_order_matters),
        cmocka_unit_test(test_groups),    cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_barrier),   cmocka_unit_test(test_long),
        cmocka_unit_test(test_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
