/* Control links: over socket pairs and loopback TCP, with whole and with single bytes; and what a
 * middleman, a stranger, another version, a silent or a dead other side lead to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cluster/link.h"
#include "wire_test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The handshake as documented (docs/protocol.md), written down here once more. */
enum { GREETING = 44, ANSWER = 76, PROOF = 32, MAC = 16 };

static struct dt_secret secret;
static unsigned char packed[17 << 20];

static void make_pair(int s[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s), 0);
}

static void make_tcp(int s[2])
{
    int port = 0, listener;
    assert_ok(dt_listen("127.0.0.1", &port, &listener));
    assert_ok(dt_dial("127.0.0.1", port, 5, &s[0]));
    s[1] = accept(listener, NULL, NULL);
    assert_true(s[1] >= 0);
    close(listener);
}

static struct dt_link *link_on(int fd, enum dt_link_side side)
{
    struct dt_link *l;
    assert_ok(dt_link_new(fd, side, side == DT_LINK_PLAIN ? NULL : &secret, 5, &l));
    return l;
}

static int64_t text(int32_t rank, const char *words)
{
    return dt_pack_text(packed, sizeof packed, DT_MSG_LOG, rank, words, strlen(words));
}

static bool is_text(const struct dt_frame *f, const char *words)
{
    return f->type == DT_MSG_LOG && f->bytes == strlen(words) &&
           memcmp(f->payload, words, f->bytes) == 0;
}

static int go(struct dt_link *l)
{
    struct pollfd p = {.fd = dt_link_fd(l), .events = dt_link_events(l)};
    poll(&p, 1, 0);
    return dt_link_ready(l, p.revents);
}

static void expect_text(struct dt_link *l, int32_t rank, const char *words)
{
    struct dt_frame f;
    assert_ok(dt_link_await(l, 5, &f));
    assert_int_equal(f.rank, rank);
    assert_true(is_text(&f, words));
}

static void shake(struct dt_link *a, struct dt_link *b)
{
    for (int i = 0; i < 1000 && !(dt_link_trusted(a) && dt_link_trusted(b)); i++) {
        assert_ok(go(a));
        assert_ok(go(b));
    }
    assert_true(dt_link_trusted(a) && dt_link_trusted(b));
}

/* ---- What must work ---- */

static void talk(struct dt_link *a, struct dt_link *b)
{
    assert_ok(dt_link_send(a, packed, text(1, "early"))); /* perhaps before the handshake */
    shake(a, b);
    assert_ok(dt_link_send(b, packed, text(2, "back")));
    assert_ok(dt_link_send(b, packed, text(3, "")));
    expect_text(b, 1, "early");
    expect_text(a, 2, "back");
    expect_text(a, 3, "");
    for (int32_t i = 0; i < 1000; i++)
        assert_ok(dt_link_send(a, packed, text(i, "one of many")));
    for (int32_t i = 0; i < 1000; i++) {
        assert_ok(go(a)); /* a socket pair takes only some hundred at once */
        expect_text(b, i, "one of many");
    }
}

static void talk_big(struct dt_link *a, struct dt_link *b)
{
    static char big[DT_MESSAGE_MOST];
    size_t got = 0;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    int64_t n = dt_pack_text(packed, sizeof packed, DT_MSG_JOB, 0, big, sizeof big);
    assert_ok(dt_link_send(a, packed, n));
    assert_ok(dt_link_send(a, packed, text(0, "after")));
    struct dt_frame f;
    for (int i = 0; i < 100000 && got == 0; i++) {
        assert_ok(go(a));
        assert_ok(go(b));
        if (dt_link_next(b, &f))
            got = f.bytes;
    }
    assert_int_equal(got, sizeof big);
    assert_memory_equal(f.payload, big, sizeof big);
    assert_ok(dt_link_flush(a, 5));
    expect_text(b, 0, "after");
}

static void links_of_all_kinds(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        int s[2];
        kind & 1 ? make_tcp(s) : make_pair(s);
        struct dt_link *a = link_on(s[0], kind & 2 ? DT_LINK_CALLER : DT_LINK_PLAIN);
        struct dt_link *b = link_on(s[1], kind & 2 ? DT_LINK_LISTENER : DT_LINK_PLAIN);
        double before = dt_clock_seconds();
        talk(a, b);
        talk_big(kind & 2 ? b : a, kind & 2 ? a : b);
        assert_true(dt_link_heard(b) >= before && dt_link_heard(b) <= dt_clock_seconds());
        assert_true((strncmp(dt_link_peer(a), "127.0.0.1:", 10) == 0) == (kind & 1));
        assert_true(fcntl(s[0], F_GETFD) & FD_CLOEXEC);
        dt_link_free(a);
        dt_link_free(b);
    }
}

/* ---- A middleman: caller <-> c, listener <-> v, the test carries bytes between c and v. ---- */

struct middle {
    struct dt_link *caller, *listener;
    int c, v;
};

static void between(struct middle *m)
{
    int s[2];
    make_pair(s);
    m->caller = link_on(s[0], DT_LINK_CALLER);
    m->c = s[1];
    make_pair(s);
    m->listener = link_on(s[0], DT_LINK_LISTENER);
    m->v = s[1];
}

static void done_between(struct middle *m)
{
    dt_link_free(m->caller);
    dt_link_free(m->listener);
    close(m->c);
    close(m->v);
}

static size_t take(int fd, unsigned char *bytes, size_t size)
{
    ssize_t n = recv(fd, bytes, size, MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0;
}

static void give(int fd, const unsigned char *bytes, size_t n)
{
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

static void shake_between(struct middle *m, unsigned char *answer)
{
    unsigned char bytes[256];
    assert_ok(go(m->listener));
    assert_int_equal(take(m->v, bytes, sizeof bytes), GREETING);
    give(m->c, bytes, GREETING);
    assert_ok(go(m->caller));
    assert_int_equal(take(m->c, bytes, sizeof bytes), ANSWER);
    if (answer)
        memcpy(answer, bytes, ANSWER);
    give(m->v, bytes, ANSWER);
    assert_ok(go(m->listener));
    assert_true(dt_link_trusted(m->listener));
    assert_false(dt_link_trusted(m->caller));
    assert_int_equal(take(m->v, bytes, sizeof bytes), PROOF);
    give(m->c, bytes, PROOF);
    assert_ok(go(m->caller));
    assert_true(dt_link_trusted(m->caller));
}

/* The caller's next frame, as bytes on the wire. */
static size_t say(struct middle *m, const char *words, unsigned char *wire, size_t size)
{
    assert_ok(dt_link_send(m->caller, packed, text(0, words)));
    size_t n = take(m->c, wire, size);
    assert_int_equal(n, DT_MESSAGE_HEADER + strlen(words) + MAC);
    return n;
}

static void single_bytes(void **state)
{
    (void)state;
    struct middle m;
    unsigned char byte;
    struct dt_frame f;
    int frames = 0;
    between(&m);
    assert_ok(dt_link_send(m.caller, packed, text(7, "in pieces")));
    for (int i = 0; i < 2000 && frames == 0; i++) {
        assert_ok(go(m.caller));
        assert_ok(go(m.listener));
        if (take(m.v, &byte, 1))
            give(m.c, &byte, 1);
        if (take(m.c, &byte, 1))
            give(m.v, &byte, 1);
        if (dt_link_next(m.listener, &f))
            frames++;
    }
    assert_int_equal(frames, 1);
    assert_true(f.rank == 7 && is_text(&f, "in pieces"));
    done_between(&m);
}

static void a_frame_said_again(void **state)
{
    (void)state;
    struct middle m;
    unsigned char wire[256];
    struct dt_frame f;
    between(&m);
    shake_between(&m, NULL);
    size_t n = say(&m, "once", wire, sizeof wire);
    give(m.v, wire, n);
    assert_ok(go(m.listener));
    assert_true(dt_link_next(m.listener, &f) && is_text(&f, "once"));
    give(m.v, wire, n);
    assert_fails(go(m.listener), DT_E_DATA, "wrong MAC");
    assert_false(dt_link_next(m.listener, &f));
    assert_fails(go(m.listener), DT_E_DATA, "failed before");
    done_between(&m);
}

static void frames_in_another_order(void **state)
{
    (void)state;
    struct middle m;
    unsigned char one[256], two[256];
    between(&m);
    shake_between(&m, NULL);
    size_t a = say(&m, "first", one, sizeof one), b = say(&m, "second", two, sizeof two);
    give(m.v, two, b);
    give(m.v, one, a);
    assert_fails(go(m.listener), DT_E_DATA, "wrong MAC");
    done_between(&m);
}

static void a_reflected_frame(void **state)
{
    (void)state;
    struct middle m;
    unsigned char wire[256];
    between(&m);
    shake_between(&m, NULL);
    size_t n = say(&m, "mirror", wire, sizeof wire);
    give(m.c, wire, n);
    assert_fails(go(m.caller), DT_E_DATA, "wrong MAC");
    done_between(&m);
}

static void every_altered_byte(void **state)
{
    (void)state;
    const size_t n = DT_MESSAGE_HEADER + 5 + MAC;
    for (size_t i = 0; i < n; i++) {
        struct middle m;
        unsigned char wire[256];
        struct dt_frame f;
        between(&m);
        shake_between(&m, NULL);
        assert_int_equal(say(&m, "plain", wire, sizeof wire), n);
        wire[i] ^= 0x04;
        give(m.v, wire, n);
        /* A longer length makes the listener wait for the rest: also good, it hears nothing. */
        int rc = go(m.listener);
        assert_true(rc == DT_E_DATA || (rc == DT_OK && i < 4));
        assert_false(dt_link_next(m.listener, &f));
        done_between(&m);
    }
}

static void every_altered_byte_of_the_handshake(void **state)
{
    (void)state;
    for (size_t i = 0; i < GREETING + ANSWER + PROOF; i++) {
        struct middle m;
        unsigned char bytes[256];
        between(&m);
        int rc = go(m.listener);
        size_t at = i;
        for (int record = 0; record < 3 && rc == DT_OK; record++) {
            bool out = record != 1; /* listener -> caller */
            size_t n = take(out ? m.v : m.c, bytes, sizeof bytes);
            if (at < n)
                bytes[at] ^= 0x10;
            at -= n; /* beyond: a large number */
            give(out ? m.c : m.v, bytes, n);
            rc = go(out ? m.caller : m.listener);
        }
        assert_int_equal(rc, DT_E_DATA);
        assert_false(dt_link_trusted(m.caller));
        done_between(&m);
    }
}

static void a_whole_session_said_again(void **state)
{
    (void)state;
    struct middle m, n;
    unsigned char answer[ANSWER], greeting[256];
    between(&m);
    shake_between(&m, answer);
    between(&n);
    assert_ok(go(n.listener));
    assert_int_equal(take(n.v, greeting, sizeof greeting), GREETING);
    give(n.v, answer, ANSWER);
    assert_fails(go(n.listener), DT_E_DATA, "secret");
    assert_false(dt_link_trusted(n.listener));
    done_between(&m);
    done_between(&n);
}

/* ---- Strangers and their like ---- */

static void another_secret(void **state)
{
    (void)state;
    int s[2];
    struct dt_secret other;
    struct dt_link *a, *b = NULL;
    make_tcp(s);
    dt_secret_make(&other);
    assert_ok(dt_link_new(s[0], DT_LINK_CALLER, &other, 5, &a));
    b = link_on(s[1], DT_LINK_LISTENER);
    int rc = DT_OK;
    for (int i = 0; i < 1000 && rc == DT_OK; i++) {
        assert_ok(go(a));
        rc = go(b);
    }
    assert_fails(rc, DT_E_DATA, "does not know this job's secret");
    assert_non_null(strstr(dt_error_message(), "127.0.0.1:"));
    dt_link_free(b);
    struct dt_frame f;
    assert_fails(dt_link_await(a, 5, &f), DT_E_PEER, "another secret");
    dt_link_free(a);
}

static void foreign_greeting(const char *first, uint32_t version, size_t n, const char *words)
{
    int s[2];
    unsigned char greeting[GREETING] = {0}, answer[256];
    make_pair(s);
    struct dt_link *l = link_on(s[0], DT_LINK_CALLER);
    memcpy(greeting, first, 8);
    greeting[8] = (unsigned char)version;
    give(s[1], greeting, n);
    assert_fails(go(l), DT_E_DATA, words);
    /* The other side learns our version all the same. */
    assert_int_equal(take(s[1], answer, sizeof answer), ANSWER);
    assert_memory_equal(answer, "ductile\n\1\0\0\0", 12);
    dt_link_free(l);
    close(s[1]);
}

static void two_versions(void **state)
{
    (void)state;
    foreign_greeting("ductile\n", 2, GREETING,
                     "version 2 of the control protocol, this program "
                     "version 1");
    foreign_greeting("ductile\n", 3, 12, "version 3"); /* its greeting may be shorter */
    foreign_greeting("SSH-2.0-", 1, 20, "not Ductile's control protocol");

    int s[2];
    unsigned char answer[ANSWER] = "ductile\n\2", greeting[256];
    make_pair(s);
    struct dt_link *l = link_on(s[0], DT_LINK_LISTENER);
    assert_ok(go(l));
    assert_int_equal(take(s[1], greeting, sizeof greeting), GREETING);
    assert_memory_equal(greeting, "ductile\n\1\0\0\0", 12);
    give(s[1], answer, 12);
    assert_fails(go(l), DT_E_DATA, "version 2 of the control protocol, this program version 1");
    dt_link_free(l);
    close(s[1]);

    make_pair(s); /* plain: the version is in every frame */
    l = link_on(s[0], DT_LINK_PLAIN);
    int64_t n = text(0, "x");
    packed[4] = 9;
    give(s[1], packed, (size_t)n);
    assert_fails(go(l), DT_E_DATA, "version 9");
    dt_link_free(l);
    close(s[1]);
}

static void not_a_word_of_ours(void **state)
{
    (void)state;
    static const unsigned char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    int s[2];
    make_tcp(s);
    struct dt_link *l = link_on(s[1], DT_LINK_LISTENER);
    give(s[0], http, sizeof http - 1);
    struct dt_frame f;
    assert_fails(dt_link_await(l, 5, &f), DT_E_DATA, "not Ductile's control protocol");
    dt_link_free(l);
    close(s[0]);
}

static void refused_header(size_t at, unsigned char value, const char *words)
{
    int s[2];
    make_pair(s);
    struct dt_link *l = link_on(s[0], DT_LINK_PLAIN);
    (void)text(0, "x");
    packed[at] = value;
    give(s[1], packed, DT_MESSAGE_HEADER);
    assert_fails(go(l), DT_E_DATA, words);
    dt_link_free(l);
    close(s[1]);
}

static void headers_that_are_refused(void **state)
{
    (void)state;
    refused_header(3, 1, "16777217 bytes; at most 16777216 are allowed"); /* oversize by one */
    refused_header(5, 0, "unknown type 0");
    refused_header(5, DT_MSG_TYPES, "unknown type");
    refused_header(6, 1, "malformed");
    refused_header(12, 1, "malformed");
    refused_header(11, 0x80, "malformed");
    refused_header(9, 0x10, "rank 4096");
}

static void half_open(void **state)
{
    (void)state;
    for (int side = DT_LINK_CALLER; side <= DT_LINK_LISTENER; side++) {
        int s[2];
        struct dt_link *l;
        struct dt_frame f;
        make_pair(s);
        double began = dt_clock_seconds();
        assert_ok(dt_link_new(s[0], (enum dt_link_side)side, &secret, 0.05, &l));
        give(s[1], (const unsigned char *)"duct", 4);
        assert_fails(dt_link_await(l, 10, &f), DT_E_TIMEOUT, "handshake within 0.05 seconds");
        assert_true(dt_clock_seconds() - began < 5);
        dt_link_free(l);
        close(s[1]);
    }
}

/* ---- Ends ---- */

static void last_words(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        int s[2];
        struct dt_frame f;
        kind & 1 ? make_tcp(s) : make_pair(s);
        struct dt_link *a = link_on(s[0], DT_LINK_PLAIN), *b = link_on(s[1], DT_LINK_PLAIN);
        assert_ok(dt_link_send(a, packed, text(4, "farewell")));
        if (kind & 2) /* what it does not read: closing then is a reset */
            assert_ok(dt_link_send(b, packed, text(4, "unread")));
        dt_link_free(a);
        if (kind & 2) { /* writing meets the end first */
            int rc = DT_OK;
            for (int i = 0; i < 1000 && rc == DT_OK; i++)
                rc = dt_link_send(b, packed, text(4, "anybody there?"));
            assert_int_equal(rc, DT_E_PEER);
        }
        assert_ok(go(b));
        assert_ok(go(b)); /* still unread */
        assert_true(dt_link_next(b, &f) && is_text(&f, "farewell"));
        assert_fails(dt_link_await(b, 5, &f), DT_E_PEER, kind & 1 ? "127.0.0.1" : "process");
        assert_fails(dt_link_send(b, packed, text(4, "late")), DT_E_PEER, "");
        dt_link_free(b);
    }
}

static void who_does_not_read(void **state)
{
    (void)state;
    int s[2], rc = DT_OK, sent = 0;
    static char big[1 << 20];
    make_pair(s);
    struct dt_link *l = link_on(s[0], DT_LINK_PLAIN);
    int64_t n = dt_pack_text(packed, sizeof packed, DT_MSG_LOG, 0, big, sizeof big);
    for (; sent < 100 && rc == DT_OK; sent += rc == DT_OK)
        rc = dt_link_send(l, packed, n);
    assert_fails(rc, DT_E_MEMORY, "does not read");
    assert_in_range(sent, 60, 66);
    double began = dt_clock_seconds();
    assert_fails(dt_link_flush(l, 0.05), DT_E_TIMEOUT, "did not take the last");
    assert_true(dt_clock_seconds() - began < 5);
    close(s[1]);
    assert_fails(dt_link_flush(l, 5), DT_E_PEER, "process");
    dt_link_free(l);
}

static void who_does_not_take(void **state)
{
    (void)state;
    int s[2];
    static char big[1 << 20];
    make_pair(s);
    struct dt_link *a = link_on(s[0], DT_LINK_PLAIN), *b = link_on(s[1], DT_LINK_PLAIN);
    int64_t n = dt_pack_text(packed, sizeof packed, DT_MSG_LOG, 0, big, sizeof big);
    for (int i = 0; i < 40; i++)
        assert_ok(dt_link_send(a, packed, n));
    for (int i = 0; i < 1000; i++) {
        assert_ok(go(a));
        assert_ok(go(b));
    }
    assert_false(dt_link_events(b) & POLLIN); /* it reads no more than one largest frame ahead */
    struct dt_frame f;
    for (int i = 0; i < 40; i++) {
        while (!dt_link_next(b, &f)) {
            assert_ok(go(a));
            assert_ok(go(b));
        }
        assert_int_equal(f.bytes, sizeof big);
    }
    dt_link_free(a);
    dt_link_free(b);
}

static void no_answer(void **state)
{
    (void)state;
    int s[2];
    struct dt_frame f;
    make_pair(s);
    struct dt_link *l = link_on(s[0], DT_LINK_PLAIN);
    assert_fails(dt_link_await(l, 0.02, &f), DT_E_TIMEOUT, "no answer from");
    assert_ok(dt_link_flush(l, 0));
    assert_int_equal(dt_link_send(l, packed, DT_E_INTERNAL), DT_E_INTERNAL);
    dt_link_free(l);
    close(s[1]);
}

/* ---- The secret ---- */

static char path[64];

static void write_secret(const char *words, mode_t mode)
{
    snprintf(path, sizeof path, "/tmp/test-secret-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(words, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void secret_files(void **state)
{
    (void)state;
    char digits[2 * DT_SECRET_BYTES + 1], line[128];
    struct dt_secret read = {0};
    dt_secret_print(&secret, digits);
    assert_int_equal(strlen(digits), 64);
    snprintf(line, sizeof line, "%s\n", digits);
    write_secret(line, 0600);
    assert_ok(dt_secret_read(path, &read));
    assert_memory_equal(&read, &secret, sizeof secret);
    write_secret(digits, 0400);
    assert_ok(dt_secret_read(path, &read));
    static const mode_t wide[] = {0640, 0604, 0620, 0601, 0644, 0777};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        write_secret(line, wide[i]);
        assert_fails(dt_secret_read(path, &read), DT_E_CONFIG, "chmod 600 /tmp/test-secret-");
    }
    write_secret("abc\n", 0600);
    assert_fails(dt_secret_read(path, &read), DT_E_CONFIG, "has 64 hexadecimal digits, found 3");
    snprintf(line, sizeof line, "%s0\n", digits);
    write_secret(line, 0600);
    assert_fails(dt_secret_read(path, &read), DT_E_CONFIG, "found 65");
    digits[10] = 'x';
    write_secret(digits, 0600);
    assert_fails(dt_secret_read(path, &read), DT_E_CONFIG, "character 11");
    assert_null(strstr(dt_error_message(), digits)); /* not in any log */
    if (geteuid() == 0) {
        write_secret(line, 0600);
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_fails(dt_secret_read(path, &read), DT_E_CONFIG, "belongs to user 12345");
    }
    unlink(path);
    assert_fails(dt_secret_read(path, &read), DT_E_NOT_FOUND, path);
    assert_fails(dt_secret_read("/tmp", &read), DT_E_CONFIG, "plain file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_of_all_kinds),
        cmocka_unit_test(single_bytes),
        cmocka_unit_test(a_frame_said_again),
        cmocka_unit_test(frames_in_another_order),
        cmocka_unit_test(a_reflected_frame),
        cmocka_unit_test(every_altered_byte),
        cmocka_unit_test(every_altered_byte_of_the_handshake),
        cmocka_unit_test(a_whole_session_said_again),
        cmocka_unit_test(another_secret),
        cmocka_unit_test(two_versions),
        cmocka_unit_test(not_a_word_of_ours),
        cmocka_unit_test(headers_that_are_refused),
        cmocka_unit_test(half_open),
        cmocka_unit_test(last_words),
        cmocka_unit_test(who_does_not_read),
        cmocka_unit_test(who_does_not_take),
        cmocka_unit_test(no_answer),
        cmocka_unit_test(secret_files),
    };
    dt_secret_make(&secret);
    return cmocka_run_group_tests_name("cluster/link", tests, NULL, NULL);
}
