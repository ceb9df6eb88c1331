/* Workers that are threads of one process: the transport of unit tests and of the thread sanitizer.
 *
 * A hub has one mailbox for each receiver. Whoever finds the counterpart of a message there
 * delivers it and puts both on the lists of what is over, one of each side's; a side ends its
 * requests in its own progress, as UCX does. A send is over only when its receive was posted. */
#include "base/arena.h"
#include "comm/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct side {
    struct dt_comm_transport functions;
    struct dt_comm_hub *hub;
    int32_t rank;
    int news;                     /* eventfd: something is over */
    struct dt_comm_request *over; /* linked by handle, newest first */
};

struct dt_comm_hub {
    pthread_mutex_t lock; /* for everything in it */
    int32_t size;
    struct side **sides;         /* [size] NULL: not opened yet */
    struct comm__mailbox *boxes; /* [size] messages to each side, whether it is open yet or not */
    bool *closed;                /* [size] */
};

int dt_comm_hub_new(int32_t size, struct dt_comm_hub **out)
{
    struct dt_comm_hub *h;
    DT_TRY(DT_NEW(&h, 1));
    pthread_mutex_init(&h->lock, NULL);
    int rc = DT_NEW(&h->sides, size);
    h->size = rc < 0 ? 0 : size;
    if (rc >= 0)
        rc = DT_NEW(&h->boxes, size);
    if (rc >= 0)
        rc = DT_NEW(&h->closed, size);
    if (rc < 0) {
        dt_comm_hub_free(h);
        return rc;
    }
    *out = h;
    return DT_OK;
}

void dt_comm_hub_free(struct dt_comm_hub *h)
{
    for (int32_t i = 0; i < h->size; i++)
        if (h->sides[i]) {
            close(h->sides[i]->news);
            free(h->sides[i]);
        }
    pthread_mutex_destroy(&h->lock);
    free(h->sides);
    free(h->boxes);
    free(h->closed);
    free(h);
}

static int address(void *self, const void **data, size_t *bytes)
{
    struct side *s = self;
    *data = &s->rank;
    *bytes = sizeof s->rank;
    return DT_OK;
}

static int connect_all(void *self, const struct dt_comm_address *table, int32_t size)
{
    (void)self, (void)table, (void)size;
    return DT_OK;
}

/* With the lock held: r, of side s, ends at that side's next progress. */
static void put_over(struct side *s, struct dt_comm_request *r)
{
    r->handle = s->over;
    s->over = r;
    eventfd_write(s->news, 1);
}

/* With the lock held: r is posted by side s; the box is the receiver's. */
static void post(struct side *s, struct dt_comm_request *r)
{
    int32_t receiver = r->send ? r->peer : s->rank;
    if (s->hub->closed[r->peer])
        return; /* pending for ever, like a message to a dead peer */
    struct dt_comm_request *other = comm__mailbox_meet(&s->hub->boxes[receiver], r);
    if (!other)
        return;
    comm__mailbox_deliver(r, other);
    put_over(s, r);
    put_over(s->hub->sides[r->peer], other);
}

static void transfer(void *self, struct dt_comm_request *r, uint64_t tag)
{
    struct side *s = self;
    (void)tag;
    pthread_mutex_lock(&s->hub->lock);
    post(s, r);
    pthread_mutex_unlock(&s->hub->lock);
}

static int progress(void *self)
{
    struct side *s = self;
    eventfd_t ignored;
    int n = 0;
    eventfd_read(s->news, &ignored);
    for (;; n++) {
        pthread_mutex_lock(&s->hub->lock);
        struct dt_comm_request *r = s->over;
        if (r)
            s->over = r->handle;
        pthread_mutex_unlock(&s->hub->lock);
        if (!r)
            return n;
        dt_comm_over(r, DT_OK);
    }
}

static int arm(void *self)
{
    struct side *s = self;
    pthread_mutex_lock(&s->hub->lock);
    bool quiet = s->over == NULL;
    pthread_mutex_unlock(&s->hub->lock);
    return quiet;
}

static int descriptor(void *self)
{
    return ((struct side *)self)->news;
}

static void path(void *self, int32_t peer, char *out, size_t size)
{
    (void)self, (void)peer;
    snprintf(out, size, "memory");
}

/* What this side has posted must not be found by others any more. */
static void forget(struct comm__mailbox *box, const struct side *s)
{
    struct dt_comm_request *kept = NULL, *next;
    for (struct dt_comm_request *r = box->first; r; r = next) {
        next = r->handle;
        if (r->comm->rank == s->rank)
            continue;
        r->handle = kept;
        kept = r;
    }
    box->first = NULL;
    for (struct dt_comm_request *r = kept; r; r = next) { /* back into their order */
        next = r->handle;
        r->handle = box->first;
        box->first = r;
    }
}

static void close_side(void *self, bool orderly)
{
    struct side *s = self;
    (void)orderly;
    pthread_mutex_lock(&s->hub->lock);
    for (int32_t i = 0; i < s->hub->size; i++)
        forget(&s->hub->boxes[i], s);
    s->over = NULL;
    s->hub->closed[s->rank] = true;
    pthread_mutex_unlock(&s->hub->lock);
}

int dt_comm_local_new(struct dt_comm_hub *h, int32_t rank, struct dt_comm_transport **out)
{
    struct side *s;
    DT_TRY(DT_NEW(&s, 1));
    s->hub = h;
    s->rank = rank;
    s->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->news < 0) {
        free(s);
        return DT_FAIL(DT_E_IO, "cannot make an eventfd: %s", strerror(errno));
    }
    s->functions = (struct dt_comm_transport){.self = s,
                                              .address = address,
                                              .connect = connect_all,
                                              .send = transfer,
                                              .recv = transfer,
                                              .progress = progress,
                                              .arm = arm,
                                              .descriptor = descriptor,
                                              .path = path,
                                              .close = close_side};
    pthread_mutex_lock(&h->lock);
    h->sides[rank] = s;
    pthread_mutex_unlock(&h->lock);
    *out = &s->functions;
    return DT_OK;
}
