/* What the control port and the socket pairs may be sent. The first byte chooses: a payload of the
 * type in the second byte, unpacked and packed again (whatever is accepted has one form); the byte
 * stream of a plain link; a stranger at the listener; a foreign listener, met by a caller. Streams
 * come in pieces whose size is in the second byte. Nonces and secret are fixed, so that a seed can
 * hold a right answer and sealed frames. covers: src/cluster/message.c src/cluster/pack.c
 * covers: src/cluster/link.c src/cluster/seal.c */
#include "base/error.h"
#include "cluster/link.h"

#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned char packed[1 << 20];

#define AGAIN(name, type)                                                                          \
    case type: {                                                                                   \
        static struct dt_msg_##name m;                                                             \
        int rc = dt_unpack_##name(f, &m);                                                          \
        return rc < 0 ? rc : dt_pack_##name(packed, sizeof packed, f->rank, &m);                   \
    }

static int64_t again(const struct dt_frame *f)
{
    switch (f->type) {
        AGAIN(hello, DT_MSG_HELLO)
        AGAIN(spawn, DT_MSG_SPAWN)
        AGAIN(started, DT_MSG_STARTED)
        AGAIN(died, DT_MSG_DIED)
        AGAIN(address, DT_MSG_ADDRESS)
        AGAIN(table, DT_MSG_TABLE)
        AGAIN(vote, DT_MSG_VOTE)
        AGAIN(decide, DT_MSG_DECIDE)
        AGAIN(evaluated, DT_MSG_EVALUATED)
        AGAIN(save, DT_MSG_SAVE)
        AGAIN(saved, DT_MSG_SAVED)
        AGAIN(pulse, DT_MSG_PULSE)
    case DT_MSG_BROKEN:
    case DT_MSG_FAILED:
    case DT_MSG_END: {
        static struct dt_msg_failed m;
        int rc = dt_unpack_failed(f, &m);
        return rc < 0 ? rc : dt_pack_failed(packed, sizeof packed, f->type, f->rank, &m);
    }
    default:
        return DT_E_DATA;
    }
}

static void use_frame(const struct dt_frame *f)
{
    int64_t n = again(f);
    if (n < 0 && n != DT_E_DATA)
        abort();
    if (n < 0)
        return;
    if ((size_t)n != DT_MESSAGE_HEADER + f->bytes ||
        memcmp(packed + DT_MESSAGE_HEADER, f->payload, f->bytes) != 0)
        abort();
}

/* Two votes of one step, cut from one input, are added; either may be refused. */
static void use_votes(const uint8_t *data, size_t size)
{
    static struct dt_msg_vote a, b;
    struct dt_frame f = {DT_MSG_VOTE, 0, data, size / 2};
    struct dt_frame g = {DT_MSG_VOTE, 0, data + size / 2, size - size / 2};
    if (dt_unpack_vote(&f, &a) == DT_OK && dt_unpack_vote(&g, &b) == DT_OK)
        (void)dt_msg_vote_merge(&a, &b);
}

static void use_payload(int type, const uint8_t *data, size_t size)
{
    /* Memory of exactly this size: a step beyond it is seen. */
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        return;
    if (size)
        memcpy(copy, data, size);
    struct dt_frame f = {type % DT_MSG_TYPES, 3, copy, size};
    use_frame(&f);
    if (f.type == DT_MSG_VOTE)
        use_votes(copy, size);
    free(copy);
}

static void use_stream(enum dt_link_side side, size_t piece, const uint8_t *data, size_t size)
{
    int s[2];
    struct dt_link *l;
    static const struct dt_secret secret = {{7}};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, s) != 0)
        abort();
    if (dt_link_new(s[0], side, &secret, 60, &l) != DT_OK)
        abort();
    int rc = DT_OK;
    for (size_t at = 0; at <= size && rc == DT_OK; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        if (n > 0 && send(s[1], data + at, n, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)n)
            break;
        struct dt_frame f;
        rc = dt_link_ready(l, POLLIN);
        while (dt_link_next(l, &f))
            use_frame(&f);
    }
    if (rc != DT_OK && rc != DT_E_DATA)
        abort();
    close(s[1]);
    if (rc == DT_OK)
        rc = dt_link_ready(l, POLLIN | POLLHUP);
    if (rc != DT_OK && rc != DT_E_DATA && rc != DT_E_PEER)
        abort();
    dt_link_free(l);
}

static const char *fixed_name(void)
{
    return "fixed";
}

static uint32_t fixed_random(void)
{
    return 42;
}

static void fixed_bytes(void *const to, const size_t n)
{
    memset(to, 42, n);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    static randombytes_implementation fixed = {
        .implementation_name = fixed_name, .random = fixed_random, .buf = fixed_bytes};
    return randombytes_set_implementation(&fixed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t piece = data[1] ? data[1] : 4096;
    switch (data[0] % 4) {
    case 0:
        use_payload(data[1], data + 2, size - 2);
        break;
    case 1:
        use_stream(DT_LINK_PLAIN, piece, data + 2, size - 2);
        break;
    case 2:
        use_stream(DT_LINK_LISTENER, piece, data + 2, size - 2);
        break;
    default:
        use_stream(DT_LINK_CALLER, piece, data + 2, size - 2);
    }
    return 0;
}
