/* Putting the pieces together: who is coordinator, who is agent, and on which addresses. */
#include "cluster/cluster.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "cluster/agent.h"
#include "cluster/coordinator.h"
#include "cluster/network.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DIAL_SECONDS 2.0
#define RETRY_MICROSECONDS 200000
#define FIND_SECONDS 5.0
#define HANDSHAKE_LOOK 100 /* milliseconds between looks at its deadline */
#define REFUSALS 3 /* a busy coordinator may send a caller away, a willing one not so often */
#define MEASURE_TIMEOUT 60.0 /* a pair waits while others measure, on a busy machine for long */

/* ---- Secret and addresses ---- */

static int find_secret(const char *file, bool may_make, struct dt_secret *out)
{
    const char *text = getenv("DUCTILE_SECRET");
    if (text && *text)
        return dt_secret_parse(text, "DUCTILE_SECRET", out);
    if (file)
        return dt_secret_read(file, out);
    if (!may_make)
        return DT_FAIL(DT_E_CONFIG,
                       "no secret: set DUCTILE_SECRET, or give --secret FILE (mode 0600); the "
                       "coordinator's is in its run's directory in .control");
    dt_secret_make(out);
    return DT_OK;
}

static int local_address(const char *network, char address[DT_ADDRESS], char device[DT_ADDRESS])
{
    snprintf(address, DT_ADDRESS, "127.0.0.1");
    snprintf(device, DT_ADDRESS, "lo");
    return network ? dt_network_find(network, address, device) : DT_OK;
}

/* ---- Coordinator and agent in one process ---- */

struct both {
    struct dt_coordinator_options coordinator;
    struct dt_agent_options agent;
    char **result;
};

/* The coordinator in a thread, the agent in this one, which is the one that may spawn. */
static int run_both(struct both *b)
{
    struct dt_coordinator *c;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return DT_FAIL(DT_E_IO, "cannot make a socket pair: %s", strerror(errno));
    int rc = dt_link_new(pair[0], DT_LINK_PLAIN, NULL, 0, &b->coordinator.inside);
    if (rc >= 0)
        rc = dt_link_new(pair[1], DT_LINK_PLAIN, NULL, 0, &b->agent.link);
    else
        close(pair[1]);
    if (rc < 0)
        return rc;
    rc = dt_coordinator_start(&b->coordinator, &c);
    if (rc < 0) {
        dt_link_free(b->agent.link);
        return rc;
    }
    int agent = dt_agent_run(&b->agent);
    int verdict = dt_coordinator_join(c, b->result);
    return verdict < 0 ? verdict : agent;
}

static int listen_and_tell(const struct dt_run_config *c, const struct dt_launch *l,
                           struct dt_coordinator_options *o, const char *address)
{
    struct dt_control_file file = {.pid = getpid()};
    int port = (int)(l->port > 0 ? l->port : c->cluster.port);
    bool chosen = c->cluster.port > 0;
    int rc = dt_listen(address, &port, &o->listen_fd);
    if (rc < 0 && !chosen &&
        port > 0) { /* torchrun's own store has the port: .control tells ours */
        port = 0;
        rc = dt_listen(address, &port, &o->listen_fd);
    }
    DT_TRY(rc);
    file.port = (int32_t)port;
    gethostname(file.host, sizeof file.host - 1);
    snprintf(file.address, sizeof file.address, "%s", address);
    snprintf(file.job, sizeof file.job, "%s", l->job);
    dt_secret_print(&o->secret, file.secret);
    DT_TRY(dt_control_file_write(c->output, &file));
    if (o->agents > 1)
        dt_info("coordinator: %s:%d, waiting for %lld machines", address, port,
                (long long)o->agents);
    return DT_OK;
}

static int coordinate(struct dt_run *run, const struct dt_launch *l, struct dt_book *book)
{
    const struct dt_run_config *c = run->config;
    char address[DT_ADDRESS], device[DT_ADDRESS], *yaml = NULL;
    size_t size;
    int64_t agents = l->size > 1 ? l->size : c->cluster.agents;
    FILE *f = open_memstream(&yaml, &size);
    if (!f)
        return DT_FAIL(DT_E_MEMORY, "no memory for the workers' configuration");
    dt_run_config_print(c, f);
    fclose(f);
    struct both b = {.coordinator = {.job = {.kind = DT_JOB_TRAIN,
                                             .workers = (int32_t)c->workers,
                                             .epoch = 1,
                                             .timeout = c->cluster.timeout,
                                             .start_timeout = c->cluster.start_timeout,
                                             .yaml = yaml,
                                             .first = run->first,
                                             .checkpoint = run->checkpoint,
                                             .checkpoints = run->checkpoints},
                                     .book = book,
                                     .agents = agents,
                                     .threads = c->threads,
                                     .output = c->output,
                                     .launcher_job = l->job,
                                     .local = !c->cluster.network,
                                     .listen_fd = -1},
                     .agent = {.job = l->job, .node = 0, .workers = l->workers, .inside = true}};
    int rc = local_address(c->cluster.network, address, device);
    b.agent.address = c->cluster.network ? address : "";
    b.agent.device = c->cluster.network ? device : "";
    if (rc >= 0)
        rc = find_secret(c->cluster.secret, true, &b.coordinator.secret);
    if (rc >= 0)
        rc = listen_and_tell(c, l, &b.coordinator, address);
    if (rc >= 0)
        rc = run_both(&b);
    dt_control_file_remove(c->output);
    free(yaml);
    return rc;
}

static int train_together(const struct dt_run_config *config,
                          const struct dt_train_options *options, const struct dt_launch *l)
{
    struct dt_run run;
    struct dt_book book = {.statm = -1};
    dt_signals_install();
    int rc = dt_run_open(&run, config, options);
    if (rc >= 0 && dt_run_has_work(&run)) {
        rc = dt_book_open(&book, &run);
        if (rc >= 0)
            rc = coordinate(&run, l, &book);
    }
    dt_book_close(&book);
    dt_run_close(&run);
    return rc;
}

/* ---- A machine that joins ---- */

static int shake_hands(struct dt_link *l)
{
    int rc = DT_OK;
    while (rc >= 0 && !dt_link_trusted(l)) {
        struct pollfd p = {.fd = dt_link_fd(l), .events = dt_link_events(l)};
        poll(&p, 1, HANDSHAKE_LOOK);
        rc = dt_link_ready(l, p.revents);
    }
    return rc;
}

/* DT_E_CONFIG: somebody answers and does not want this process, which trying again hardly mends. */
static int join(const char *host, int port, const struct dt_secret *secret,
                struct dt_agent_options *o)
{
    int fd;
    DT_TRY(dt_dial(host, port, DIAL_SECONDS, &fd));
    DT_TRY(dt_link_new(fd, DT_LINK_CALLER, secret, FIND_SECONDS, &o->link));
    int rc = shake_hands(o->link);
    if (rc >= 0)
        return DT_OK;
    dt_link_free(o->link);
    o->link = NULL;
    return rc == DT_E_TIMEOUT ? rc : DT_FAIL(DT_E_CONFIG, "%s", dt_error_message());
}

/* A coordinator without a trusted network listens on its own machine's loopback only. */
static int check_reachable(const struct dt_control_file *f)
{
    char host[sizeof f->host] = "";
    gethostname(host, sizeof host - 1);
    if (strcmp(f->address, "127.0.0.1") != 0 || strcmp(f->host, host) == 0)
        return DT_OK;
    return DT_FAIL(DT_E_CONFIG,
                   "the coordinator is on host %s and listens there for its own machine only, this "
                   "is host %s; set cluster.network to the network between them",
                   f->host, host);
}

/* Where the first task is, is in .control, or in the launcher's variables. */
static int find_once(const struct dt_run_config *c, const struct dt_launch *l,
                     struct dt_agent_options *o)
{
    struct dt_control_file f;
    struct dt_secret secret;
    int rc = dt_control_file_read(c->output, &f);
    if (rc >= 0 && strcmp(f.job, l->job) == 0) {
        DT_TRY(check_reachable(&f));
        DT_TRY(dt_secret_parse(f.secret, ".control", &secret));
        return join(f.address, f.port, &secret, o);
    }
    if (l->host[0] && l->port > 0 && find_secret(c->cluster.secret, false, &secret) >= 0)
        return join(l->host, l->port, &secret, o);
    return rc < 0 ? rc
                  : DT_FAIL(DT_E_NOT_FOUND, "the run in %s is of job '%s', this task is of '%s'",
                            c->output, f.job, l->job);
}

/* A launcher's later task. What it reads may be left from an earlier run and be replaced in a
 * moment: so every failure is tried again, but a mistake of the user's is told at once. */
static int find_and_join(const struct dt_run_config *c, const struct dt_launch *l,
                         struct dt_agent_options *o)
{
    double until = dt_clock_seconds() + c->cluster.start_timeout;
    bool told = false;
    for (;;) {
        int rc = find_once(c, l, o);
        if (rc >= 0)
            return DT_OK;
        if (rc == DT_E_CONFIG && !told)
            dt_warn("%s", dt_error_message());
        told = told || rc == DT_E_CONFIG;
        if (dt_signals_stop_asked())
            return DT_FAIL(DT_E_STOPPED, "stopped while looking for the coordinator");
        if (dt_clock_seconds() > until)
            return dt_error_context(rc, "no coordinator was found within %.0f s",
                                    c->cluster.start_timeout);
        usleep(RETRY_MICROSECONDS);
    }
}

static int join_launched(const struct dt_run_config *c, const struct dt_launch *l)
{
    char address[DT_ADDRESS] = "", device[DT_ADDRESS] = "";
    struct dt_agent_options o = {.job = l->job,
                                 .address = address,
                                 .device = device,
                                 .node = l->rank,
                                 .workers = l->workers};
    dt_signals_install();
    if (c->cluster.network)
        DT_TRY(dt_network_find(c->cluster.network, address, device));
    DT_TRY(find_and_join(c, l, &o));
    return dt_agent_run(&o);
}

int dt_cluster_train(struct dt_run_config *config, const struct dt_train_options *options)
{
    struct dt_launch l;
    DT_TRY(dt_launch_detect(&l));
    if (l.workers > 0) /* mpirun -np N: N is the number */
        config->workers = (int64_t)l.workers * l.size;
    if (config->rates.count > 0 && config->rates.count != config->workers)
        return DT_FAIL(DT_E_CONFIG, "rates has %lld numbers, but %s started %lld workers",
                       (long long)config->rates.count, dt_launcher_name(l.kind),
                       (long long)config->workers);
    if (l.size > 1 && config->workers < l.size)
        return DT_FAIL(
            DT_E_CONFIG,
            "workers: %lld, but %s started %d tasks, each a machine of its own; set workers "
            "to at least %d",
            (long long)config->workers, dt_launcher_name(l.kind), l.size, l.size);
    if (l.rank > 0)
        return join_launched(config, &l);
    if (config->workers == 1 && l.size == 1 && config->cluster.agents == 1)
        return dt_train_run(config, options);
    return train_together(config, options, &l);
}

int dt_cluster_agent(const struct dt_agent_join *o)
{
    char address[DT_ADDRESS] = "", device[DT_ADDRESS] = "";
    struct dt_secret secret;
    struct dt_agent_options a = {.job = "", .address = address, .device = device, .node = -1};
    double until = dt_clock_seconds() + o->timeout;
    dt_signals_install();
    DT_TRY(find_secret(o->secret_file, false, &secret));
    if (o->network)
        DT_TRY(dt_network_find(o->network, address, device));
    for (int refusals = 0;;) {
        int rc = join(o->host, o->port, &secret, &a);
        if (rc >= 0)
            break;
        if (dt_signals_stop_asked())
            return DT_FAIL(DT_E_STOPPED, "stopped while looking for the coordinator");
        bool absent = rc == DT_E_PEER || rc == DT_E_TIMEOUT;
        if ((!absent && ++refusals == REFUSALS) || dt_clock_seconds() > until)
            return rc;
        usleep(RETRY_MICROSECONDS);
    }
    if (!o->network) {
        int rc = dt_network_of(dt_link_fd(a.link), address, device);
        if (rc < 0) {
            dt_link_free(a.link);
            return rc;
        }
    }
    dt_info("joined %s:%d", o->host, o->port);
    return dt_agent_run(&a);
}

/* ---- Looking at a run ---- */

int dt_cluster_status(const char *output, char **text)
{
    struct dt_control_file f;
    struct dt_secret secret;
    struct dt_agent_options o = {0};
    struct dt_frame answer;
    unsigned char frame[DT_MESSAGE_HEADER];
    DT_TRY(dt_control_file_read(output, &f));
    DT_TRY(dt_secret_parse(f.secret, ".control", &secret));
    int rc = join(f.address, f.port, &secret, &o);
    if (rc < 0)
        return dt_error_context(
            rc,
            "the coordinator of %s (host %s, process %lld) does not answer; was it "
            "killed?",
            output, f.host, (long long)f.pid);
    rc = dt_link_send(o.link, frame,
                      dt_pack_text(frame, sizeof frame, DT_MSG_STATUS, DT_EVERYBODY, "", 0));
    if (rc >= 0)
        rc = dt_link_await(o.link, FIND_SECONDS, &answer);
    if (rc >= 0) {
        *text = strndup((const char *)answer.payload, answer.bytes);
        rc = *text ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory for the status");
    }
    dt_link_free(o.link);
    return rc;
}

int dt_cluster_measure(int32_t workers, char **text)
{
    struct both b = {.coordinator = {.job = {.kind = DT_JOB_COMM,
                                             .workers = workers,
                                             .epoch = 1,
                                             .timeout = MEASURE_TIMEOUT,
                                             .start_timeout = MEASURE_TIMEOUT},
                                     .agents = 1,
                                     .threads = 1,
                                     .output = "",
                                     .launcher_job = "",
                                     .local = true,
                                     .listen_fd = -1},
                     .agent = {.job = "", .address = "", .device = "", .inside = true},
                     .result = text};
    dt_signals_install();
    return run_both(&b);
}
