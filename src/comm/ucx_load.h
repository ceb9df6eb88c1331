/* UCX, loaded when the first worker needs it: who trains with one worker needs no UCX, and a
 * missing library is words, not a program that does not start. Every function used stands in one
 * list; a call is ucx->NAME(...). */
#ifndef DT_COMM_UCX_LOAD_H
#define DT_COMM_UCX_LOAD_H

#include <ucp/api/ucp.h>

#define COMM__UCX_FUNCTIONS(X)                                                                     \
    X(ucp_config_read)                                                                             \
    X(ucp_config_release)                                                                          \
    X(ucp_init_version)                                                                            \
    X(ucp_cleanup)                                                                                 \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_arm)                                                                              \
    X(ucp_worker_progress)                                                                         \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_ep_print_info)                                                                           \
    X(ucp_tag_send_sync_nbx)                                                                       \
    X(ucp_tag_recv_nbx)                                                                            \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucs_status_string)

struct comm__ucx {
#define X(name) __typeof__(name) *name;
    COMM__UCX_FUNCTIONS(X)
#undef X
};

/* DT_E_UNSUPPORTED: UCX is not installed, or lacks a function. */
int comm__ucx_load(const struct comm__ucx **out);

#endif
