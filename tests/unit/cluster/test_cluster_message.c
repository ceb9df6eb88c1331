/* Control messages as bytes: every message there and back, with the values at the ends of their
 * types; every frame cut at every byte; what a decoder must refuse; votes added up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster/message.h"
#include "wire_test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define MOST (1 << 20)
static unsigned char first[MOST], second[MOST];

static struct dt_frame frame_of(const unsigned char *bytes, int64_t n)
{
    assert_true(n >= DT_MESSAGE_HEADER);
    return (struct dt_frame){.type = bytes[5],
                             .rank =
                                 (int32_t)((uint32_t)bytes[8] | (uint32_t)bytes[9] << 8 |
                                           (uint32_t)bytes[10] << 16 | (uint32_t)bytes[11] << 24),
                             .payload = bytes + DT_MESSAGE_HEADER,
                             .bytes = (size_t)n - DT_MESSAGE_HEADER};
}

/* Unpack and pack again: bytes in `out`, or the code of the failed unpacking. */
#define AGAIN(name)                                                                                \
    static int64_t again_##name(const struct dt_frame *f, unsigned char *out, size_t size)         \
    {                                                                                              \
        static struct dt_msg_##name m;                                                             \
        memset(&m, 0x5a, sizeof m);                                                                \
        int rc = dt_unpack_##name(f, &m);                                                          \
        return rc < 0 ? rc : dt_pack_##name(out, size, f->rank, &m);                               \
    }
AGAIN(hello)
AGAIN(spawn)
AGAIN(started)
AGAIN(died)
AGAIN(address)
AGAIN(table)
AGAIN(vote)
AGAIN(decide)
AGAIN(evaluated)
AGAIN(save)
AGAIN(saved)
AGAIN(pulse)

static int64_t again_failed(const struct dt_frame *f, unsigned char *out, size_t size)
{
    static struct dt_msg_failed m;
    int rc = dt_unpack_failed(f, &m);
    return rc < 0 ? rc : dt_pack_failed(out, size, f->type, f->rank, &m);
}

/* ---- Messages with extreme values; `variant` 0 and 1: the lowest and the highest. ---- */

static void fill_text(char *text, size_t size, int variant)
{
    memset(text, 0, size);
    if (variant)
        memset(text, 'x', size - 1);
}

static double odd_double(int variant)
{
    static const uint64_t quiet = 0x7ff80000deadbeef; /* a NaN whose bits must survive */
    double nan_bits;
    memcpy(&nan_bits, &quiet, sizeof nan_bits);
    return variant ? nan_bits : -INFINITY;
}

static int64_t integer(int variant)
{
    return variant ? INT64_MAX : INT64_MIN;
}

static void make_hello(struct dt_msg_hello *m, int v)
{
    fill_text(m->version, sizeof m->version, v);
    fill_text(m->job, sizeof m->job, v);
    fill_text(m->host, sizeof m->host, v);
    fill_text(m->address, sizeof m->address, v);
    m->pid = m->cores = m->memory = integer(v);
    m->node = v ? INT32_MAX : INT32_MIN;
    m->workers = v ? DT_MSG_WORKERS : 0;
}

static void make_spawn(struct dt_msg_spawn *m, int v)
{
    m->epoch = integer(v);
    m->first = v ? DT_MSG_WORKERS - 1 : 0;
    m->count = v;
    m->threads = v ? INT32_MAX : INT32_MIN;
    m->timeout = odd_double(v);
    m->local = v;
    fill_text(m->output, sizeof m->output, v);
    fill_text(m->cookie, sizeof m->cookie, v);
}

static void make_started(struct dt_msg_started *m, int v)
{
    m->pid = integer(v);
}

static void make_died(struct dt_msg_died *m, int v)
{
    m->pid = integer(v);
    m->exit_code = v ? INT32_MAX : INT32_MIN;
    m->signal = v ? INT32_MIN : INT32_MAX;
    fill_text(m->words, sizeof m->words, v);
}

static unsigned char blob[70000];

static void make_address(struct dt_msg_address *m, int v)
{
    m->epoch = integer(v);
    m->data = blob;
    m->bytes = v ? sizeof blob : 0;
}

static void make_table(struct dt_msg_table *m, int v)
{
    m->epoch = integer(v);
    m->size = v ? DT_MSG_WORKERS : 1;
    for (int32_t i = 0; i < m->size; i++) {
        m->data[i] = blob + i;
        m->bytes[i] = v ? (size_t)i % 7 : 0;
    }
}

static void make_space(struct dt_space_vote *s, int v, uint64_t i)
{
    s->norm = (struct dt_u128){.lo = UINT64_MAX - i, .hi = v ? UINT64_MAX : i};
    s->scale_log2 = v ? INT32_MAX : INT32_MIN;
    s->finite = v;
    s->overflow = !v;
    s->loss = (struct dt_u128){.lo = i, .hi = v ? UINT64_MAX : 0};
    s->loss_tokens = v ? INT64_MAX : 0;
}

static void make_vote(struct dt_msg_vote *m, int v)
{
    struct dt_vote *x = &m->vote;
    x->epoch = x->step = x->attempt = x->data_epoch = integer(v);
    x->sequences = integer(!v);
    x->tokens = integer(v);
    x->plan = v ? UINT64_MAX : 0;
    x->dispatch = v ? 1 : UINT64_MAX;
    x->kernels = v ? 0x0123456789abcdef : 0;
    x->flops = odd_double(v);
    x->spaces = v ? DT_MSG_SPACES : 0;
    x->space = m->space;
    for (int64_t i = 0; i < x->spaces; i++)
        make_space(&m->space[i], v, (uint64_t)i);
    m->workers = v ? DT_MSG_WORKERS : 1;
}

static void make_decide(struct dt_msg_decide *m, int v)
{
    m->epoch = m->decision.step = integer(v);
    m->decision.attempt = integer(!v);
    m->decision.stop = v;
    m->decision.spaces = v ? DT_MSG_SPACES : 0;
    m->decision.space = m->space;
    for (int64_t i = 0; i < m->decision.spaces; i++) {
        struct dt_space_decision *s = &m->space[i];
        s->action = (enum dt_action)(i % 3);
        s->norm = odd_double((int)i & 1);
        s->loss = DBL_TRUE_MIN;
        s->denominator = integer((int)i & 1);
        s->adamw = (struct dt_adamw){FLT_MAX, -FLT_MAX, -0.0f, INFINITY, FLT_TRUE_MIN, 1, 2, 3};
    }
}

static void make_evaluated(struct dt_msg_evaluated *m, int v)
{
    m->step = m->tokens = m->bytes = integer(v);
    m->sequences = integer(!v);
    m->loss = (struct dt_u128){.lo = v ? UINT64_MAX : 1, .hi = v ? 2 : UINT64_MAX};
    m->finite = m->stop = v;
    m->complete = !v;
    m->workers = v ? DT_MSG_WORKERS : 0;
}

static void make_save(struct dt_msg_save *m, int v)
{
    m->step = integer(v);
    m->go = v;
    fill_text(m->directory, sizeof m->directory, v);
    fill_text(m->words, sizeof m->words, v);
}

static void make_saved(struct dt_msg_saved *m, int v)
{
    m->step = integer(v);
    m->code = v ? DT_OK : DT_E_EPOCH;
    m->stop = v;
    fill_text(m->words, sizeof m->words, v);
    m->count = v ? 2000 : 0;
    m->ranges = blob;
}

static void make_pulse(struct dt_msg_pulse *m, int v)
{
    m->step = m->progress = m->resident = integer(v);
    m->phase = v ? DT_PHASE_END : DT_PHASE_START;
    m->waits_for = v ? DT_MSG_WORKERS - 1 : -1;
    m->waiting = odd_double(v);
}

static void make_failed(struct dt_msg_failed *m, int v)
{
    m->code = v ? DT_E_PEER : DT_OK;
    m->peer = v ? DT_MSG_WORKERS - 1 : -1;
    fill_text(m->words, sizeof m->words, v);
}

/* Every message, in both variants, is handed to `use` as a frame in `first`. */
typedef void use_frame(const char *name, int64_t n,
                       int64_t (*again)(const struct dt_frame *, unsigned char *, size_t));

#define EACH(name)                                                                                 \
    do {                                                                                           \
        static struct dt_msg_##name m;                                                             \
        memset(&m, 0, sizeof m);                                                                   \
        make_##name(&m, v);                                                                        \
        use(#name, dt_pack_##name(first, MOST, v ? DT_MSG_WORKERS - 1 : DT_EVERYBODY, &m),         \
            again_##name);                                                                         \
    } while (0)

static void for_each_message(use_frame *use)
{
    for (size_t i = 0; i < sizeof blob; i++)
        blob[i] = (unsigned char)(i * 37);
    for (int v = 0; v < 2; v++) {
        EACH(hello);
        EACH(spawn);
        EACH(started);
        EACH(died);
        EACH(address);
        EACH(table);
        EACH(vote);
        EACH(decide);
        EACH(evaluated);
        EACH(save);
        EACH(saved);
        EACH(pulse);
        struct dt_msg_failed f = {0};
        make_failed(&f, v);
        use("failed", dt_pack_failed(first, MOST, v ? DT_MSG_BROKEN : DT_MSG_END, 0, &f),
            again_failed);
    }
}

static void same_bytes(const char *name, int64_t n,
                       int64_t (*again)(const struct dt_frame *, unsigned char *, size_t))
{
    struct dt_frame f = frame_of(first, n);
    assert_int_equal(dt_pack_text(second, MOST, f.type, f.rank, (const char *)f.payload, f.bytes),
                     n);
    assert_memory_equal(first, second, (size_t)n); /* passed on as it is */
    int64_t m = again(&f, second, MOST);
    if (m != n)
        fail_msg("%s: %lld bytes, then %lld: %s", name, (long long)n, (long long)m,
                 dt_error_message());
    assert_memory_equal(first, second, (size_t)n);
}

static void there_and_back(void **state)
{
    (void)state;
    for_each_message(same_bytes);
}

/* Equal bytes do not show a field that is packed nowhere: the messages themselves. */
#define SAME(name)                                                                                 \
    do {                                                                                           \
        static struct dt_msg_##name a, b;                                                          \
        memset(&a, 0, sizeof a);                                                                   \
        make_##name(&a, v);                                                                        \
        struct dt_frame f = frame_of(first, dt_pack_##name(first, MOST, 0, &a));                   \
        memset(&b, 0xff, sizeof b);                                                                \
        assert_ok(dt_unpack_##name(&f, &b));                                                       \
        assert_memory_equal(&a, &b, sizeof a);                                                     \
    } while (0)

static void nothing_is_lost(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        SAME(hello);
        SAME(spawn);
        SAME(started);
        SAME(died);
        SAME(evaluated);
        SAME(save);
        SAME(pulse);
        struct dt_msg_failed a = {0}, b;
        make_failed(&a, v);
        struct dt_frame f = frame_of(first, dt_pack_failed(first, MOST, DT_MSG_FAILED, 0, &a));
        assert_ok(dt_unpack_failed(&f, &b));
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void arrays_come_back(void **state)
{
    (void)state;
    static struct dt_msg_vote va, vb;
    make_vote(&va, 1);
    struct dt_frame f = frame_of(first, dt_pack_vote(first, MOST, 5, &va));
    assert_int_equal(f.rank, 5);
    assert_ok(dt_unpack_vote(&f, &vb));
    assert_ptr_equal(vb.vote.space, vb.space);
    vb.vote.space = va.vote.space;
    assert_memory_equal(&va.vote, &vb.vote, sizeof va.vote);
    assert_memory_equal(va.space, vb.space, sizeof va.space);
    assert_int_equal(va.workers, vb.workers);

    static struct dt_msg_decide da, db;
    make_decide(&da, 1);
    f = frame_of(first, dt_pack_decide(first, MOST, 0, &da));
    assert_ok(dt_unpack_decide(&f, &db));
    assert_ptr_equal(db.decision.space, db.space);
    assert_memory_equal(da.space, db.space, sizeof da.space);
    assert_true(db.decision.stop && db.epoch == da.epoch && db.decision.step == da.epoch);

    static struct dt_msg_table ta, tb;
    make_table(&ta, 1);
    f = frame_of(first, dt_pack_table(first, MOST, 0, &ta));
    assert_ok(dt_unpack_table(&f, &tb));
    assert_int_equal(tb.size, DT_MSG_WORKERS);
    for (int32_t i = 0; i < tb.size; i++) {
        assert_int_equal(tb.bytes[i], ta.bytes[i]);
        assert_memory_equal(tb.data[i], ta.data[i], ta.bytes[i]);
    }
}

static void ranges_of_a_save(void **state)
{
    (void)state;
    static struct dt_msg_saved a, b;
    unsigned char packed[3 * 28];
    const struct dt_msg_range in[3] = {
        {0, 0, 0, 0}, {UINT32_MAX, UINT64_MAX, UINT64_MAX - 1, 1}, {7, 4096, 8192, 0xfeed}};
    assert_int_equal(dt_msg_ranges_bytes(3), sizeof packed);
    for (uint32_t i = 0; i < 3; i++)
        dt_msg_range_put(packed, i, &in[i]);
    a.count = 3;
    a.ranges = packed;
    struct dt_frame f = frame_of(first, dt_pack_saved(first, MOST, 0, &a));
    assert_ok(dt_unpack_saved(&f, &b));
    assert_int_equal(b.count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        struct dt_msg_range out = {0};
        dt_msg_range_at(b.ranges, i, &out);
        assert_true(out.file == in[i].file && out.offset == in[i].offset &&
                    out.length == in[i].length && out.hash == in[i].hash);
    }
}

/* Payloads live in memory of exactly their size, so that a sanitizer sees a step beyond. */
static void cut_one(const char *name, int64_t n,
                    int64_t (*again)(const struct dt_frame *, unsigned char *, size_t))
{
    struct dt_frame whole = frame_of(first, n);
    size_t step = whole.bytes > 20000 ? 97 : 1; /* a prime: all phases of the fields are met */
    for (size_t cut = 0; cut < whole.bytes; cut += step) {
        unsigned char *payload = malloc(cut + 1);
        assert_non_null(payload);
        memcpy(payload + 1, whole.payload, cut);
        struct dt_frame f = {whole.type, whole.rank, payload + 1, cut};
        int64_t rc = again(&f, second, MOST);
        free(payload);
        if (rc != DT_E_DATA)
            fail_msg("%s cut at %zu of %zu: %lld", name, cut, whole.bytes, (long long)rc);
    }
    memcpy(second, first, (size_t)n);
    second[n] = 0;
    struct dt_frame longer = {whole.type, whole.rank, second + DT_MESSAGE_HEADER, whole.bytes + 1};
    assert_fails(again(&longer, first, MOST), DT_E_DATA, "expected");
}

static void every_cut_is_an_error(void **state)
{
    (void)state;
    for_each_message(cut_one);
}

/* Whatever a decoder accepts has one form only: packed again, it is the same. */
static void damage_one(const char *name, int64_t n,
                       int64_t (*again)(const struct dt_frame *, unsigned char *, size_t))
{
    struct dt_frame f = frame_of(first, n);
    size_t most = f.bytes < 3000 ? f.bytes : 3000;
    for (size_t i = 0; i < most; i++) {
        unsigned char *at = first + DT_MESSAGE_HEADER + i, was = *at;
        static const unsigned char with[] = {0, 1, 2, 0x7f, 0x80, 0xff};
        for (size_t k = 0; k < sizeof with; k++) {
            *at = with[k];
            int64_t m = again(&f, second, MOST);
            if (m != DT_E_DATA && (m != n || memcmp(first, second, (size_t)n) != 0))
                fail_msg("%s, byte %zu = %d: %lld", name, i, with[k], (long long)m);
        }
        *at = was;
    }
}

static void damaged_frames(void **state)
{
    (void)state;
    for_each_message(damage_one);
}

static void too_small_one(const char *name, int64_t n,
                          int64_t (*again)(const struct dt_frame *, unsigned char *, size_t))
{
    struct dt_frame f = frame_of(first, n);
    size_t step = n > 20000 ? 4099 : 13;
    for (size_t size = 0; size < (size_t)n; size += step) {
        unsigned char *small = malloc(size + 1);
        assert_non_null(small);
        int64_t rc = again(&f, small + 1, size);
        free(small);
        if (rc != DT_E_INTERNAL)
            fail_msg("%s into %zu bytes: %lld", name, size, (long long)rc);
    }
}

static void buffers_that_are_too_small(void **state)
{
    (void)state;
    for_each_message(too_small_one);
}

static void the_bytes_are_these(void **state)
{
    (void)state;
    static const unsigned char expected[] = {20,   0,    0,    0,    1,    DT_MSG_FAILED,
                                             0,    0,    0x34, 0x02, 0,    0,
                                             0,    0,    0,    0, /* payload */
                                             0xef, 0xff, 0xff, 0xff, 0x09, 0,
                                             0,    0,    8,    0,    0,    0,
                                             'n',  'o',  't',  ' ',  'w',  'e',
                                             'l',  'l'};
    struct dt_msg_failed m = {.code = DT_E_PEER, .peer = 9, .words = "not well"};
    assert_int_equal(dt_pack_failed(first, MOST, DT_MSG_FAILED, 0x234, &m), sizeof expected);
    assert_memory_equal(first, expected, sizeof expected);
}

/* ---- Values that must be refused ---- */

static void put(size_t payload_offset, unsigned char value)
{
    first[DT_MESSAGE_HEADER + payload_offset] = value;
}

static void values_out_of_range(void **state)
{
    (void)state;
    struct dt_msg_pulse pulse = {.waits_for = -1};
    struct dt_frame f = frame_of(first, dt_pack_pulse(first, MOST, 0, &pulse));
    put(24, DT_PHASE_END + 1);
    assert_fails(dt_unpack_pulse(&f, &pulse), DT_E_DATA, "phase: it is out of range");

    struct dt_msg_failed failed = {.code = DT_E_DATA};
    f = frame_of(first, dt_pack_failed(first, MOST, DT_MSG_END, 0, &failed));
    put(0, 1);
    assert_fails(dt_unpack_failed(&f, &failed), DT_E_DATA, "code: it is no known error");

    static struct dt_msg_decide decide;
    decide.decision.space = decide.space;
    decide.decision.spaces = 1;
    f = frame_of(first, dt_pack_decide(first, MOST, 0, &decide));
    put(33, DT_REDO + 1);
    assert_fails(dt_unpack_decide(&f, &decide), DT_E_DATA, "action: it is out of range");
    put(33, DT_REDO);
    put(25, DT_MSG_SPACES + 1);
    assert_fails(dt_unpack_decide(&f, &decide), DT_E_DATA, "spaces: it is out of range");

    static struct dt_msg_table table;
    make_table(&table, 1);
    f = frame_of(first, dt_pack_table(first, MOST, 0, &table));
    put(8, 1); /* 4097 */
    assert_fails(dt_unpack_table(&f, &table), DT_E_DATA, "size: it is out of range");

    struct dt_msg_hello hello = {.version = "0.1"};
    fill_text(hello.job, sizeof hello.job, 1);
    f = frame_of(first, dt_pack_hello(first, MOST, DT_EVERYBODY, &hello));
    put(5, 0);
    assert_fails(dt_unpack_hello(&f, &hello), DT_E_DATA, "version: there is a zero byte in it");
    put(0, 64);
    assert_fails(dt_unpack_hello(&f, &hello), DT_E_DATA, "version: it is too long");
}

static void packers_refuse_too(void **state)
{
    (void)state;
    static struct dt_msg_vote vote;
    make_vote(&vote, 0);
    vote.workers = 0;
    assert_fails(dt_pack_vote(first, MOST, 0, &vote), DT_E_INTERNAL, "VOTE frame, workers");
    vote.workers = 1;
    assert_fails(dt_pack_vote(first, MOST, DT_MSG_WORKERS, &vote), DT_E_INTERNAL, "rank");
    assert_fails(dt_pack_vote(first, MOST, -2, &vote), DT_E_INTERNAL, "rank");
    vote.vote.spaces = DT_MSG_SPACES + 1;
    assert_fails(dt_pack_vote(first, MOST, 0, &vote), DT_E_INTERNAL, "spaces");
    struct dt_msg_died died;
    memset(&died, 'x', sizeof died); /* a text without an end */
    assert_fails(dt_pack_died(first, MOST, 0, &died), DT_E_INTERNAL, "words: it is too long");
    struct dt_msg_failed failed = {0};
    assert_fails(dt_pack_failed(first, MOST, DT_MSG_VOTE, 0, &failed), DT_E_INTERNAL, "type");
    struct dt_msg_address address = {.data = blob, .bytes = DT_MESSAGE_MOST + 1};
    assert_fails(dt_pack_address(first, MOST, 0, &address), DT_E_INTERNAL, "too long");
}

static void texts(void **state)
{
    (void)state;
    int64_t n = dt_pack_text(first, MOST, DT_MSG_LOG, 3, "two\nlines\n", 10);
    struct dt_frame f = frame_of(first, n);
    assert_int_equal(f.type, DT_MSG_LOG);
    assert_int_equal(f.bytes, 10);
    assert_memory_equal(f.payload, "two\nlines\n", 10);
    assert_int_equal(dt_pack_text(first, MOST, DT_MSG_GO, 3, NULL, 0), DT_MESSAGE_HEADER);
    assert_fails(dt_pack_text(first, MOST, DT_MSG_KILL, 3, "x", 1), DT_E_INTERNAL, "KILL");
    assert_fails(dt_pack_text(first, MOST, DT_MSG_NONE, 3, "x", 1), DT_E_INTERNAL, "no such type");
    assert_fails(dt_pack_text(first, MOST, DT_MSG_TYPES, 3, "x", 1), DT_E_INTERNAL, "no such type");
    assert_fails(dt_pack_text(first, 20, DT_MSG_LOG, 3, "12345", 5), DT_E_INTERNAL, "full");
    struct dt_msg_started started;
    assert_fails(dt_unpack_started(&f, &started), DT_E_DATA, "expected a frame of type STARTED");
    assert_string_equal(dt_message_name(DT_MSG_HELLO), "HELLO");
    assert_string_equal(dt_message_name(DT_MSG_RESULT), "RESULT");
    assert_string_equal(dt_message_name(DT_MSG_TYPES), "?");
    assert_string_equal(dt_message_name(-1), "?");
}

/* ---- Votes added up ---- */

static void one_vote(struct dt_msg_vote *m, uint64_t norm_lo, uint64_t loss_lo, int64_t tokens)
{
    memset(m, 0, sizeof *m);
    m->vote = (struct dt_vote){.epoch = 1,
                               .step = 2,
                               .plan = 3,
                               .dispatch = 4,
                               .kernels = 5,
                               .data_epoch = 6,
                               .sequences = 7,
                               .tokens = 8,
                               .flops = 0.5,
                               .spaces = 2,
                               .space = m->space};
    m->workers = 1;
    for (int i = 0; i < 2; i++)
        m->space[i] = (struct dt_space_vote){.norm = {.lo = norm_lo, .hi = 1},
                                             .scale_log2 = -3,
                                             .finite = true,
                                             .loss = {.lo = loss_lo, .hi = 2},
                                             .loss_tokens = tokens};
}

static void votes_add_up(void **state)
{
    (void)state;
    struct dt_msg_vote a, b, sum;
    one_vote(&a, UINT64_MAX, 10, 100);
    one_vote(&b, 2, UINT64_MAX, 11);
    b.space[1].finite = false;
    b.space[0].overflow = true;
    sum = a; /* its spaces are still those of a */
    assert_true(dt_msg_vote_merge(&sum, &b));
    assert_ptr_equal(sum.vote.space, sum.space);
    assert_int_equal(a.space[0].loss_tokens, 100);
    assert_int_equal(sum.workers, 2);
    assert_true(sum.vote.flops == 1.0);
    for (int i = 0; i < 2; i++) {
        const struct dt_space_vote *s = &sum.vote.space[i];
        assert_true(s->norm.lo == 1 && s->norm.hi == 3);
        assert_true(s->loss.lo == 9 && s->loss.hi == 5);
        assert_int_equal(s->loss_tokens, 111);
        assert_int_equal(s->scale_log2, -3);
        assert_int_equal(s->finite, i == 0);
        assert_int_equal(s->overflow, i == 0);
    }
    struct dt_msg_vote other = b; /* the other order gives the same */
    assert_true(dt_msg_vote_merge(&other, &a));
    assert_memory_equal(other.space, sum.space, 2 * sizeof sum.space[0]);
}

static void votes_that_differ(void **state)
{
    (void)state;
    struct dt_msg_vote a, b, before;
    for (int k = 0; k < 13; k++) {
        one_vote(&a, 1, 2, 3);
        one_vote(&b, 1, 2, 3);
        before = a;
        switch (k) {
        case 0:
            b.vote.epoch++;
            break;
        case 1:
            b.vote.step++;
            break;
        case 2:
            b.vote.attempt++;
            break;
        case 3:
            b.vote.plan++;
            break;
        case 4:
            b.vote.dispatch++;
            break;
        case 5:
            b.vote.kernels++;
            break;
        case 6:
            b.vote.data_epoch++;
            break;
        case 7:
            b.vote.sequences++;
            break;
        case 8:
            b.vote.tokens++;
            break;
        case 9:
            b.vote.spaces--;
            break;
        case 10:
            b.space[1].scale_log2++;
            break;
        case 11:
            b.space[1].loss_tokens = INT64_MAX;
            break;
        case 12:
            b.workers = INT32_MAX;
            break;
        }
        if (dt_msg_vote_merge(&a, &b))
            fail_msg("difference %d was not seen", k);
        assert_memory_equal(&a, &before, sizeof a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(arrays_come_back),
        cmocka_unit_test(ranges_of_a_save),
        cmocka_unit_test(every_cut_is_an_error),
        cmocka_unit_test(damaged_frames),
        cmocka_unit_test(buffers_that_are_too_small),
        cmocka_unit_test(the_bytes_are_these),
        cmocka_unit_test(values_out_of_range),
        cmocka_unit_test(packers_refuse_too),
        cmocka_unit_test(texts),
        cmocka_unit_test(votes_add_up),
        cmocka_unit_test(votes_that_differ),
    };
    return cmocka_run_group_tests_name("cluster/message", tests, NULL, NULL);
}
