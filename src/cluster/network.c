#include "cluster/network.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINK_TRIES 30
#define LINK_MICROSECONDS 100000

struct network {
    int family;
    unsigned char address[16];
    int bits;
};

static int parse(const char *text, struct network *n)
{
    char address[DT_ADDRESS], *slash, *end = NULL;
    snprintf(address, sizeof address, "%s", text);
    slash = strchr(address, '/');
    if (slash)
        *slash = '\0';
    n->family = strchr(address, ':') ? AF_INET6 : AF_INET;
    int most = n->family == AF_INET ? 32 : 128;
    long bits = slash ? strtol(slash + 1, &end, 10) : most;
    if (inet_pton(n->family, address, n->address) != 1 || bits < 0 || bits > most ||
        (slash && (*end || end == slash + 1)))
        return DT_FAIL(
            DT_E_CONFIG,
            "cluster.network: \"%.60s\" is no network; write ADDRESS/BITS, like 10.7.0.0/16", text);
    n->bits = (int)bits;
    return DT_OK;
}

/* The bytes of an interface's address; NULL for another family. */
static const unsigned char *bytes_of(const struct ifaddrs *i, int family)
{
    if (!i->ifa_addr || i->ifa_addr->sa_family != family)
        return NULL;
    return family == AF_INET
               ? (const unsigned char *)&((const struct sockaddr_in *)(const void *)i->ifa_addr)
                     ->sin_addr
               : (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)
                     ->sin6_addr;
}

static bool inside(const struct network *n, const unsigned char *address)
{
    int whole = n->bits / 8, rest = n->bits % 8;
    if (memcmp(address, n->address, (size_t)whole) != 0)
        return false;
    return rest == 0 || ((address[whole] ^ n->address[whole]) >> (8 - rest)) == 0;
}

static void list_addresses(const struct ifaddrs *all, int family, char *out, size_t size)
{
    size_t at = 0;
    char text[DT_ADDRESS];
    out[0] = '\0';
    for (const struct ifaddrs *i = all; i && at < size; i = i->ifa_next) {
        const unsigned char *bytes = bytes_of(i, family);
        if (bytes && inet_ntop(family, bytes, text, sizeof text))
            at += (size_t)snprintf(out + at, size - at, "%s%s (%s)", at ? ", " : "", text,
                                   i->ifa_name);
    }
}

/* 1: found; 0: there is one, but its link is not up yet; else a failure. */
static int look(const char *network, const struct network *n, char address[DT_ADDRESS],
                char device[DT_ADDRESS])
{
    struct ifaddrs *all;
    char had[512];
    int found = -1;
    if (getifaddrs(&all) != 0)
        return DT_FAIL(DT_E_IO, "cannot list this machine's addresses: %s", strerror(errno));
    for (const struct ifaddrs *i = all; i && found != 1; i = i->ifa_next) {
        const unsigned char *bytes = bytes_of(i, n->family);
        if (!bytes || !inside(n, bytes))
            continue;
        inet_ntop(n->family, bytes, address, DT_ADDRESS);
        snprintf(device, DT_ADDRESS, "%s", i->ifa_name);
        found = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING);
    }
    list_addresses(all, n->family, had, sizeof had);
    freeifaddrs(all);
    return found >= 0 ? found
                      : DT_FAIL(DT_E_CONFIG,
                                "cluster.network: this machine has no address in %s; it has %s",
                                network, had);
}

int dt_network_find(const char *network, char address[DT_ADDRESS], char device[DT_ADDRESS])
{
    struct network n;
    int rc = 0;
    DT_TRY(parse(network, &n));
    /* A link that has just been made, as in a container's first second. */
    for (int tries = 0; tries < LINK_TRIES && rc == 0; tries++) {
        if (tries > 0)
            usleep(LINK_MICROSECONDS);
        rc = look(network, &n, address, device);
    }
    if (rc == 0)
        return DT_FAIL(DT_E_CONFIG, "cluster.network: interface %s with %s is down", device,
                       address);
    return rc < 0 ? rc : DT_OK;
}

int dt_network_of(int fd, char address[DT_ADDRESS], char device[DT_ADDRESS])
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    char text[DT_ADDRESS];
    if (getsockname(fd, (struct sockaddr *)&a, &length) != 0 ||
        getnameinfo((struct sockaddr *)&a, length, text, sizeof text, NULL, 0, NI_NUMERICHOST) != 0)
        return DT_FAIL(DT_E_IO, "cannot tell this machine's address to the coordinator; give "
                                "--network");
    text[strcspn(text, "%")] = '\0'; /* an IPv6 address's interface is found again */
    return dt_network_find(text, address, device);
}
