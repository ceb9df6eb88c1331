#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cluster/coordinator_private.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK 0.05
#define LEAVE_SECONDS 5.0 /* that agents have to say BYE after END */

/* ---- Telling ---- */

const char *coordinator__host(const struct dt_coordinator *c, int32_t rank)
{
    return rank >= 0 && rank < c->o.job.workers && c->workers[rank].pid
               ? c->agents[c->workers[rank].agent].hello.host
               : "?";
}

static void send_agent(struct dt_coordinator *c, int64_t agent, const unsigned char *frame,
                       int64_t bytes)
{
    struct dt_link *l = c->agents[agent].link;
    if (bytes < 0)
        coordinator__end(c, (int)bytes); /* it did not fit: nobody would know what to wait for */
    else if (l && dt_link_send(l, frame, bytes) == DT_E_MEMORY)
        coordinator__lost_agent(c, agent, "does not take what is sent to it");
}

void coordinator__send(struct dt_coordinator *c, int32_t rank, int64_t bytes)
{
    send_agent(c, c->workers[rank].agent, c->frame, bytes);
}

void coordinator__broadcast(struct dt_coordinator *c, int64_t bytes)
{
    for (int64_t i = 0; i < c->agent_count; i++)
        send_agent(c, i, c->frame, bytes);
}

static void enter(struct dt_coordinator *c, enum coordinator__stage stage)
{
    c->stage = stage;
    c->since = dt_clock_seconds();
}

void coordinator__end(struct dt_coordinator *c, int code)
{
    if (c->decided_end)
        return;
    c->decided_end = true;
    dt_error_save(code, &c->verdict);
    struct dt_msg_failed m = {.code = code < 0 ? code : 0, .peer = -1};
    if (code < 0)
        snprintf(m.words, sizeof m.words, "%s", dt_error_message());
    enter(c, STAGE_ENDING);
    coordinator__broadcast(
        c, dt_pack_failed(c->frame, COORDINATOR__FRAME, DT_MSG_END, DT_EVERYBODY, &m));
}

/* ---- A run comes up ---- */

static int by_node(const void *a, const void *b)
{
    const struct coordinator__agent *x = a, *y = b;
    if (x->inside != y->inside)
        return x->inside ? -1 : 1;
    return (x->hello.node > y->hello.node) - (x->hello.node < y->hello.node);
}

/* Ranks in the order of the machines: what a launcher fixed, else by cores, at least one each. */
static int deal_ranks(struct dt_coordinator *c)
{
    int32_t left = c->o.job.workers, first = 0;
    int64_t cores = 0;
    qsort(c->agents, (size_t)c->agent_count, sizeof *c->agents, by_node);
    for (int64_t i = 0; i < c->agent_count; i++)
        cores += c->agents[i].hello.cores;
    for (int64_t i = 0; i < c->agent_count; i++) {
        struct coordinator__agent *a = &c->agents[i];
        int32_t rest = (int32_t)(c->agent_count - i - 1);
        int64_t share = a->hello.workers > 0 ? a->hello.workers
                        : cores > 0          ? (left * a->hello.cores + cores / 2) / cores
                                             : left;
        share = share < 1 ? 1 : share;
        share = rest == 0 && a->hello.workers == 0 ? left : share;
        if (share > left - rest)
            share = left - rest;
        if (share < 1)
            return DT_FAIL(DT_E_CONFIG, "workers: %d for %" PRId64 " machines; at least one each",
                           c->o.job.workers, c->agent_count);
        a->first = first;
        a->count = (int32_t)share;
        first += a->count;
        left -= a->count;
        cores -= a->hello.cores;
    }
    return left == 0 ? DT_OK
                     : DT_FAIL(DT_E_CONFIG, "workers: %d, but the launcher's tasks take %d",
                               c->o.job.workers, first);
}

static int send_job(struct dt_coordinator *c, int32_t rank, int32_t threads)
{
    struct dt_job job = c->o.job;
    char *text;
    job.rank = rank;
    job.threads = threads;
    DT_TRY(dt_job_print(&job, &text));
    size_t n = strlen(text);
    unsigned char *frame = malloc(n + DT_MESSAGE_HEADER);
    if (frame)
        send_agent(c, c->workers[rank].agent, frame,
                   dt_pack_text(frame, n + DT_MESSAGE_HEADER, DT_MSG_JOB, rank, text, n));
    free(frame);
    free(text);
    return frame ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory to send a job");
}

static int start_agent(struct dt_coordinator *c, int64_t i)
{
    struct coordinator__agent *a = &c->agents[i];
    int64_t share = a->hello.cores / a->count;
    struct dt_msg_spawn m = {.epoch = c->o.job.epoch,
                             .first = a->first,
                             .count = a->count,
                             .threads = (int32_t)(c->o.threads > 0 ? c->o.threads
                                                  : share > 0      ? share
                                                                   : 1),
                             .timeout = c->o.job.timeout,
                             .local = c->o.local};
    snprintf(m.output, sizeof m.output, "%s", c->o.output);
    snprintf(m.cookie, sizeof m.cookie, "%s", c->cookie);
    send_agent(c, i, c->frame, dt_pack_spawn(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, &m));
    for (int32_t rank = a->first; rank < a->first + a->count; rank++) {
        c->workers[rank].agent = (int32_t)i;
        DT_TRY(send_job(c, rank, m.threads));
    }
    dt_info("host %s: workers %d to %d, %d threads each", a->hello.host, a->first,
            a->first + a->count - 1, m.threads);
    return DT_OK;
}

static int write_cookie(struct dt_coordinator *c)
{
    struct dt_secret s;
    char path[DT_PATH], digits[2 * DT_SECRET_BYTES + 1];
    if (!c->o.output[0])
        return DT_OK;
    dt_secret_make(&s);
    dt_secret_print(&s, digits);
    snprintf(c->cookie, sizeof c->cookie, "%.32s", digits);
    DT_TRY(dt_path_join(path, c->o.output, ".cookie"));
    return dt_file_write(path, c->cookie, strlen(c->cookie));
}

static void start_workers(struct dt_coordinator *c)
{
    int rc = write_cookie(c);
    if (rc >= 0)
        rc = deal_ranks(c);
    enter(c, STAGE_ADDRESSES);
    for (int64_t i = 0; rc >= 0 && i < c->agent_count; i++)
        rc = start_agent(c, i);
    if (rc < 0)
        coordinator__end(c, rc);
}

static int greet(struct dt_coordinator *c, struct coordinator__agent *a, const struct dt_frame *f)
{
    DT_TRY(dt_unpack_hello(f, &a->hello));
    if (strcmp(a->hello.version, DT_VERSION) != 0)
        return DT_FAIL(DT_E_CONFIG, "host %s runs version %s, this is %s", a->hello.host,
                       a->hello.version, DT_VERSION);
    if (!a->inside && c->o.launcher_job[0] && strcmp(a->hello.job, c->o.launcher_job) != 0)
        return DT_FAIL(DT_E_CONFIG, "host %s belongs to job '%s', this is '%s'", a->hello.host,
                       a->hello.job, c->o.launcher_job);
    a->greeted = true;
    if (!a->inside)
        dt_info("host %s is there (%" PRId64 " cores, %s)", a->hello.host, a->hello.cores,
                a->hello.address[0] ? a->hello.address : "local");
    int64_t there = 0;
    for (int64_t i = 0; i < c->agent_count; i++)
        there += c->agents[i].greeted;
    if (there == c->o.agents)
        start_workers(c);
    return DT_OK;
}

static void take_address(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct coordinator__worker *w = &c->workers[f->rank];
    struct dt_msg_address m;
    if (dt_unpack_address(f, &m) < 0 || m.epoch != c->o.job.epoch || w->address)
        return;
    w->address = malloc(m.bytes + 1);
    if (!w->address)
        return;
    memcpy(w->address, m.data, m.bytes);
    w->address_bytes = m.bytes;
    for (int32_t i = 0; i < c->o.job.workers; i++)
        if (!c->workers[i].address)
            return;
    struct dt_msg_table *t = calloc(1, sizeof *t);
    if (!t)
        return;
    t->epoch = c->o.job.epoch;
    t->size = c->o.job.workers;
    for (int32_t i = 0; i < t->size; i++) {
        t->data[i] = c->workers[i].address;
        t->bytes[i] = c->workers[i].address_bytes;
    }
    coordinator__broadcast(c, dt_pack_table(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, t));
    free(t);
    enter(c, STAGE_READY);
}

static void take_ready(struct dt_coordinator *c, const struct dt_frame *f)
{
    json_t *o = json_loadb((const char *)f->payload, f->bytes, 0, NULL);
    const char *words = json_string_value(json_object_get(o, "words"));
    int32_t there = 0;
    if (c->stage != STAGE_READY || c->workers[f->rank].ready) {
        json_decref(o);
        return;
    }
    c->workers[f->rank].ready = true;
    for (int32_t i = 0; i < c->o.job.workers; i++)
        there += c->workers[i].ready;
    c->peak_gflops += json_number_value(json_object_get(o, "peak_gflops"));
    if (there == c->o.job.workers) {
        if (words && words[0])
            dt_info("%s; %d workers, peak %.0f GFLOP/s in all", words, there, c->peak_gflops);
        enter(c, STAGE_RUNNING);
        c->last_decision = c->since;
        for (int32_t i = 0; i < c->o.job.workers; i++)
            c->workers[i].progressed = c->since;
        if (c->o.book) {
            dt_signals_steps_begin();
            dt_book_begin(c->o.book, c->peak_gflops);
        }
        coordinator__broadcast(
            c, dt_pack_text(c->frame, COORDINATOR__FRAME, DT_MSG_GO, DT_EVERYBODY, "", 0));
    }
    json_decref(o);
}

/* ---- What comes ---- */

static void take_log(const struct dt_frame *f)
{
    const char *text = (const char *)f->payload, *end = text + f->bytes;
    while (text < end) {
        const char *line = memchr(text, '\n', (size_t)(end - text));
        int n = (int)((line ? line : end) - text);
        if (n > 0)
            dt_log(DT_LOG_WARN, "[worker %d] %.*s", f->rank, n, text);
        text += n + 1;
    }
}

static void take_result(struct dt_coordinator *c, const struct dt_frame *f)
{
    char *more = NULL;
    if (asprintf(&more, "%s%s%.*s", c->results ? c->results : "[", c->results ? "," : "",
                 (int)f->bytes, (const char *)f->payload) < 0)
        return;
    free(c->results);
    c->results = more;
}

static void take_bye(struct dt_coordinator *c, int64_t agent, const struct dt_frame *f)
{
    if (f->rank < 0) {
        c->agents[agent].bye = true;
        return;
    }
    c->workers[f->rank].bye = true;
    for (int32_t i = 0; i < c->o.job.workers; i++)
        if (!c->workers[i].bye)
            return;
    coordinator__finish(c);
}

static void from_worker(struct dt_coordinator *c, int64_t agent, const struct dt_frame *f)
{
    struct dt_msg_started started;
    c->workers[f->rank].heard = dt_clock_seconds();
    switch (f->type) {
    case DT_MSG_STARTED:
        if (dt_unpack_started(f, &started) >= 0)
            c->workers[f->rank].pid = started.pid;
        break;
    case DT_MSG_ADDRESS:
        take_address(c, f);
        break;
    case DT_MSG_READY:
        take_ready(c, f);
        break;
    case DT_MSG_VOTE:
        coordinator__vote(c, f);
        break;
    case DT_MSG_EVALUATED:
        coordinator__evaluated(c, f);
        break;
    case DT_MSG_SAVE:
        coordinator__save(c, f);
        break;
    case DT_MSG_SAVED:
        coordinator__saved(c, f);
        break;
    case DT_MSG_PULSE:
        coordinator__pulse(c, f);
        break;
    case DT_MSG_DIED:
        coordinator__died(c, f);
        break;
    case DT_MSG_BROKEN:
    case DT_MSG_FAILED:
        coordinator__failed(c, f, f->type == DT_MSG_BROKEN);
        break;
    case DT_MSG_LOG:
        take_log(f);
        break;
    case DT_MSG_RESULT:
        take_result(c, f);
        break;
    case DT_MSG_BYE:
        take_bye(c, agent, f);
        break;
    default:
        break;
    }
}

static int from_agent(struct dt_coordinator *c, int64_t agent, const struct dt_frame *f)
{
    struct coordinator__agent *a = &c->agents[agent];
    if (f->rank >= 0) {
        if (f->rank >= c->o.job.workers || f->rank < a->first || f->rank >= a->first + a->count)
            return DT_FAIL(DT_E_DATA, "host %s speaks for worker %d, which is not its",
                           a->hello.host, f->rank);
        from_worker(c, agent, f);
        return DT_OK;
    }
    switch (f->type) {
    case DT_MSG_HELLO:
        return a->greeted ? DT_OK : greet(c, a, f);
    case DT_MSG_FAILED:
        coordinator__failed(c, f, false);
        return DT_OK;
    case DT_MSG_STOP:
        c->stop_asked = true;
        return DT_OK;
    case DT_MSG_BYE:
        take_bye(c, agent, f);
        return DT_OK;
    default:
        return DT_OK;
    }
}

static void hear_agent(struct dt_coordinator *c, int64_t i, short revents)
{
    struct coordinator__agent *a = &c->agents[i];
    struct dt_frame f;
    int rc = dt_link_ready(a->link, revents), done = DT_OK;
    while (done >= 0 && dt_link_next(a->link, &f))
        done = from_agent(c, i, &f);
    if (rc >= 0 && done >= 0)
        return;
    char why[DT_MSG_WORDS];
    snprintf(why, sizeof why, "%s", a->bye ? "left" : done < 0 ? dt_error_message() : "is gone");
    dt_link_free(a->link);
    a->link = NULL;
    if (!a->bye)
        coordinator__lost_agent(c, i, why);
}

/* A trusted newcomer: an agent says HELLO first, ctl asks for STATUS. */
static void hear_ctl(struct dt_coordinator *c, int k, short revents)
{
    struct dt_frame f;
    struct dt_link *l = c->ctls[k];
    int rc = dt_link_ready(l, revents);
    while (l && dt_link_next(l, &f)) {
        if (f.type == DT_MSG_HELLO && c->stage == STAGE_AGENTS && c->agent_count < c->o.agents) {
            struct coordinator__agent *a = &c->agents[c->agent_count++];
            *a = (struct coordinator__agent){.link = l};
            c->ctls[k] = NULL;
            if (greet(c, a, &f) < 0)
                coordinator__end(c, DT_E_CONFIG);
            return;
        }
        if (f.type == DT_MSG_HELLO)
            dt_warn("a machine more than expected came from %s and is sent away", dt_link_peer(l));
        if (f.type != DT_MSG_STATUS) {
            rc = DT_E_DATA;
            break;
        }
        char *text = coordinator__status(c);
        if (text)
            dt_link_send(l, c->frame,
                         dt_pack_text(c->frame, COORDINATOR__FRAME, DT_MSG_STATUS, DT_EVERYBODY,
                                      text, strlen(text)));
        free(text);
    }
    if (rc < 0) {
        dt_link_free(l);
        c->ctls[k] = NULL;
    }
}

static void let_in(struct dt_coordinator *c, struct dt_link *l)
{
    for (int k = 0; k < COORDINATOR__CTLS; k++)
        if (!c->ctls[k]) {
            c->ctls[k] = l;
            hear_ctl(c, k, POLLIN);
            return;
        }
    dt_warn("too many connections; %s is sent away", dt_link_peer(l));
    dt_link_free(l);
}

/* ---- The loop ---- */

static void tick(struct dt_coordinator *c)
{
    double now = dt_clock_seconds();
    c->stop_asked = c->stop_asked || dt_signals_stop_asked();
    if (c->stop_asked && !c->stop_told && c->stage == STAGE_RUNNING) {
        c->stop_told = true;
        coordinator__broadcast(
            c, dt_pack_text(c->frame, COORDINATOR__FRAME, DT_MSG_STOP, DT_EVERYBODY, "", 0));
    }
    if (now >= c->next_pulse) {
        struct dt_msg_pulse m = {.step = c->o.book ? c->o.book->decided : 0, .waits_for = -1};
        coordinator__broadcast(c, dt_pack_pulse(c->frame, COORDINATOR__FRAME, DT_EVERYBODY, &m));
        c->next_pulse = now + (c->o.job.timeout < 8 ? c->o.job.timeout / 8 : 1);
    }
    if (c->stage < STAGE_ENDING) {
        coordinator__judge(c);
        return;
    }
    bool left = !clerk__busy(c->clerk);
    for (int64_t i = 0; i < c->agent_count; i++)
        left = left && (!c->agents[i].link || c->agents[i].bye);
    if (left || now - c->since > LEAVE_SECONDS)
        enter(c, STAGE_OVER);
}

static void turn(struct dt_coordinator *c, struct pollfd *fds)
{
    int n = 0, agents, ctls, door = 0;
    for (int64_t i = 0; i < c->agent_count; i++) {
        struct dt_link *l = c->agents[i].link;
        fds[n++] = (struct pollfd){l ? dt_link_fd(l) : -1, l ? dt_link_events(l) : (short)0, 0};
    }
    agents = n;
    for (int k = 0; k < COORDINATOR__CTLS; k++)
        fds[n++] = (struct pollfd){c->ctls[k] ? dt_link_fd(c->ctls[k]) : -1,
                                   c->ctls[k] ? dt_link_events(c->ctls[k]) : (short)0, 0};
    ctls = n;
    fds[n++] = (struct pollfd){clerk__descriptor(c->clerk), POLLIN, 0};
    if (c->door)
        n += door = dt_door_poll(c->door, fds + n);
    poll(fds, (nfds_t)n, (int)(TICK * 1000));
    for (int i = 0; i < agents; i++)
        if (fds[i].revents && c->agents[i].link)
            hear_agent(c, i, fds[i].revents);
    for (int k = 0; k < COORDINATOR__CTLS; k++)
        if (fds[agents + k].revents && c->ctls[k])
            hear_ctl(c, k, fds[agents + k].revents);
    if (fds[ctls].revents)
        coordinator__clerk_done(c);
    struct dt_link *l;
    while (c->door && (l = dt_door_ready(c->door, fds + ctls + 1, door)))
        let_in(c, l);
    tick(c);
}

static void *run(void *self)
{
    struct dt_coordinator *c = self;
    struct pollfd *fds =
        calloc((size_t)c->o.agents + COORDINATOR__CTLS + DT_STRANGERS + 2, sizeof *fds);
    while (fds && c->stage != STAGE_OVER)
        turn(c, fds);
    free(fds);
    return NULL;
}

/* ---- Start and end ---- */

static void close_all(struct dt_coordinator *c)
{
    for (int64_t i = 0; i < c->agent_count; i++)
        if (c->agents[i].link)
            dt_link_free(c->agents[i].link);
    for (int k = 0; k < COORDINATOR__CTLS; k++)
        if (c->ctls[k])
            dt_link_free(c->ctls[k]);
    if (c->door)
        dt_door_close(c->door);
    clerk__close(c->clerk);
    if (c->writer)
        dt_checkpoint_abort(c->writer);
    for (int32_t i = 0; c->workers && i < c->o.job.workers; i++)
        free(c->workers[i].address);
    char path[DT_PATH];
    if (c->o.output[0] && dt_path_join(path, c->o.output, ".cookie") >= 0)
        unlink(path);
    free(c->workers);
    free(c->agents);
    free(c->frame);
    free(c->results);
    free(c);
}

int dt_coordinator_start(const struct dt_coordinator_options *o, struct dt_coordinator **out)
{
    struct dt_coordinator *c;
    int rc;
    DT_TRY(DT_NEW(&c, 1));
    c->o = *o;
    c->since = dt_clock_seconds();
    DT_CHECK(fail, rc, DT_NEW(&c->agents, o->agents));
    DT_CHECK(fail, rc, DT_NEW(&c->workers, o->job.workers));
    DT_CHECK(fail, rc, DT_NEW(&c->frame, COORDINATOR__FRAME));
    DT_CHECK(fail, rc, clerk__open(&c->clerk));
    c->agents[c->agent_count++] = (struct coordinator__agent){.link = o->inside, .inside = true};
    if (o->listen_fd >= 0)
        DT_CHECK(fail, rc, dt_door_open(o->listen_fd, &o->secret, &c->door));
    if (pthread_create(&c->thread, NULL, run, c) != 0) {
        rc = DT_FAIL(DT_E_MEMORY, "cannot start the coordinator's thread: %s", strerror(errno));
        goto fail;
    }
    *out = c;
    return DT_OK;
fail:
    close_all(c);
    return rc;
}

int dt_coordinator_join(struct dt_coordinator *c, char **result)
{
    pthread_join(c->thread, NULL);
    struct dt_error_state verdict = c->verdict;
    if (result) {
        *result = NULL;
        if (c->results && asprintf(result, "%s]", c->results) < 0)
            *result = NULL;
    }
    close_all(c);
    return verdict.code < 0 ? dt_error_restore(&verdict) : DT_OK;
}
