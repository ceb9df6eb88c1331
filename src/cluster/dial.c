/* TCP sockets of the control plane: one address is listened on, and calling has a deadline. */
#include "cluster/link.h"

#include "base/clock.h"
#include "base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Agents of a whole cluster may call at the same moment. */
#define BACKLOG 4096

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
};

static int parse(const char *text, int port, union address *a, socklen_t *length)
{
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(text, NULL, &hints, &found) != 0)
        return DT_FAIL(DT_E_CONFIG,
                       "cannot listen on %s: it is no numeric IPv4 or IPv6 address of this machine",
                       text);
    *length = found->ai_addrlen;
    memcpy(a, found->ai_addr, *length);
    freeaddrinfo(found);
    bool v6 = a->any.sa_family == AF_INET6;
    bool all =
        v6 ? IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr) : a->v4.sin_addr.s_addr == htonl(INADDR_ANY);
    if (all)
        return DT_FAIL(DT_E_CONFIG,
                       "will not listen on %s, which means every network of this machine: name the "
                       "address on the network between the machines",
                       text);
    *(v6 ? &a->v6.sin6_port : &a->v4.sin_port) = htons((uint16_t)port);
    return DT_OK;
}

static int bind_failed(const char *address, int port)
{
    if (errno == EADDRNOTAVAIL)
        return DT_FAIL(DT_E_CONFIG, "cannot listen on %s: this machine has no such address",
                       address);
    if (errno == EADDRINUSE)
        return DT_FAIL(DT_E_BUSY,
                       "cannot listen on %s port %d: another program does; choose another port",
                       address, port);
    return DT_FAIL(DT_E_IO, "cannot listen on %s port %d: %s", address, port, strerror(errno));
}

int dt_listen(const char *address, int *port, int *fd)
{
    union address a;
    socklen_t length;
    int one = 1;
    *fd = -1;
    if (*port < 0 || *port > 65535)
        return DT_FAIL(DT_E_CONFIG, "cannot listen on port %d: expected 0 to 65535", *port);
    DT_TRY(parse(address, *port, &a, &length));
    int s = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return bind_failed(address, *port);
    if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(s, &a.any, length) != 0 || listen(s, BACKLOG) != 0 ||
        getsockname(s, &a.any, &length) != 0) {
        int rc = bind_failed(address, *port);
        close(s);
        return rc;
    }
    *port = ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
    *fd = s;
    return DT_OK;
}

/* Connect s: 0, or an errno (ETIMEDOUT: the deadline). */
static int connect_until(int s, const struct addrinfo *to, double deadline)
{
    int error = 0;
    socklen_t length = sizeof error;
    if (connect(s, to->ai_addr, to->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS && errno != EINTR)
        return errno;
    for (;;) {
        double wait = deadline - dt_clock_seconds();
        struct pollfd p = {.fd = s, .events = POLLOUT};
        if (wait <= 0)
            return ETIMEDOUT;
        int n = poll(&p, 1, wait < 60 ? (int)(wait * 1000) + 1 : 60000);
        if (n < 0 && errno != EINTR)
            return errno;
        if (n > 0)
            return getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
    }
}

/* A call to a local port on which nobody listens may get that same port as its own, and TCP then
 * connects the socket to itself. */
static bool called_itself(int s)
{
    union address own = {0}, other = {0};
    socklen_t own_length = sizeof own, other_length = sizeof other;
    return getsockname(s, &own.any, &own_length) == 0 &&
           getpeername(s, &other.any, &other_length) == 0 && own_length == other_length &&
           memcmp(&own, &other, own_length) == 0;
}

int dt_dial(const char *host, int port, double seconds, int *fd)
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    char service[16];
    int error = 0;
    double deadline = dt_clock_seconds() + seconds;
    *fd = -1;
    if (port < 1 || port > 65535)
        return DT_FAIL(DT_E_CONFIG, "cannot call %s port %d: expected 1 to 65535", host, port);
    snprintf(service, sizeof service, "%d", port);
    int unknown = getaddrinfo(host, service, &hints, &found);
    if (unknown)
        return DT_FAIL(DT_E_PEER, "cannot find the host %s: %s; check the name, or give an address",
                       host, unknown == EAI_SYSTEM ? strerror(errno) : gai_strerror(unknown));
    int left = 0;
    for (struct addrinfo *a = found; a; a = a->ai_next)
        left++;
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next, left--) {
        double now = dt_clock_seconds(); /* an address that is silent leaves the others time */
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        error = s < 0 ? errno : connect_until(s, a, now + (deadline - now) / left);
        if (error == 0 && called_itself(s))
            error = ECONNREFUSED;
        if (error == 0)
            *fd = s;
        else if (s >= 0)
            close(s);
    }
    freeaddrinfo(found);
    if (*fd >= 0)
        return DT_OK;
    if (error == ETIMEDOUT)
        return DT_FAIL(DT_E_TIMEOUT,
                       "%s port %d did not answer within %.3g seconds: check that the coordinator "
                       "runs there and that no firewall is between",
                       host, port, seconds);
    return DT_FAIL(DT_E_PEER,
                   "cannot connect to %s port %d: %s; check that the coordinator runs there and "
                   "listens on this address",
                   host, port, strerror(error));
}
