/* One control connection (link.h): bytes in, whole frames out, and the other way round.
 *
 * Two buffers. `in` holds `whole` bytes of frames whose MACs were right, then what came of the next
 * one; it grows as bytes come, never because a header claims that they will. `out` holds what
 * the socket did not take yet. Before a TCP link is trusted it reads no byte beyond the handshake's
 * record that it waits for, and keeps frames to send in `early`, since there is no key yet.
 *
 * A process that fails sends its last words and closes: so the end of a connection, also one that a
 * write met, is reported only when every frame that came before it has been taken. */
#include "cluster/link.h"

#include "base/clock.h"
#include "base/error.h"
#include "cluster/pack.h"
#include "cluster/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IN_MOST (DT_MESSAGE_HEADER + DT_MESSAGE_MOST + CLUSTER__MAC) /* one largest frame */
#define OUT_MOST ((size_t)64 << 20)
#define READ_AT_ONCE ((size_t)1 << 20) /* of one link, then it is the others' turn */
#define KEEP_BUFFER ((size_t)1 << 20)  /* larger ones are given back when they are empty */

struct buffer {
    unsigned char *data;
    size_t size, from, to;
};

enum stage { EXPECT_GREETING, EXPECT_ANSWER, EXPECT_PROOF, TRUSTED };

struct dt_link {
    int fd;
    bool sealed; /* frames carry MACs */
    enum stage stage;
    double deadline; /* of the handshake */
    double allowed;  /* seconds it may take */
    double heard;
    bool ended;   /* nothing more will come */
    bool deaf;    /* nothing more can be sent */
    int error;    /* errno of that; 0: the other side closed */
    int failed;   /* what came was wrong: nothing after it counts */
    size_t whole; /* bytes of whole frames at in.from */
    struct buffer in, out, early;
    struct cluster__seal seal;
    char peer[96];
};

/* ---- Buffers ---- */

static size_t held(const struct buffer *b)
{
    return b->to - b->from;
}

/* Room for `more` bytes behind b->to. */
static int make_room(struct buffer *b, size_t more)
{
    if (b->size - b->to >= more)
        return DT_OK;
    size_t used = held(b), size = b->size ? b->size : 4096;
    /* Moving is worth it when it frees half of the buffer: then a byte moves once on average. */
    if (b->from < b->size / 2 || b->size - used < more) {
        while (size - used < more)
            size *= 2;
        if (size == b->size)
            size *= 2;
        unsigned char *data = malloc(size);
        if (!data)
            return DT_FAIL(DT_E_MEMORY, "no memory for %zu bytes of control messages", size);
        if (used > 0)
            memcpy(data, b->data + b->from, used);
        free(b->data);
        b->data = data;
        b->size = size;
    } else if (used > 0) {
        memmove(b->data, b->data + b->from, used);
    }
    b->from = 0;
    b->to = used;
    return DT_OK;
}

static int append(struct buffer *b, const unsigned char *data, size_t bytes)
{
    DT_TRY(make_room(b, bytes));
    memcpy(b->data + b->to, data, bytes);
    b->to += bytes;
    return DT_OK;
}

/* To be called when nothing refers to its bytes. */
static void tidy(struct buffer *b)
{
    if (b->from < b->to)
        return;
    if (b->size > KEEP_BUFFER) {
        free(b->data);
        *b = (struct buffer){0};
    }
    b->from = b->to = 0;
}

/* ---- Making and asking ---- */

static void name_peer(struct dt_link *l)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    char host[64], port[16];
    struct ucred who;
    socklen_t who_length = sizeof who;
    bool known = getpeername(l->fd, (struct sockaddr *)&a, &length) == 0;
    if (known && (a.ss_family == AF_INET || a.ss_family == AF_INET6) &&
        getnameinfo((struct sockaddr *)&a, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(l->peer, sizeof l->peer, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                 port);
    else if (getsockopt(l->fd, SOL_SOCKET, SO_PEERCRED, &who, &who_length) == 0 && who.pid > 0 &&
             who.pid != getpid()) /* it is who made the pair, perhaps we */
        snprintf(l->peer, sizeof l->peer, "pid %d (socket pair)", (int)who.pid);
    else
        snprintf(l->peer, sizeof l->peer, "the process at descriptor %d", l->fd);
}

static int prepare_socket(struct dt_link *l)
{
    int flags = fcntl(l->fd, F_GETFL), one = 1;
    if (flags < 0 || fcntl(l->fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(l->fd, F_SETFD, FD_CLOEXEC) != 0)
        return DT_FAIL(DT_E_IO, "cannot set up the connection to %s: %s", l->peer, strerror(errno));
    /* Messages are small and waited for. Fails harmlessly on socket pairs. */
    (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return DT_OK;
}

int dt_link_new(int fd, enum dt_link_side side, const struct dt_secret *secret, double handshake,
                struct dt_link **out)
{
    struct dt_link *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l) {
        close(fd);
        return DT_FAIL(DT_E_MEMORY, "no memory for a connection");
    }
    int rc;
    l->fd = fd;
    l->heard = dt_clock_seconds();
    l->allowed = handshake;
    l->deadline = l->heard + handshake;
    l->sealed = side != DT_LINK_PLAIN;
    l->stage = side == DT_LINK_PLAIN    ? TRUSTED
               : side == DT_LINK_CALLER ? EXPECT_GREETING
                                        : EXPECT_ANSWER;
    name_peer(l);
    DT_CHECK(fail, rc, prepare_socket(l));
    if (l->sealed) {
        l->seal.secret = *secret;
        if (sodium_init() < 0)
            DT_CHECK(fail, rc, DT_FAIL(DT_E_INTERNAL, "libsodium cannot be initialised"));
    }
    if (l->stage == EXPECT_ANSWER) {
        cluster__greet(&l->seal);
        DT_CHECK(fail, rc, append(&l->out, l->seal.records, CLUSTER__GREETING));
    }
    *out = l;
    return DT_OK;
fail:
    dt_link_free(l);
    return rc;
}

void dt_link_free(struct dt_link *l)
{
    if (!l)
        return;
    close(l->fd);
    sodium_memzero(&l->seal, sizeof l->seal);
    free(l->in.data);
    free(l->out.data);
    free(l->early.data);
    free(l);
}

int dt_link_fd(const struct dt_link *l)
{
    return l->fd;
}

short dt_link_events(const struct dt_link *l)
{
    bool reads = held(&l->in)<IN_MOST, writes = held(&l->out)> 0;
    return (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

bool dt_link_trusted(const struct dt_link *l)
{
    return l->stage == TRUSTED;
}

double dt_link_heard(const struct dt_link *l)
{
    return l->heard;
}

const char *dt_link_peer(const struct dt_link *l)
{
    return l->peer;
}

static int peer_gone(const struct dt_link *l)
{
    const char *hint = l->stage == TRUSTED ? ""
                                           : " before the handshake was over: its log says why "
                                             "(another secret, another version, or too busy)";
    if (l->error == 0)
        return DT_FAIL(DT_E_PEER, "%s closed the connection%s", l->peer, hint);
    return DT_FAIL(DT_E_PEER, "the connection to %s broke%s: %s", l->peer, hint,
                   strerror(l->error));
}

static int failed_before(const struct dt_link *l)
{
    return DT_FAIL(l->failed, "%s: the connection has failed before", l->peer);
}

/* ---- Bytes ---- */

static void write_out(struct dt_link *l)
{
    struct buffer *b = &l->out;
    while (held(b) > 0) {
        ssize_t n = send(l->fd, b->data + b->from, held(b), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            b->from += (size_t)n;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        l->deaf = true;
        l->error = errno == EPIPE ? 0 : errno;
        b->from = b->to;
    }
    tidy(b);
}

/* Bytes that may be read now. */
static size_t wanted(const struct dt_link *l)
{
    static const size_t record[] = {[EXPECT_GREETING] = CLUSTER__GREETING,
                                    [EXPECT_ANSWER] = CLUSTER__ANSWER,
                                    [EXPECT_PROOF] = CLUSTER__PROOF,
                                    [TRUSTED] = IN_MOST};
    return record[l->stage] - held(&l->in);
}

/* *empty: the socket has no more for now. */
static int read_in(struct dt_link *l, bool *empty)
{
    struct buffer *b = &l->in;
    size_t left = READ_AT_ONCE;
    *empty = l->ended;
    tidy(b);
    while (!*empty && left > 0 && wanted(l) > 0) {
        DT_TRY(make_room(b, 1));
        size_t room = b->size - b->to;
        room = room < left ? room : left;
        room = room < wanted(l) ? room : wanted(l);
        ssize_t n = recv(l->fd, b->data + b->to, room, MSG_DONTWAIT);
        if (n > 0) {
            b->to += (size_t)n;
            left -= (size_t)n;
            l->heard = dt_clock_seconds();
        } else if (n == 0) {
            l->ended = *empty = true;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            *empty = true;
        } else if (errno != EINTR) {
            l->error = errno;
            l->ended = *empty = true;
        }
    }
    return DT_OK;
}

/* ---- The handshake ---- */

static int seal_and_queue(struct dt_link *l, const unsigned char *frame, size_t bytes)
{
    DT_TRY(make_room(&l->out, bytes + CLUSTER__MAC));
    memcpy(l->out.data + l->out.to, frame, bytes);
    if (l->sealed)
        cluster__seal_frame(&l->seal, l->out.data + l->out.to, bytes);
    l->out.to += bytes + (l->sealed ? CLUSTER__MAC : 0);
    return DT_OK;
}

static int become_trusted(struct dt_link *l)
{
    struct buffer *e = &l->early;
    l->stage = TRUSTED;
    while (held(e) > 0) {
        const unsigned char *frame = e->data + e->from;
        size_t bytes = DT_MESSAGE_HEADER + (size_t)cluster__load(frame, 4);
        DT_TRY(seal_and_queue(l, frame, bytes));
        e->from += bytes;
    }
    free(e->data);
    *e = (struct buffer){0};
    return DT_OK;
}

/* The caller. The greeting's version decides whether there is more to say than our own. */
static int take_greeting(struct dt_link *l)
{
    int rc = cluster__prefix_check(l->in.data + l->in.from);
    if (rc == DT_OK && held(&l->in) < CLUSTER__GREETING)
        return DT_OK;
    memcpy(l->seal.records, l->in.data + l->in.from, held(&l->in));
    cluster__answer(&l->seal);
    DT_TRY(append(&l->out, l->seal.records + CLUSTER__GREETING, CLUSTER__ANSWER));
    if (rc < 0)
        write_out(l); /* so that the other side learns our version too */
    l->in.from = l->in.to;
    l->stage = EXPECT_PROOF;
    return rc;
}

static int take_answer(struct dt_link *l)
{
    unsigned char proof[CLUSTER__PROOF];
    DT_TRY(cluster__prefix_check(l->in.data + l->in.from));
    if (held(&l->in) < CLUSTER__ANSWER)
        return DT_OK;
    memcpy(l->seal.records + CLUSTER__GREETING, l->in.data + l->in.from, CLUSTER__ANSWER);
    DT_TRY(cluster__accept(&l->seal, proof));
    DT_TRY(append(&l->out, proof, sizeof proof));
    l->in.from = l->in.to;
    return become_trusted(l);
}

static int take_proof(struct dt_link *l)
{
    if (held(&l->in) < CLUSTER__PROOF)
        return DT_OK;
    DT_TRY(cluster__confirm(&l->seal, l->in.data + l->in.from));
    l->in.from = l->in.to;
    return become_trusted(l);
}

static int shake_hands(struct dt_link *l)
{
    if (held(&l->in) < CLUSTER__PREFIX)
        return DT_OK;
    switch (l->stage) {
    case EXPECT_GREETING:
        return take_greeting(l);
    case EXPECT_ANSWER:
        return take_answer(l);
    case EXPECT_PROOF:
        return take_proof(l);
    case TRUSTED:
        break;
    }
    return DT_OK;
}

/* ---- Frames ---- */

static size_t frame_size(const struct dt_link *l, const struct dt_frame *f)
{
    return DT_MESSAGE_HEADER + f->bytes + (l->sealed ? CLUSTER__MAC : 0);
}

static int check_frames(struct dt_link *l)
{
    while (held(&l->in) - l->whole >= DT_MESSAGE_HEADER) {
        const unsigned char *at = l->in.data + l->in.from + l->whole;
        struct dt_frame f;
        DT_TRY(cluster__header_read(at, &f));
        if (held(&l->in) - l->whole < frame_size(l, &f))
            break;
        if (l->sealed && !cluster__check_frame(&l->seal, at, DT_MESSAGE_HEADER + f.bytes))
            return DT_FAIL(DT_E_DATA,
                           "a %s frame with a wrong MAC: something between here and "
                           "there changes, repeats or reorders bytes",
                           dt_message_name(f.type));
        l->whole += frame_size(l, &f);
    }
    return DT_OK;
}

int dt_link_ready(struct dt_link *l, short revents)
{
    bool empty = false;
    if (l->failed)
        return failed_before(l);
    write_out(l);
    if (l->deaf || (revents & (POLLIN | POLLHUP | POLLERR))) {
        DT_TRY(read_in(l, &empty));
        l->failed = l->stage == TRUSTED ? check_frames(l) : shake_hands(l);
        if (l->failed)
            return dt_error_context(l->failed, "%s", l->peer);
        write_out(l);
    }
    if ((l->ended || (l->deaf && empty)) && l->whole == 0)
        return peer_gone(l);
    if (l->stage != TRUSTED && dt_clock_seconds() > l->deadline)
        return DT_FAIL(DT_E_TIMEOUT, "%s did not finish the handshake within %.3g seconds", l->peer,
                       l->allowed);
    return DT_OK;
}

bool dt_link_next(struct dt_link *l, struct dt_frame *out)
{
    if (l->whole == 0)
        return false;
    const unsigned char *at = l->in.data + l->in.from;
    if (cluster__header_read(at, out) < 0)
        return false; /* cannot be: check_frames has read it */
    out->payload = at + DT_MESSAGE_HEADER;
    l->in.from += frame_size(l, out);
    l->whole -= frame_size(l, out);
    return true;
}

int dt_link_send(struct dt_link *l, const unsigned char *frame, int64_t bytes)
{
    if (bytes < 0)
        return (int)bytes; /* it could not be packed; the words are there */
    size_t waiting = held(&l->out) + held(&l->early), size = (size_t)bytes;
    if (l->failed)
        return failed_before(l);
    if (l->deaf || l->ended)
        return peer_gone(l);
    if (waiting + size + CLUSTER__MAC > OUT_MOST)
        return DT_FAIL(DT_E_MEMORY, "%s does not read: %zu bytes wait to be sent to it", l->peer,
                       waiting);
    if (l->stage != TRUSTED)
        return append(&l->early, frame, size);
    DT_TRY(seal_and_queue(l, frame, size));
    write_out(l);
    return l->deaf ? peer_gone(l) : DT_OK;
}

/* ---- For those who have nothing else to do ---- */

/* Sleep until the link can go on, at most until `deadline`, and let it. */
static int go_on(struct dt_link *l, double deadline)
{
    double now = dt_clock_seconds();
    double until = l->stage != TRUSTED && l->deadline < deadline ? l->deadline : deadline;
    double wait = until > now ? (until - now) * 1000 + 1 : 0;
    struct pollfd p = {.fd = l->fd, .events = dt_link_events(l)};
    if (poll(&p, 1, wait < 60000 ? (int)wait : 60000) < 0 && errno != EINTR)
        return DT_FAIL(DT_E_IO, "cannot wait for %s: %s", l->peer, strerror(errno));
    return dt_link_ready(l, p.revents);
}

int dt_link_flush(struct dt_link *l, double seconds)
{
    double deadline = dt_clock_seconds() + seconds;
    while (held(&l->out) + held(&l->early) > 0) {
        if (dt_clock_seconds() > deadline)
            return DT_FAIL(DT_E_TIMEOUT, "%s did not take the last %zu bytes within %.3g seconds",
                           l->peer, held(&l->out) + held(&l->early), seconds);
        DT_TRY(go_on(l, deadline));
    }
    return l->deaf ? peer_gone(l) : DT_OK;
}

int dt_link_await(struct dt_link *l, double seconds, struct dt_frame *out)
{
    double deadline = dt_clock_seconds() + seconds;
    while (!dt_link_next(l, out)) {
        if (dt_clock_seconds() > deadline)
            return DT_FAIL(DT_E_TIMEOUT, "no answer from %s within %.3g seconds", l->peer, seconds);
        DT_TRY(go_on(l, deadline));
    }
    return DT_OK;
}
