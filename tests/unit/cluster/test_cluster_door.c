/* Listening and calling; and the door: rightful callers get in soon, whoever else comes, in
 * whatever number; nothing spins, nothing leaks, and the log stays short. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cluster/link.h"
#include "wire_test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct dt_secret secret;

struct place {
    struct dt_door *door;
    int port;
};

static void open_door(struct place *p)
{
    int fd;
    p->port = 0;
    assert_ok(dt_listen("127.0.0.1", &p->port, &fd));
    assert_in_range(p->port, 1, 65535);
    assert_ok(dt_door_open(fd, &secret, &p->door));
}

/* One round as a coordinator's loop does it, waiting at most `ms`; who came in is put into `in`. */
static int round_of(struct dt_door *d, int ms, struct dt_link **in, int most)
{
    struct pollfd fds[DT_STRANGERS + 1];
    int n = dt_door_poll(d, fds), wait = dt_door_wait(d), count = 0;
    struct dt_link *l;
    assert_in_range(n, 1, DT_STRANGERS + 1);
    poll(fds, (nfds_t)n, wait >= 0 && wait < ms ? wait : ms);
    while ((l = dt_door_ready(d, fds, n))) {
        assert_true(dt_link_trusted(l));
        assert_true(count < most);
        in[count++] = l;
    }
    return count;
}

static int knock(const struct place *p)
{
    int fd;
    assert_ok(dt_dial("127.0.0.1", p->port, 5, &fd));
    return fd;
}

static struct dt_link *call(const struct place *p)
{
    struct dt_link *l;
    assert_ok(dt_link_new(knock(p), DT_LINK_CALLER, &secret, 30, &l));
    return l;
}

static int go(struct dt_link *l)
{
    struct pollfd p = {.fd = dt_link_fd(l), .events = dt_link_events(l)};
    poll(&p, 1, 0);
    return dt_link_ready(l, p.revents);
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Standard error into a file while `run` runs; its lines. */
static char words[1 << 16];
static int lines_of(void (*run)(void))
{
    FILE *f = tmpfile();
    int kept = dup(STDERR_FILENO), lines = 0;
    assert_true(f && kept >= 0);
    fflush(stderr);
    dup2(fileno(f), STDERR_FILENO);
    run();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    words[fread(words, 1, sizeof words - 1, f)] = 0;
    for (const char *c = words; *c; c++)
        lines += *c == '\n';
    fclose(f);
    return lines;
}

/* ---- Listening and calling ---- */

static void one_address_only(void **state)
{
    (void)state;
    int port = 0, fd, other;
    assert_fails(dt_listen("0.0.0.0", &port, &fd), DT_E_CONFIG, "every network of this machine");
    assert_fails(dt_listen("::", &port, &fd), DT_E_CONFIG, "every network of this machine");
    assert_fails(dt_listen("localhost", &port, &fd), DT_E_CONFIG, "no numeric");
    assert_fails(dt_listen("192.0.2.1", &port, &fd), DT_E_CONFIG, "has no such address");
    port = 70000;
    assert_fails(dt_listen("127.0.0.1", &port, &fd), DT_E_CONFIG, "expected 0 to 65535");
    port = 0;
    assert_ok(dt_listen("127.0.0.1", &port, &fd));
    struct sockaddr_in a;
    socklen_t length = sizeof a;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &length), 0);
    assert_int_equal(ntohl(a.sin_addr.s_addr), INADDR_LOOPBACK);
    assert_int_equal(ntohs(a.sin_port), port);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_fails(dt_listen("127.0.0.1", &port, &other), DT_E_BUSY, "another program does");
    close(fd);
    assert_ok(dt_listen("127.0.0.1", &port, &fd)); /* at once again */
    close(fd);
}

static void version_six(void **state)
{
    (void)state;
    int port = 0, fd, called;
    struct dt_link *l;
    if (dt_listen("::1", &port, &fd) != DT_OK)
        skip(); /* a machine without IPv6 */
    assert_ok(dt_dial("::1", port, 5, &called));
    assert_ok(dt_link_new(called, DT_LINK_CALLER, &secret, 5, &l));
    assert_int_equal(strncmp(dt_link_peer(l), "[::1]:", 6), 0);
    dt_link_free(l);
    close(fd);
}

static void calls_that_fail(void **state)
{
    (void)state;
    int port = 0, fd, called;
    assert_ok(dt_listen("127.0.0.1", &port, &fd));
    close(fd); /* a port on which nobody listens */
    assert_fails(dt_dial("127.0.0.1", port, 5, &called), DT_E_PEER, "Connection refused");
    assert_non_null(strstr(dt_error_message(), "127.0.0.1 port"));
    assert_int_equal(called, -1);
    assert_fails(dt_dial("127.0.0.1", 0, 5, &called), DT_E_CONFIG, "expected 1 to 65535");
    assert_fails(dt_dial("no-such-host.invalid", 1, 5, &called), DT_E_PEER, "cannot find the host");
    /* A full queue of connections answers nobody: a silent host. */
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    int silent = socket(AF_INET, SOCK_STREAM, 0), filler[8];
    assert_int_equal(bind(silent, (struct sockaddr *)&a, length), 0);
    assert_int_equal(listen(silent, 0), 0);
    assert_int_equal(getsockname(silent, (struct sockaddr *)&a, &length), 0);
    for (int i = 0; i < 8; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&a, length);
    }
    double began = dt_clock_seconds();
    assert_fails(dt_dial("127.0.0.1", ntohs(a.sin_port), 0.2, &called), DT_E_TIMEOUT,
                 "did not answer within 0.2 seconds");
    assert_true(dt_clock_seconds() - began < 3);
    for (int i = 0; i < 8; i++)
        close(filler[i]);
    close(silent);
}

/* ---- The door ---- */

static void nobody(void **state)
{
    (void)state;
    struct place p;
    struct dt_link *in;
    open_door(&p);
    assert_int_equal(dt_door_wait(p.door), -1);
    assert_int_equal(round_of(p.door, 0, &in, 1), 0);
    dt_door_close(p.door);
}

static void all_rightful_callers_come_in(void **state)
{
    (void)state;
    enum { CALLERS = 100 };
    static struct dt_link *callers[CALLERS], *in[CALLERS];
    struct place p;
    int came = 0, before = open_descriptors();
    open_door(&p);
    for (int i = 0; i < CALLERS; i++)
        callers[i] = call(&p);
    double began = dt_clock_seconds();
    while (came < CALLERS && dt_clock_seconds() - began < 10) {
        came += round_of(p.door, 10, in + came, CALLERS - came);
        for (int i = 0; i < CALLERS; i++)
            assert_ok(go(callers[i])); /* not one is refused */
    }
    assert_int_equal(came, CALLERS);
    for (int i = 0; i < CALLERS; i++) {
        dt_link_free(callers[i]);
        dt_link_free(in[i]);
    }
    dt_door_close(p.door);
    assert_int_equal(open_descriptors(), before);
}

static double let_in_after;
static void hundred_strangers_first(void)
{
    enum { STRANGERS = 100 };
    static int strangers[STRANGERS];
    struct place p;
    struct dt_link *in = NULL;
    open_door(&p);
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = knock(&p);
    struct dt_link *caller = call(&p);
    double began = dt_clock_seconds();
    int rc = DT_OK;
    while (!in && rc == DT_OK && dt_clock_seconds() - began < 20) {
        round_of(p.door, 20, &in, 1);
        rc = go(caller);
    }
    let_in_after = dt_clock_seconds() - began;
    assert_ok(rc);
    assert_non_null(in);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    dt_link_free(caller);
    dt_link_free(in);
    dt_door_close(p.door);
}

static void hundred_strangers_do_not_keep_one_out(void **state)
{
    (void)state;
    int lines = lines_of(hundred_strangers_first);
    print_message("let in after %.2f s; %d lines:\n%s", let_in_after, lines, words);
    assert_true(let_in_after < DT_STRANGER_SECONDS + 1);
    assert_in_range(lines, 1, (int)let_in_after + 2); /* one a second, one at the end */
    assert_non_null(strstr(words, "127.0.0.1:"));
    assert_non_null(strstr(words, "had to go"));
    assert_non_null(strstr(words, "more refusals"));
}

static void garbage_from_fifty(void)
{
    struct place p;
    struct dt_link *in;
    int rude[50];
    open_door(&p);
    for (int i = 0; i < 50; i++) {
        rude[i] = knock(&p);
        assert_int_equal(send(rude[i], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(round_of(p.door, 5, &in, 1), 0);
    struct pollfd fds[DT_STRANGERS + 1];
    assert_int_equal(dt_door_poll(p.door, fds), 1); /* all are gone */
    for (int i = 0; i < 50; i++)
        close(rude[i]);
    dt_door_close(p.door);
}

static void garbage_makes_few_lines(void **state)
{
    (void)state;
    int lines = lines_of(garbage_from_fifty);
    assert_in_range(lines, 2, 5); /* 2 within a second; more on a machine that is very busy */
    assert_non_null(strstr(words, "not Ductile's control protocol"));
    assert_non_null(strstr(words, "more refusals"));
}

static double dropped_after;
static void one_who_says_nothing(void)
{
    struct place p;
    struct dt_link *in;
    char byte;
    open_door(&p);
    int fd = knock(&p), calls = 0;
    unsigned char greeting[256];
    double began = dt_clock_seconds();
    ssize_t n = -1;
    while (dt_clock_seconds() - began < 20) {
        assert_int_equal(round_of(p.door, 60000, &in, 1), 0);
        calls++;
        if ((n = recv(fd, greeting, sizeof greeting, MSG_DONTWAIT)) == 0)
            break;
    }
    dropped_after = dt_clock_seconds() - began;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
    assert_in_range(calls, 1, 20); /* it slept meanwhile */
    close(fd);
    dt_door_close(p.door);
}

static void who_says_nothing_is_dropped(void **state)
{
    (void)state;
    int lines = lines_of(one_who_says_nothing);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(words, "did not finish the handshake within 5 seconds"));
    assert_true(dropped_after >= DT_STRANGER_SECONDS - 0.1);
    assert_true(dropped_after < DT_STRANGER_SECONDS + 1);
}

static void no_descriptors(void)
{
    struct place p;
    struct pollfd fds[DT_STRANGERS + 1];
    struct dt_link *in = NULL;
    struct rlimit was, tight;
    open_door(&p);
    struct dt_link *caller = call(&p);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    tight = was;
    tight.rlim_cur = (rlim_t)dt_link_fd(caller) + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int calls = 0;
    double began = dt_clock_seconds();
    while (dt_clock_seconds() - began < 1.2) {
        round_of(p.door, 60000, &in, 1);
        calls++;
    }
    assert_in_range(calls, 1, 20); /* it does not spin on a socket that stays readable */
    assert_int_equal(dt_door_poll(p.door, fds), 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    while (!in && dt_clock_seconds() - began < 10) {
        round_of(p.door, 20, &in, 1);
        assert_ok(go(caller));
    }
    assert_non_null(in);
    dt_link_free(in);
    dt_link_free(caller);
    dt_door_close(p.door);
}

static void out_of_descriptors(void **state)
{
    (void)state;
    int lines = lines_of(no_descriptors);
    assert_in_range(lines, 1, 3);
    assert_non_null(strstr(words, "cannot accept a connection: Too many open files"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_address_only),
        cmocka_unit_test(version_six),
        cmocka_unit_test(calls_that_fail),
        cmocka_unit_test(nobody),
        cmocka_unit_test(all_rightful_callers_come_in),
        cmocka_unit_test(hundred_strangers_do_not_keep_one_out),
        cmocka_unit_test(garbage_makes_few_lines),
        cmocka_unit_test(who_says_nothing_is_dropped),
        cmocka_unit_test(out_of_descriptors),
    };
    dt_secret_make(&secret);
    return cmocka_run_group_tests_name("cluster/door", tests, NULL, NULL);
}
