/* Workers that are threads of one process: a transport for tests, with UCX's manners.
 *
 * The hub has a mailbox for each receiving worker and one lock for all. Whoever comes second to a
 * message copies it; a request of another worker that is over by that goes to a list of its
 * worker's, which its own thread empties in `progress`. A send is over only when its receive has
 * been posted, as with a rendezvous. A worker that leaves fails the sends to it; receives from it
 * stay, as they would. */
#include "base/arena.h"
#include "comm/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOST SIZE_MAX /* `moved` of a send whose receiver left */

struct seat {
    struct dt_comm_transport transport;
    struct dt_comm_hub *hub;
    struct comm__mailbox box;     /* messages to this worker */
    struct dt_comm_request *over; /* this worker's, finished by others; linked by handle */
    int32_t rank;
    int wake; /* eventfd */
    bool gone;
};

struct dt_comm_hub {
    pthread_mutex_t lock;
    int32_t size;
    struct seat seats[];
};

int dt_comm_hub_new(int32_t size, struct dt_comm_hub **out)
{
    unsigned char *memory;
    DT_TRY(DT_NEW(&memory, sizeof(struct dt_comm_hub) + (size_t)size * sizeof(struct seat)));
    struct dt_comm_hub *h = (void *)memory;
    pthread_mutex_init(&h->lock, NULL);
    h->size = size;
    *out = h;
    return DT_OK;
}

void dt_comm_hub_free(struct dt_comm_hub *h)
{
    if (h)
        pthread_mutex_destroy(&h->lock);
    free(h);
}

static int address(void *self, const void **data, size_t *bytes)
{
    struct seat *s = self;
    *data = &s->rank;
    *bytes = sizeof s->rank;
    return DT_OK;
}

static int connect_all(void *self, const struct dt_comm_address *table, int32_t size)
{
    struct seat *s = self;
    if (size != s->hub->size)
        return DT_FAIL(DT_E_INTERNAL, "a table of %d workers in a hub of %d", (int)size,
                       (int)s->hub->size);
    for (int32_t i = 0; i < size; i++)
        if (table[i].bytes != sizeof i || memcmp(table[i].data, &i, sizeof i) != 0)
            return DT_FAIL(DT_E_INTERNAL, "the address of worker %d is not its own", (int)i);
    return DT_OK;
}

/* With the lock held: tells the owner of r, another worker, that it is over. */
static void hand_back(struct seat *owner, struct dt_comm_request *r)
{
    r->handle = owner->over;
    owner->over = r;
    eventfd_write(owner->wake, 1);
}

static int lost(const struct dt_comm_request *r)
{
    return DT_FAIL(DT_E_PEER, "worker %d is lost: it left", (int)r->peer);
}

static void start(void *self, struct dt_comm_request *r, uint64_t tag)
{
    (void)tag; /* the mailbox takes it from the request */
    struct seat *s = self;
    struct dt_comm_hub *h = s->hub;
    pthread_mutex_lock(&h->lock);
    struct seat *peer = &h->seats[r->peer];
    bool gone = r->send && peer->gone;
    struct dt_comm_request *other =
        gone ? NULL : comm__mailbox_meet(r->send ? &peer->box : &s->box, r);
    if (other) {
        comm__mailbox_deliver(r, other);
        hand_back(peer, other);
    }
    pthread_mutex_unlock(&h->lock);
    if (gone)
        dt_comm_over(r, lost(r));
    else if (other)
        dt_comm_over(r, DT_OK);
}

static int progress(void *self)
{
    struct seat *s = self;
    pthread_mutex_lock(&s->hub->lock);
    struct dt_comm_request *r = s->over;
    s->over = NULL;
    eventfd_t ignored;
    eventfd_read(s->wake, &ignored);
    pthread_mutex_unlock(&s->hub->lock);
    int count = 0;
    while (r) {
        struct dt_comm_request *next = r->handle;
        dt_comm_over(r, r->send && r->moved == LOST ? lost(r) : DT_OK);
        r = next;
        count++;
    }
    return count;
}

static int arm(void *self)
{
    (void)self; /* the descriptor stays readable until progress has looked */
    return 1;
}

static int descriptor(void *self)
{
    const struct seat *s = self;
    return s->wake;
}

static void path(void *self, int32_t peer, char *out, size_t size)
{
    (void)self;
    (void)peer;
    if (size > strlen("memory"))
        strcpy(out, "memory");
}

/* Takes the requests of `from` out of the box; with `from` NULL all, handing sends back as lost. */
static void clear(struct seat *box_of, const struct seat *from)
{
    struct dt_comm_request **at = (struct dt_comm_request **)&box_of->box.first, *kept = NULL;
    struct dt_comm_request *r = *at, *last = NULL;
    while (r) {
        struct dt_comm_request *next = r->handle;
        struct seat *owner = &box_of->hub->seats[r->send ? r->comm->rank : box_of->rank];
        if (from && owner != from) {
            r->handle = NULL;
            if (last)
                last->handle = r;
            else
                kept = r;
            last = r;
        } else if (owner != box_of && !from) {
            r->moved = LOST;
            hand_back(owner, r);
        }
        r = next;
    }
    *at = kept;
}

static void close_seat(void *self, bool orderly)
{
    (void)orderly; /* what was sent has been received */
    struct seat *s = self;
    struct dt_comm_hub *h = s->hub;
    pthread_mutex_lock(&h->lock);
    s->gone = true;
    clear(s, NULL);
    for (int32_t i = 0; i < h->size; i++)
        if (h->seats[i].hub && &h->seats[i] != s)
            clear(&h->seats[i], s);
    s->over = NULL;
    close(s->wake);
    pthread_mutex_unlock(&h->lock);
}

int dt_comm_local_new(struct dt_comm_hub *h, int32_t rank, struct dt_comm_transport **out)
{
    struct seat *s = &h->seats[rank];
    int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake < 0)
        return DT_FAIL(DT_E_IO, "cannot make an eventfd: %s", strerror(errno));
    pthread_mutex_lock(&h->lock);
    s->transport = (struct dt_comm_transport){s,        address, connect_all, start, start,
                                              progress, arm,     descriptor,  path,  close_seat};
    s->hub = h;
    s->rank = rank;
    s->wake = wake;
    pthread_mutex_unlock(&h->lock);
    *out = &s->transport;
    return DT_OK;
}
