/* Point-to-point messages and the ends of an epoch, over the in-process transport: what comm.h
 * promises, from matching to the words of a deadline. Runs under ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "team.h"

#include <stdlib.h>
#include <unistd.h>

#define PATIENT 60.0 /* seconds; no test may come near */

static struct team team;

/* ---- Matching ---- */

enum { KEYS = 50 };

/* Worker 1 posts its receives in the opposite order, before or after the sends, with two kinds
 * under the same keys. */
static int out_of_order(struct team *t, int32_t rank)
{
    const bool *sends_first = t->arg;
    struct dt_comm *c = t->comm[rank];
    struct dt_comm_request r[2][KEYS] = {0};
    int64_t data[2][KEYS];
    if ((rank == 0) != *sends_first)
        usleep(20000);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < KEYS; i++) {
            enum dt_comm_kind kind = k ? DT_COMM_GATHER : DT_COMM_REDUCE;
            int key = rank == 0 ? i : KEYS - 1 - i;
            if (rank == 0) {
                data[k][key] = 1000 * k + key;
                dt_comm_send(c, &r[k][key], 1, kind, (uint64_t)key, &data[k][key], sizeof **data);
            } else {
                dt_comm_recv(c, &r[k][key], 0, kind, (uint64_t)key, &data[k][key], sizeof **data);
            }
        }
    for (int k = 0; k < 2; k++)
        DT_TRY(dt_comm_wait_all(c, r[k], KEYS, "matching"));
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < KEYS; i++)
            if (data[k][i] != 1000 * k + i)
                return DT_FAIL(DT_E_INTERNAL, "kind %d, key %d: %lld came", k, i,
                               (long long)data[k][i]);
    return DT_OK;
}

static void test_out_of_order(void **state)
{
    (void)state;
    for (int sends_first = 0; sends_first < 2; sends_first++) {
        bool first = sends_first;
        struct dt_comm_counts counts;
        team_open(&team, 2, PATIENT);
        team_run(&team, out_of_order, &first);
        dt_comm_counts(team.comm[0], &counts);
        assert_int_equal(counts.messages_sent, 2 * KEYS);
        assert_int_equal(counts.bytes_sent, 2 * KEYS * 8);
        assert_int_equal(counts.messages_received, 0);
        dt_comm_counts(team.comm[1], &counts);
        assert_int_equal(counts.messages_received, 2 * KEYS);
        assert_int_equal(counts.bytes_received, 2 * KEYS * 8);
        team_close(&team);
    }
}

static void test_self(void **state)
{
    (void)state;
    struct dt_comm_request r[6] = {0};
    struct dt_comm_counts counts;
    char from[] = "one two", to[2][8] = {{0}};
    team_open(&team, 2, PATIENT);
    struct dt_comm *c = team.comm[1];
    dt_comm_send(c, &r[0], 1, DT_COMM_MOVE, 1, from, 3);
    dt_comm_recv(c, &r[1], 1, DT_COMM_MOVE, 2, to[1], 3);
    dt_comm_recv(c, &r[2], 1, DT_COMM_MOVE, 1, to[0], 3);
    dt_comm_send(c, &r[3], 1, DT_COMM_MOVE, 2, from + 4, 3);
    dt_comm_recv(c, &r[4], 1, DT_COMM_MOVE, 3, NULL, 0);
    dt_comm_send(c, &r[5], 1, DT_COMM_MOVE, 3, NULL, 0);
    assert_ok(dt_comm_wait_all(c, r, 6, "messages to oneself"));
    assert_string_equal(to[0], "one");
    assert_string_equal(to[1], "two");
    dt_comm_counts(c, &counts);
    assert_int_equal(counts.bytes_sent + counts.bytes_received + counts.messages_sent, 0);
    team_close(&team);
}

/* A send is over only when its receive was posted. */
static void test_rendezvous(void **state)
{
    (void)state;
    struct dt_comm_request send = {0}, recv = {0};
    struct dt_comm_pending oldest;
    char path[32];
    int x = 3, y = 0;
    team_open(&team, 3, PATIENT);
    assert_false(dt_comm_oldest(team.comm[0], &oldest));
    dt_comm_send(team.comm[0], &send, 2, DT_COMM_ACTIVATION, 9, &x, sizeof x);
    usleep(50000);
    assert_int_equal(send.state, DT_COMM_PENDING);
    assert_true(dt_comm_oldest(team.comm[0], &oldest));
    assert_true(oldest.send && oldest.peer == 2 && oldest.key == 9);
    assert_int_equal(oldest.kind, DT_COMM_ACTIVATION);
    assert_true(oldest.seconds > 0.04);
    dt_comm_recv(team.comm[2], &recv, 0, DT_COMM_ACTIVATION, 9, &y, sizeof y);
    assert_ok(dt_comm_wait(team.comm[2], &recv, "receiving"));
    assert_ok(dt_comm_wait(team.comm[0], &send, "sending"));
    assert_int_equal(y, 3);
    assert_false(dt_comm_oldest(team.comm[0], &oldest));
    dt_comm_path(team.comm[0], 2, path, sizeof path);
    assert_string_equal(path, "memory");
    dt_comm_path(team.comm[0], 0, path, sizeof path);
    assert_string_equal(path, "self");
    team_close(&team);
}

/* ---- What makes no sense ---- */

static void test_wrong_size(void **state)
{
    (void)state;
    for (int self = 0; self < 2; self++) {
        struct dt_comm_request send = {0}, recv = {0}, other = {0};
        char from[16] = {0}, to[16] = {0};
        team_open(&team, 2, PATIENT);
        struct dt_comm *sender = team.comm[self];
        dt_comm_recv(team.comm[1], &other, 0, DT_COMM_REDUCE, 6, to + 8, 4);
        dt_comm_recv(team.comm[1], &recv, self, DT_COMM_REDUCE, 5, to, 8);
        dt_comm_send(sender, &send, 1, DT_COMM_REDUCE, 5, from, 16);
        assert_fails(dt_comm_wait(team.comm[1], &recv, "the sum"), DT_E_INTERNAL, "16 bytes came");
        assert_non_null(strstr(dt_error_message(), "the sum: receive of 8 bytes from worker"));
        /* With it the epoch is over, and everything that waited. */
        assert_fails(dt_comm_wait(team.comm[1], &other, "x"), DT_E_INTERNAL, "16 bytes came");
        dt_comm_wait(sender, &send, "sending"); /* over, either way */
        assert_int_not_equal(send.state, DT_COMM_PENDING);
        team_close(&team);
    }
}

static void test_nonsense(void **state)
{
    (void)state;
    static const struct {
        int32_t peer;
        uint64_t key;
        size_t bytes;
    } bad[] = {{2, 0, 1},
               {-1, 0, 1},
               {0, (uint64_t)1 << DT_COMM_KEY_BITS, 1},
               {0, 0, DT_COMM_MESSAGE + 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dt_comm_request r = {0};
        char data = 0;
        team_open(&team, 2, PATIENT);
        dt_comm_recv(team.comm[1], &r, bad[i].peer, DT_COMM_MOVE, bad[i].key, &data, bad[i].bytes);
        assert_fails(dt_comm_wait(team.comm[1], &r, "x"), DT_E_INTERNAL, "no such message");
        team_close(&team);
    }
}

/* ---- Ends ---- */

struct waiting {
    pthread_t thread;
    struct dt_comm *comm;
    struct dt_comm_request request;
    _Atomic int64_t *flag; /* wait for it instead */
    int rc;
    char words[256];
    char data[64];
};

static void *wait_in_thread(void *arg)
{
    struct waiting *w = arg;
    w->rc = w->flag ? dt_comm_wait_flag(w->comm, w->flag, 0, "the flag")
                    : dt_comm_wait(w->comm, &w->request, "the weights");
    snprintf(w->words, sizeof w->words, "%.250s", w->rc < 0 ? dt_error_message() : "");
    return NULL;
}

/* Five waits on worker 1 for what never comes, one of them for a flag. */
static void begin_waits(struct waiting w[5], _Atomic int64_t *flag)
{
    for (int i = 0; i < 5; i++) {
        w[i] = (struct waiting){.comm = team.comm[1], .flag = i == 4 ? flag : NULL};
        if (i < 2)
            dt_comm_recv(w[i].comm, &w[i].request, 0, DT_COMM_GATHER, (uint64_t)i, w[i].data, 64);
        else if (i < 4)
            dt_comm_send(w[i].comm, &w[i].request, 2, DT_COMM_GATHER, (uint64_t)i, w[i].data, 64);
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_in_thread, &w[i]), 0);
    }
    usleep(50000);
}

static void test_abort(void **state)
{
    (void)state;
    struct waiting w[5];
    struct dt_comm_request late = {0};
    _Atomic int64_t flag = 0;
    team_open(&team, 3, PATIENT);
    begin_waits(w, &flag);
    double begun = dt_clock_seconds();
    dt_comm_abort(team.comm[1], "worker 0 was killed by signal 9");
    for (int i = 0; i < 5; i++)
        pthread_join(w[i].thread, NULL);
    assert_true(dt_clock_seconds() - begun < 1); /* a few wake-ups; a second is a busy machine's */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(w[i].rc, DT_E_EPOCH);
        assert_non_null(strstr(w[i].words, "worker 0 was killed by signal 9"));
        assert_true(i == 4 || w[i].request.state == DT_E_EPOCH);
    }
    dt_comm_abort(team.comm[1], "a later reason");
    dt_comm_recv(team.comm[1], &late, 0, DT_COMM_GATHER, 7, w[0].data, 64);
    assert_fails(dt_comm_wait(team.comm[1], &late, "later"), DT_E_EPOCH, "signal 9");
    assert_fails(dt_barrier(team.comm[1], &(struct dt_group){.count = 3, .me = 1}, 1), DT_E_EPOCH,
                 "signal 9");
    team_close(&team);
}

static void test_deadline(void **state)
{
    (void)state;
    struct dt_comm_request r[2] = {0};
    char data[64] = {0};
    team_open(&team, 4, 0.2);
    double begun = dt_clock_seconds();
    dt_comm_recv(team.comm[0], &r[0], 3, DT_COMM_REDUCE, 17, data, 32);
    dt_comm_recv(team.comm[0], &r[1], 2, DT_COMM_REDUCE, 17, data + 32, 32);
    assert_fails(dt_comm_wait(team.comm[0], &r[1], "gradients of layer 3"), DT_E_TIMEOUT,
                 "gradients of layer 3: receive of 32 bytes from worker 2 (gradients, key 0x11)");
    double seconds = dt_clock_seconds() - begun;
    assert_true(seconds > 0.19 && seconds < 2);
    assert_int_equal(r[0].state, DT_E_TIMEOUT); /* ended with it: its memory is free */
    assert_fails(dt_comm_wait(team.comm[0], &r[0], "x"), DT_E_TIMEOUT, "worker 2");
    team_close(&team);
}

static void test_flag_deadline(void **state)
{
    (void)state;
    _Atomic int64_t flag = 0;
    struct dt_comm_request r = {0};
    char data = 0;
    team_open(&team, 2, 0.1);
    dt_comm_send(team.comm[0], &r, 1, DT_COMM_MOVE, 1, &data, 1);
    assert_fails(dt_comm_wait_flag(team.comm[0], &flag, 0, "the move"), DT_E_TIMEOUT,
                 "the move: send of 1 bytes to worker 1");
    team_close(&team);
}

static void test_peer_leaves(void **state)
{
    (void)state;
    struct dt_comm_request r = {0};
    char data[8] = {0};
    team_open(&team, 2, PATIENT);
    dt_comm_send(team.comm[0], &r, 1, DT_COMM_MOVE, 1, data, 8);
    usleep(20000);
    dt_comm_close(team.comm[1]);
    team.comm[1] = NULL;
    assert_fails(dt_comm_wait(team.comm[0], &r, "state"), DT_E_PEER, "worker 1 is lost");
    team_close(&team);
}

/* Closed with everything pending: every request ends before dt_comm_close returns. */
static void finished_count(struct dt_comm_request *r, void *arg)
{
    (void)r;
    atomic_fetch_add((_Atomic int64_t *)arg, 1);
}

static void test_close_pending(void **state)
{
    (void)state;
    struct dt_comm_request r[20] = {0};
    _Atomic int64_t finished = 0;
    char data[20];
    team_open(&team, 2, PATIENT);
    for (int i = 0; i < 20; i++) {
        r[i].finished = finished_count;
        r[i].arg = &finished;
        dt_comm_recv(team.comm[0], &r[i], i % 2, DT_COMM_MOVE, (uint64_t)i, &data[i], 1);
    }
    team_close(&team);
    assert_int_equal(finished, 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(r[i].state, DT_E_EPOCH);
}

/* ---- Posting from `finished` ---- */

enum { HOPS = 500 };

/* A number that two workers send to and fro, each adding one, without a thread of theirs awake. */
struct hop {
    struct dt_comm_request send, recv;
    int64_t number;
    _Atomic int64_t done;
};

static void sent(struct dt_comm_request *r, void *arg)
{
    struct hop *h = arg;
    if (atomic_load(&r->state) == DT_OK && h->number < HOPS)
        dt_comm_recv(r->comm, &h->recv, 1 - dt_comm_rank(r->comm), DT_COMM_TEST, 1, &h->number,
                     sizeof h->number);
    else
        atomic_store(&h->done, 1);
}

static void received(struct dt_comm_request *r, void *arg)
{
    struct hop *h = arg;
    if (atomic_load(&r->state) < 0 || h->number >= HOPS) {
        atomic_store(&h->done, 1);
        return;
    }
    h->number++;
    dt_comm_send(r->comm, &h->send, 1 - dt_comm_rank(r->comm), DT_COMM_TEST, 1, &h->number,
                 sizeof h->number);
}

static int hop(struct team *t, int32_t rank)
{
    struct hop h = {.send = {.finished = sent}, .recv = {.finished = received}};
    h.send.arg = h.recv.arg = &h;
    if (rank == 0)
        dt_comm_send(t->comm[0], &h.send, 1, DT_COMM_TEST, 1, &h.number, sizeof h.number);
    else
        dt_comm_recv(t->comm[1], &h.recv, 0, DT_COMM_TEST, 1, &h.number, sizeof h.number);
    DT_TRY(dt_comm_wait_flag(t->comm[rank], &h.done, 0, "hops"));
    return h.number == HOPS ? DT_OK : DT_FAIL(DT_E_INTERNAL, "it ended early");
}

static void test_finished_posts(void **state)
{
    (void)state;
    team_open(&team, 2, PATIENT);
    team_run(&team, hop, NULL);
    team_close(&team);
}

/* ---- Everything at once ---- */

enum { WORKERS = 8, MESSAGES = 400, ROUNDS = 12, LONGEST = 3000 };

/* Message i of a round: the same for everybody, from the seed alone. */
struct message {
    int32_t from, to;
    enum dt_comm_kind kind;
    size_t bytes;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static struct message message_of(int round, int i)
{
    uint64_t h = mix((uint64_t)round << 32 | (uint64_t)(i + 1));
    return (struct message){.from = (int32_t)(h % WORKERS),
                            .to = (int32_t)(h / WORKERS % WORKERS),
                            .kind = (enum dt_comm_kind)(h >> 20 & 3),
                            .bytes = h >> 24 & 7 ? (h >> 32) % LONGEST : 0};
}

static unsigned char byte_of(int round, int i, size_t at)
{
    return (unsigned char)((size_t)round * 31 + (size_t)i * 7 + at);
}

struct letter {
    int message;
    bool send;
    struct dt_comm_request request;
    unsigned char data[LONGEST];
};

static int write_letters(struct letter *letters, int round, int32_t rank)
{
    int n = 0;
    for (int i = 0; i < MESSAGES; i++)
        for (int send = 0; send < 2; send++) {
            struct message m = message_of(round, i);
            if ((send ? m.from : m.to) != rank)
                continue;
            struct letter *l = &letters[n++];
            memset(&l->request, 0, sizeof l->request);
            l->message = i;
            l->send = send;
            for (size_t k = 0; k < m.bytes; k++)
                l->data[k] = send ? byte_of(round, i, k) : 0;
        }
    return n;
}

static void shuffle(int *order, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        int j = (int)(mix(seed + (uint64_t)i) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

static int one_round(struct dt_comm *c, struct letter *letters, int round)
{
    int32_t rank = dt_comm_rank(c);
    int order[2 * MESSAGES], n = write_letters(letters, round, rank);
    shuffle(order, n, (uint64_t)(round * WORKERS + rank));
    for (int k = 0; k < n; k++) {
        struct letter *l = &letters[order[k]];
        struct message m = message_of(round, l->message);
        if (l->send)
            dt_comm_send(c, &l->request, m.to, m.kind, (uint64_t)l->message, l->data, m.bytes);
        else
            dt_comm_recv(c, &l->request, m.from, m.kind, (uint64_t)l->message, l->data, m.bytes);
    }
    shuffle(order, n, (uint64_t)(round * WORKERS + rank) + 1000);
    for (int k = 0; k < n; k++)
        DT_TRY(dt_comm_wait(c, &letters[order[k]].request, "a letter"));
    for (int k = 0; k < n; k++)
        for (size_t b = 0; b < message_of(round, letters[k].message).bytes; b++)
            if (letters[k].data[b] != byte_of(round, letters[k].message, b))
                return DT_FAIL(DT_E_INTERNAL, "round %d, message %d: byte %zu is wrong", round,
                               letters[k].message, b);
    return DT_OK;
}

static int stress(struct team *t, int32_t rank)
{
    struct letter *letters = calloc(2 * MESSAGES, sizeof *letters);
    int rc = letters ? DT_OK : DT_E_MEMORY;
    for (int round = 0; round < ROUNDS && rc >= 0; round++)
        rc = one_round(t->comm[rank], letters, round);
    free(letters);
    return rc;
}

static void test_stress(void **state)
{
    (void)state;
    team_open(&team, WORKERS, PATIENT);
    team_run(&team, stress, NULL);
    team_close(&team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_of_order),   cmocka_unit_test(test_self),
        cmocka_unit_test(test_rendezvous),     cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_nonsense),       cmocka_unit_test(test_abort),
        cmocka_unit_test(test_deadline),       cmocka_unit_test(test_flag_deadline),
        cmocka_unit_test(test_peer_leaves),    cmocka_unit_test(test_close_pending),
        cmocka_unit_test(test_finished_posts), cmocka_unit_test(test_stress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
