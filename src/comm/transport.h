/* What the communication thread needs of a transport. All functions but `wake` are called from one
 * thread at a time (the opener until the thread starts, then the thread). */
#ifndef DT_COMM_TRANSPORT_H
#define DT_COMM_TRANSPORT_H

#include "comm/comm.h"

struct dt_comm_transport {
    void *self;
    int (*address)(void *self, const void **data, size_t *bytes);
    int (*connect)(void *self, const struct dt_comm_address *table, int32_t size);
    /* Start one transfer to or from another worker; when it is over set r->moved (of a receive) and
     * call dt_comm_over(r, rc) from within this call, progress or close. A send is over only when
     * its receive has been posted. */
    void (*send)(void *self, struct dt_comm_request *r, uint64_t tag);
    void (*recv)(void *self, struct dt_comm_request *r, uint64_t tag);
    /* Move things on; returns how much happened (0: nothing), or a failure, which ends the epoch.
     */
    int (*progress)(void *self);
    /* Sleep preparation: 1 when the thread may poll descriptor() now, 0 when there is more to do.
     */
    int (*arm)(void *self);
    int (*descriptor)(void *self);
    void (*path)(void *self, int32_t peer, char *out, size_t size);
    /* Lets go of every request, waiting for no peer, and frees itself. `orderly`: nothing is
     * pending and no peer is known to be lost, so what is still on its way (acknowledgements) goes
     * out. */
    void (*close)(void *self, bool orderly);
};

/* The communication thread's answer to a transport: request r is over; a failure's words are in
 * this thread's trail. */
void dt_comm_over(struct dt_comm_request *r, int rc);

/* UCX over what UCX_TLS allows; the environment must stand before the program starts
 * (dt_comm_environment). DT_E_UNSUPPORTED: UCX is not installed; DT_E_CONFIG: a UCX_TLS that is not
 * safe here; DT_E_IO with UCX's words. */
int dt_comm_ucx_new(int32_t rank, int32_t size, int64_t epoch, struct dt_comm_transport **out);
/* Settings of UCX_* for a process about to be spawned, as NAME=value, none that the user already
 * set in `environ`: local (all workers on this machine): bound to `lo`; else to `device`. Ends with
 * NULL; strings are static or in buf. DT_E_CONFIG: no device, or one whose name is too long. */
int dt_comm_environment(bool local, const char *device, char *buf, size_t size,
                        const char *settings[16]);

/* Workers that are threads of one process, for tests. One hub for `size` workers and one epoch. */
struct dt_comm_hub;
int dt_comm_hub_new(int32_t size, struct dt_comm_hub **out);
void dt_comm_hub_free(struct dt_comm_hub *h); /* after all its transports are closed */
int dt_comm_local_new(struct dt_comm_hub *h, int32_t rank, struct dt_comm_transport **out);

#endif
