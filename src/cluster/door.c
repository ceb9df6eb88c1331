/* Who may come in: handshakes with strangers (link.h).
 *
 * Problem: anybody who reaches the port can open connections, many and slowly, and must neither
 * keep a rightful agent out nor use up memory, descriptors or the log. Idea: few places, each for a
 * short time; when all are taken the rest waits in the kernel's queue, and whoever has held a place
 * longer than an honest handshake takes gives it up to those who wait. Many rightful callers at
 * once are thereby served in turn, and idle strangers cost each of them half a second at most.
 *
 * When the process is out of descriptors, accept fails and the socket stays readable: the door then
 * looks away for a moment instead of spinning. */
#include "cluster/link.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REST 0.5     /* seconds without accepting after a failure */
#define LOG_EVERY 1. /* seconds between two lines */

struct stranger {
    struct dt_link *link;
    double since;
};

struct dt_door {
    int fd;
    struct dt_secret secret;
    int count;
    struct stranger stranger[DT_STRANGERS]; /* [count], oldest first */
    double rest_until;
    double last_line;
    long untold; /* refusals since */
};

int dt_door_open(int listen_fd, const struct dt_secret *secret, struct dt_door **out)
{
    struct dt_door *d = calloc(1, sizeof *d);
    *out = d;
    if (!d) {
        close(listen_fd);
        return DT_FAIL(DT_E_MEMORY, "no memory for the door");
    }
    d->fd = listen_fd;
    d->secret = *secret;
    d->last_line = -LOG_EVERY;
    return DT_OK;
}

static void tell(struct dt_door *d, const char *words)
{
    double now = dt_clock_seconds();
    if (now - d->last_line < LOG_EVERY) {
        d->untold++;
        return;
    }
    d->last_line = now;
    if (d->untold > 0)
        dt_warn("control port: %s (and %ld more refusals before)", words, d->untold);
    else
        dt_warn("control port: %s", words);
    d->untold = 0;
}

static struct dt_link *take_out(struct dt_door *d, int i)
{
    struct dt_link *l = d->stranger[i].link;
    d->count--;
    memmove(&d->stranger[i], &d->stranger[i + 1], (size_t)(d->count - i) * sizeof d->stranger[0]);
    return l;
}

/* The error trail holds the reason. */
static void refuse(struct dt_door *d, int i)
{
    tell(d, dt_error_message());
    dt_link_free(take_out(d, i));
}

void dt_door_close(struct dt_door *d)
{
    if (!d)
        return;
    while (d->count > 0)
        dt_link_free(take_out(d, 0));
    if (d->untold > 0)
        dt_warn("control port: %ld more refusals", d->untold);
    close(d->fd);
    explicit_bzero(&d->secret, sizeof d->secret);
    free(d);
}

/* When the next caller may be accepted. */
static double opens_at(const struct dt_door *d)
{
    double free_at = d->count < DT_STRANGERS ? 0 : d->stranger[0].since + DT_STRANGER_GRACE;
    return free_at > d->rest_until ? free_at : d->rest_until;
}

int dt_door_poll(struct dt_door *d, struct pollfd *fds)
{
    bool open = opens_at(d) <= dt_clock_seconds();
    fds[0] = (struct pollfd){.fd = open ? d->fd : -1, .events = POLLIN};
    for (int i = 0; i < d->count; i++)
        fds[1 + i] = (struct pollfd){.fd = dt_link_fd(d->stranger[i].link),
                                     .events = dt_link_events(d->stranger[i].link)};
    return 1 + d->count;
}

int dt_door_wait(const struct dt_door *d)
{
    double now = dt_clock_seconds(),
           until = d->count ? d->stranger[0].since + DT_STRANGER_SECONDS : -1;
    double open = opens_at(d);
    if (open > now && (until < 0 || open < until))
        until = open;
    if (until < 0)
        return -1;
    return until > now ? (int)((until - now) * 1000) + 1 : 0;
}

static void accept_one(struct dt_door *d, int fd)
{
    struct stranger s = {.since = dt_clock_seconds()};
    if (d->count == DT_STRANGERS) {
        DT_FAIL(DT_E_TIMEOUT, "%s had to go after %.3g s, others wait",
                dt_link_peer(d->stranger[0].link), s.since - d->stranger[0].since);
        refuse(d, 0);
    }
    if (dt_link_new(fd, DT_LINK_LISTENER, &d->secret, DT_STRANGER_SECONDS, &s.link) < 0)
        tell(d, dt_error_message());
    else
        d->stranger[d->count++] = s;
}

static void accept_callers(struct dt_door *d)
{
    while (opens_at(d) <= dt_clock_seconds()) {
        int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            accept_one(d, fd);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            DT_FAIL(DT_E_IO, "cannot accept a connection: %s%s", strerror(errno),
                    errno == EMFILE || errno == ENFILE ? " (raise the limit: ulimit -n)" : "");
            tell(d, dt_error_message());
            d->rest_until = dt_clock_seconds() + REST;
        }
    }
}

static short events_of(int fd, const struct pollfd *fds, int count)
{
    for (int i = 1; i < count; i++)
        if (fds[i].fd == fd)
            return fds[i].revents;
    return 0;
}

struct dt_link *dt_door_ready(struct dt_door *d, const struct pollfd *fds, int count)
{
    for (int i = 0; i < d->count;) {
        struct dt_link *l = d->stranger[i].link;
        if (dt_link_ready(l, events_of(dt_link_fd(l), fds, count)) < 0)
            refuse(d, i);
        else if (dt_link_trusted(l))
            return take_out(d, i);
        else
            i++;
    }
    if (count > 0 && (fds[0].revents & POLLIN))
        accept_callers(d);
    return NULL;
}
