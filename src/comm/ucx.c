/* The UCX transport: UCP tag messages.
 *
 * A context and a worker of its own for every epoch, thrown away whole with everything pending, so
 * that nothing of an older membership can arrive. Errors of endpoints are hints: they end the epoch
 * with the peer's number, the coordinator says who really died.
 *
 * What to know before changing it (measured): the posix transport is unsafe with epochs, since it
 * attaches through /proc/PID/fd and may reach a peer's next worker; peer error handling drops
 * shared memory unless UCX_MM_ERROR_HANDLING=y stands in the environment before the library is
 * loaded; ucp_worker_arm says busy for as long as a send is pending, so whoever retries must look
 * elsewhere in between (thread.c does). */
#include "base/arena.h"
#include "base/clock.h"
#include "comm/internal.h"
#include "comm/ucx_load.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EAGER_ENDPOINTS = 64 }; /* up to so many workers all are connected at once */
#define FLUSH_SECONDS 1.0

struct peer {
    int64_t pending;     /* requests under way */
    ucs_status_t broken; /* why its endpoint failed; UCS_OK: it did not */
};

struct transport {
    struct dt_comm_transport functions;
    const struct comm__ucx *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int32_t rank, size;
    ucp_ep_h *endpoints; /* [size], NULL: not made yet */
    void **addresses;    /* [size] copies, for endpoints that are made late */
    struct peer *peers;  /* [size] */
    bool news;           /* an endpoint failed since progress looked */
};

static int fail(const struct transport *t, const char *what, ucs_status_t status)
{
    return DT_FAIL(DT_E_IO, "UCX: %s: %s", what, t->ucx->ucs_status_string(status));
}

/* ---- Environment ---- */

/* Transports that would attach to a peer's file by number. */
static int check_transports(void)
{
    static const char *const unsafe[] = {"posix", "shm", "sm", "mm", "all", NULL};
    const char *text = getenv("UCX_TLS");
    char list[256], *save;
    if (!text || text[0] == '^')
        return DT_OK;
    snprintf(list, sizeof list, "%s", text);
    for (char *word = strtok_r(list, ",", &save); word; word = strtok_r(NULL, ",", &save))
        for (int i = 0; unsafe[i]; i++)
            if (strcmp(word, unsafe[i]) == 0)
                return DT_FAIL(DT_E_CONFIG,
                               "UCX_TLS=%.80s includes %s, which is not safe when workers come and "
                               "go; use sysv,cma,tcp,self or tcp,self",
                               text, word);
    return DT_OK;
}

static bool add_setting(const char *settings[16], int *n, const char *setting)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(setting, "="), setting);
    if (getenv(name))
        return false;
    settings[(*n)++] = setting;
    settings[*n] = NULL;
    return true;
}

int dt_comm_environment(bool local, const char *device, char *buf, size_t size,
                        const char *settings[16])
{
    /* DEBUG_SIGNO: without it UCX takes SIGHUP for a wish to read debug messages. Not set on
     * purpose: UCX_CMA_MEMORY_INVALIDATE=y, with which endpoints that notice a lost peer would use
     * CMA (1.4 times faster between local workers); UCX 1.13 then fails an assertion in a survivor
     * in one of six deaths, and survivors are what epochs are for. */
    static const char *const fixed[] = {"UCX_TLS=sysv,cma,tcp,self", "UCX_MM_ERROR_HANDLING=y",
                                        "UCX_KEEPALIVE_INTERVAL=1s", "UCX_HANDLE_ERRORS=none",
                                        "UCX_LOG_LEVEL=error",       "UCX_DEBUG_SIGNO=0"};
    int n = 0;
    settings[0] = NULL;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        add_setting(settings, &n, fixed[i]);
    if (!local && (!device || !device[0]))
        return DT_FAIL(DT_E_CONFIG, "no network device is named for the data between machines");
    if (snprintf(buf, size, "UCX_NET_DEVICES=%s", local ? "lo" : device) >= (int)size)
        return DT_FAIL(DT_E_CONFIG, "the name of network device %.40s is too long", device);
    add_setting(settings, &n, buf);
    return DT_OK;
}

/* ---- Endpoints ---- */

static void on_broken(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    struct transport *t = arg;
    for (int32_t i = 0; i < t->size; i++)
        if (t->endpoints[i] == endpoint)
            t->peers[i].broken = status;
    t->news = true;
}

static int make_endpoint(struct transport *t, int32_t peer)
{
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLER,
                         .address = t->addresses[peer],
                         .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                         .err_handler = {.cb = on_broken, .arg = t}};
    ucs_status_t status = t->ucx->ucp_ep_create(t->worker, &p, &t->endpoints[peer]);
    return status == UCS_OK ? DT_OK : fail(t, "connecting to another worker", status);
}

static int address(void *self, const void **data, size_t *bytes)
{
    struct transport *t = self;
    *data = t->address;
    *bytes = t->address_bytes;
    return DT_OK;
}

static int connect_all(void *self, const struct dt_comm_address *table, int32_t size)
{
    struct transport *t = self;
    for (int32_t i = 0; i < size; i++) {
        if (i == t->rank)
            continue;
        DT_TRY(dt_new_bytes(&t->addresses[i], table[i].bytes));
        memcpy(t->addresses[i], table[i].data, table[i].bytes);
        if (size <= EAGER_ENDPOINTS)
            DT_TRY(make_endpoint(t, i));
    }
    return DT_OK;
}

/* ---- Messages ---- */

static int lost(const struct transport *t, int32_t peer)
{
    return DT_FAIL(DT_E_PEER, "the connection to worker %d broke: %s", peer,
                   t->ucx->ucs_status_string(t->peers[peer].broken));
}

/* False, with r over: its peer is known to be lost. */
static bool begin(struct transport *t, struct dt_comm_request *r)
{
    if (t->peers[r->peer].broken != UCS_OK) {
        dt_comm_over(r, lost(t, r->peer));
        return false;
    }
    t->peers[r->peer].pending++;
    return true;
}

static void over(const struct transport *t, struct dt_comm_request *r, ucs_status_t status)
{
    int rc = DT_OK;
    t->peers[r->peer].pending--;
    if (status == UCS_ERR_MESSAGE_TRUNCATED)
        rc = DT_FAIL(DT_E_INTERNAL,
                     "a message from worker %d is longer than the %zu bytes expected; the workers "
                     "disagree about what is sent",
                     r->peer, r->bytes);
    else if (status != UCS_OK)
        rc = DT_FAIL(DT_E_PEER, "%s worker %d: %s", r->send ? "sending to" : "receiving from",
                     r->peer, t->ucx->ucs_status_string(status));
    dt_comm_over(r, rc);
}

/* The transport of a request, for UCX's callbacks. */
static const struct transport *of(const struct dt_comm_request *r)
{
    return r->comm->transport->self;
}

static void on_sent(void *request, ucs_status_t status, void *user)
{
    const struct transport *t = of(user);
    t->ucx->ucp_request_free(request);
    over(t, user, status);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *user)
{
    struct dt_comm_request *r = user;
    const struct transport *t = of(r);
    r->moved = status == UCS_OK ? info->length : 0;
    t->ucx->ucp_request_free(request);
    over(t, r, status);
}

/* A synchronous send is over when its receive has been matched. So who has nothing pending may
 * leave: all that it sent has arrived. And a peer that left owes nothing: what is pending with it,
 * even a receive, will never come, and all else is not touched by it. */
static void send_message(void *self, struct dt_comm_request *r, uint64_t tag)
{
    struct transport *t = self;
    ucp_request_param_t p = {.op_attr_mask =
                                 UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                             .cb.send = on_sent,
                             .user_data = r};
    if (!t->endpoints[r->peer]) {
        int rc = make_endpoint(t, r->peer);
        if (rc < 0) {
            dt_comm_over(r, rc);
            return;
        }
    }
    if (!begin(t, r))
        return;
    void *request =
        t->ucx->ucp_tag_send_sync_nbx(t->endpoints[r->peer], r->data, r->bytes, tag, &p);
    if (!UCS_PTR_IS_PTR(request))
        over(t, r, UCS_PTR_STATUS(request));
}

static void receive_message(void *self, struct dt_comm_request *r, uint64_t tag)
{
    struct transport *t = self;
    ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                             UCP_OP_ATTR_FIELD_USER_DATA |
                                             UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                             .cb.recv = on_received,
                             .user_data = r};
    if (!begin(t, r))
        return;
    void *request = t->ucx->ucp_tag_recv_nbx(t->worker, r->data, r->bytes, tag, UINT64_MAX, &p);
    if (UCS_PTR_IS_ERR(request))
        over(t, r, UCS_PTR_STATUS(request));
}

static int progress(void *self)
{
    struct transport *t = self;
    int moved = (int)t->ucx->ucp_worker_progress(t->worker);
    for (int32_t i = 0; t->news && i < t->size; i++)
        if (t->peers[i].broken != UCS_OK && t->peers[i].pending > 0)
            return lost(t, i);
    t->news = false;
    return moved;
}

static int arm(void *self)
{
    struct transport *t = self;
    return t->ucx->ucp_worker_arm(t->worker) == UCS_OK;
}

static int descriptor(void *self)
{
    struct transport *t = self;
    int fd = -1;
    return t->ucx->ucp_worker_get_efd(t->worker, &fd) == UCS_OK ? fd : -1;
}

/* ---- How messages travel ---- */

/* UCX 1.13 tells only people: lines like "#   lane[1]:  3:cma/memory.0 md[3] ...". */
static void path(void *self, int32_t peer, char *out, size_t size)
{
    struct transport *t = self;
    char *text = NULL, *save;
    size_t bytes, used = 0;
    FILE *f = t->endpoints[peer] ? open_memstream(&text, &bytes) : NULL;
    out[0] = '\0';
    if (!f)
        return;
    t->ucx->ucp_ep_print_info(t->endpoints[peer], f);
    fclose(f);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *lane = strstr(line, "lane["), *name = lane ? strchr(lane, ':') : NULL;
        name = name ? strchr(name + 1, ':') : NULL;
        size_t n = name ? strcspn(++name, "/ ") : 0;
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)n, name ? name : "");
        if (n > 0 && !strstr(out, word) && used + n + 2 < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "", word);
    }
    free(text);
}

/* ---- Opening and closing ---- */

/* Lets acknowledgements go out, for a moment; a lost peer is not waited for. */
static void close_endpoint(struct transport *t, ucp_ep_h endpoint, bool orderly, double until)
{
    ucp_request_param_t p = {.op_attr_mask = orderly ? 0 : UCP_OP_ATTR_FIELD_FLAGS,
                             .flags = UCP_EP_CLOSE_FLAG_FORCE};
    void *request = t->ucx->ucp_ep_close_nbx(endpoint, &p);
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (t->ucx->ucp_request_check_status(request) == UCS_INPROGRESS &&
           dt_clock_seconds() < until)
        if (t->ucx->ucp_worker_progress(t->worker) == 0)
            sched_yield();
    t->ucx->ucp_request_free(request);
}

static void close_transport(void *self, bool orderly)
{
    struct transport *t = self;
    double until = dt_clock_seconds() + FLUSH_SECONDS;
    for (int32_t i = 0; t->endpoints && i < t->size; i++)
        if (t->endpoints[i])
            close_endpoint(t, t->endpoints[i], orderly && t->peers[i].broken == UCS_OK, until);
    if (t->address)
        t->ucx->ucp_worker_release_address(t->worker, t->address);
    if (t->worker)
        t->ucx->ucp_worker_destroy(t->worker);
    if (t->context)
        t->ucx->ucp_cleanup(t->context);
    for (int32_t i = 0; t->addresses && i < t->size; i++)
        free(t->addresses[i]);
    free(t->addresses);
    free(t->endpoints);
    free(t->peers);
    free(t);
}

static int open_context(struct transport *t, int32_t size)
{
    ucp_config_t *config;
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                      .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                      .estimated_num_eps = (size_t)size};
    ucs_status_t status = t->ucx->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return fail(t, "reading the UCX_* settings", status);
    status = t->ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &p, config, &t->context);
    t->ucx->ucp_config_release(config);
    return status == UCS_OK ? DT_OK
                            : fail(t, "opening the transports (UCX_TLS, UCX_NET_DEVICES)", status);
}

static int open_worker(struct transport *t)
{
    ucp_worker_params_t p = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                             .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = t->ucx->ucp_worker_create(t->context, &p, &t->worker);
    if (status != UCS_OK)
        return fail(t, "opening a worker", status);
    status = t->ucx->ucp_worker_get_address(t->worker, &t->address, &t->address_bytes);
    return status == UCS_OK ? DT_OK : fail(t, "asking for an address", status);
}

int dt_comm_ucx_new(int32_t rank, int32_t size, int64_t epoch, struct dt_comm_transport **out)
{
    struct transport *t;
    int rc;
    (void)epoch; /* it is in the tags */
    DT_TRY(check_transports());
    DT_TRY(DT_NEW(&t, 1));
    t->rank = rank;
    t->size = size;
    DT_CHECK(fail, rc, comm__ucx_load(&t->ucx));
    DT_CHECK(fail, rc, DT_NEW(&t->endpoints, size));
    DT_CHECK(fail, rc, DT_NEW(&t->addresses, size));
    DT_CHECK(fail, rc, DT_NEW(&t->peers, size));
    DT_CHECK(fail, rc, open_context(t, size));
    DT_CHECK(fail, rc, open_worker(t));
    t->functions = (struct dt_comm_transport){.self = t,
                                              .address = address,
                                              .connect = connect_all,
                                              .send = send_message,
                                              .recv = receive_message,
                                              .progress = progress,
                                              .arm = arm,
                                              .descriptor = descriptor,
                                              .path = path,
                                              .close = close_transport};
    *out = &t->functions;
    return DT_OK;
fail:
    close_transport(t, false);
    return rc;
}
