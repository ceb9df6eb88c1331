#include "cluster/agent.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "cluster/spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK 0.05     /* seconds between looks at children and clocks */
#define END_GRACE 3.0 /* seconds that workers have to leave by themselves */
#define LOG_LINE 4096
#define LOG_READS 64 /* of a worker in one turn */
#define FRAME (sizeof(struct dt_msg_spawn) + 16384)

struct child {
    int32_t rank;
    struct dt_child process;
    struct dt_link *link; /* NULL: gone */
    bool reaped;
    char line[LOG_LINE];
    size_t filled;
};

struct agent {
    const struct dt_agent_options *o;
    struct dt_link *link;
    struct child *children;
    int32_t count;
    double timeout; /* 0: not set yet */
    double next_pulse;
    int64_t oom_kills; /* of the control group, when the workers were started */
    bool stop_sent;
    bool ending;
    double end_by;
    struct dt_msg_failed end;
    struct dt_msg_vote *votes; /* added up so far; NULL: none */
    unsigned char *frame;      /* [FRAME] */
};

static int up(struct agent *a, int64_t bytes)
{
    return dt_link_send(a->link, a->frame, bytes);
}

/* ---- Start ---- */

static int hello(struct agent *a)
{
    struct dt_machine_memory memory;
    struct dt_msg_hello m = {.pid = getpid(),
                             .cores = dt_machine_threads(),
                             .node = a->o->node,
                             .workers = a->o->workers};
    dt_machine_memory(&memory);
    m.memory = dt_machine_memory_free();
    snprintf(m.version, sizeof m.version, "%s", DT_VERSION);
    snprintf(m.job, sizeof m.job, "%s", a->o->job);
    snprintf(m.address, sizeof m.address, "%s", a->o->address);
    gethostname(m.host, sizeof m.host - 1);
    return up(a, dt_pack_hello(a->frame, FRAME, DT_EVERYBODY, &m));
}

/* Workers write into the run's directory: this machine must see the same one. */
static int check_directory(const struct dt_msg_spawn *m)
{
    char path[DT_PATH], *text;
    size_t size;
    if (!m->output[0])
        return DT_OK;
    DT_TRY(dt_path_join(path, m->output, ".cookie"));
    int rc = dt_file_read(path, 256, &text, &size);
    bool same = rc >= 0 && strcmp(text, m->cookie) == 0;
    if (rc >= 0)
        free(text);
    return same ? DT_OK
                : DT_FAIL(DT_E_CONFIG,
                          "%s is not the coordinator's directory on this machine; `output` must be "
                          "on a disk that all machines share",
                          m->output);
}

static int start_one(struct agent *a, const struct dt_msg_spawn *m, int32_t i)
{
    struct child *c = &a->children[i];
    struct dt_msg_started started;
    c->rank = m->first + i;
    DT_TRY(dt_child_start(m->local, a->o->device, &c->process));
    a->count = i + 1; /* only now is there a process to kill: kill(-1) would be everybody's end */
    DT_TRY(dt_link_new(c->process.control, DT_LINK_PLAIN, NULL, 0, &c->link));
    started.pid = c->process.pid;
    return up(a, dt_pack_started(a->frame, FRAME, c->rank, &started));
}

static int spawn(struct agent *a, const struct dt_frame *f)
{
    struct dt_msg_spawn *m = malloc(sizeof *m);
    int rc = m ? dt_unpack_spawn(f, m) : DT_FAIL(DT_E_MEMORY, "no memory to start workers");
    if (rc >= 0) {
        a->timeout = m->timeout;
        a->oom_kills = dt_machine_oom_kills();
        rc = check_directory(m);
    }
    if (rc >= 0)
        rc = DT_NEW(&a->children, m->count);
    for (int32_t i = 0; rc >= 0 && i < m->count; i++)
        rc = start_one(a, m, i);
    free(m);
    if (!a->o->inside)
        dt_signals_steps_begin(); /* from now on the coordinator decides what a signal means */
    return rc;
}

/* ---- What workers say ---- */

static void send_votes(struct agent *a, int32_t rank)
{
    if (!a->votes)
        return;
    up(a, dt_pack_vote(a->frame, FRAME, rank, a->votes));
    free(a->votes);
    a->votes = NULL;
}

/* Votes of this machine are added up; where they differ the coordinator hears each and names them.
 */
static int take_vote(struct agent *a, const struct dt_frame *f)
{
    struct dt_msg_vote *m = malloc(sizeof *m);
    int rc = m ? dt_unpack_vote(f, m) : DT_FAIL(DT_E_MEMORY, "no memory for a vote");
    if (rc < 0) {
        free(m);
        return rc;
    }
    m->vote.space = m->space;
    bool differs = a->votes && !dt_msg_vote_merge(a->votes, m);
    if (differs)
        send_votes(a, f->rank);
    if (!a->votes) {
        a->votes = m;
        m = NULL;
    }
    free(m);
    if (differs || a->votes->workers == a->count)
        send_votes(a, f->rank);
    return DT_OK;
}

static int pass_up(struct agent *a, const struct dt_frame *f)
{
    unsigned char *frame = malloc(f->bytes + DT_MESSAGE_HEADER);
    if (!frame)
        return DT_FAIL(DT_E_MEMORY, "no memory to pass a message on");
    int rc = dt_link_send(a->link, frame,
                          dt_pack_text(frame, f->bytes + DT_MESSAGE_HEADER, f->type, f->rank,
                                       (const char *)f->payload, f->bytes));
    free(frame);
    return rc;
}

static int send_log(struct agent *a, const struct child *c)
{
    return c->filled ? up(a, dt_pack_text(a->frame, FRAME, DT_MSG_LOG, c->rank, c->line, c->filled))
                     : DT_OK;
}

/* Whole lines, or what fits. */
static void read_log(struct agent *a, struct child *c)
{
    ssize_t n = -1;
    /* Bounded: a worker that never stops printing must not keep the agent from its pulses. */
    for (int turn = 0; turn < LOG_READS; turn++) {
        n = read(c->process.log, c->line + c->filled, LOG_LINE - c->filled);
        if (n <= 0)
            break;
        c->filled += (size_t)n;
        for (;;) {
            char *end = memchr(c->line, '\n', c->filled);
            size_t line = end ? (size_t)(end - c->line) : c->filled, rest = c->filled - line;
            if (!end && c->filled < LOG_LINE)
                break;
            c->filled = line;
            send_log(a, c);
            rest -= end ? 1 : 0;
            memmove(c->line, c->line + line + (end ? 1 : 0), rest);
            c->filled = rest;
        }
    }
    if (n == 0) { /* its last line may lack an end */
        send_log(a, c);
        c->filled = 0;
        close(c->process.log);
        c->process.log = -1;
    }
}

static void lose_link(struct child *c)
{
    dt_link_free(c->link);
    c->link = NULL;
}

static void hear(struct agent *a, struct child *c, short revents)
{
    struct dt_frame f;
    int rc = dt_link_ready(c->link, revents);
    while (dt_link_next(c->link, &f)) {
        f.rank = c->rank;
        int passed = f.type == DT_MSG_VOTE ? take_vote(a, &f) : pass_up(a, &f);
        if (passed < 0)
            dt_warn("worker %d: a %s is lost: %s", c->rank, dt_message_name(f.type),
                    dt_error_message());
    }
    if (rc < 0)
        lose_link(c);
}

static void bury(struct agent *a, struct child *c)
{
    int status;
    if (c->reaped || waitpid(c->process.pid, &status, WNOHANG) != c->process.pid)
        return;
    struct dt_msg_died m = {.pid = c->process.pid,
                            .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
    c->reaped = true;
    if (c->process.log >= 0)
        read_log(a, c);
    if (c->link)
        hear(a, c, POLLIN); /* its last words before the news of its end */
    dt_child_words(status, dt_machine_oom_kills() > a->oom_kills, m.words, sizeof m.words);
    up(a, dt_pack_died(a->frame, FRAME, c->rank, &m));
}

/* ---- What the coordinator says ---- */

static void pass_down(struct agent *a, const struct dt_frame *f)
{
    unsigned char *frame = malloc(f->bytes + DT_MESSAGE_HEADER);
    int64_t bytes = frame ? dt_pack_text(frame, f->bytes + DT_MESSAGE_HEADER, f->type, f->rank,
                                         (const char *)f->payload, f->bytes)
                          : DT_E_MEMORY;
    for (int32_t i = 0; i < a->count; i++) {
        struct child *c = &a->children[i];
        if (c->link && (f->rank == DT_EVERYBODY || f->rank == c->rank))
            dt_link_send(c->link, frame, bytes);
    }
    free(frame);
}

static void kill_children(struct agent *a, int32_t rank)
{
    for (int32_t i = 0; i < a->count; i++)
        if (!a->children[i].reaped && (rank == DT_EVERYBODY || a->children[i].rank == rank))
            kill(a->children[i].process.pid, SIGKILL);
}

static int obey(struct agent *a, const struct dt_frame *f)
{
    switch (f->type) {
    case DT_MSG_SPAWN:
        return spawn(a, f);
    case DT_MSG_KILL:
        kill_children(a, f->rank);
        return DT_OK;
    case DT_MSG_END:
        DT_TRY(dt_unpack_failed(f, &a->end));
        pass_down(a, f);
        a->ending = true;
        a->end_by = dt_clock_seconds() + END_GRACE;
        return DT_OK;
    default:
        pass_down(a, f);
        return DT_OK;
    }
}

static int listen_up(struct agent *a, short revents)
{
    struct dt_frame f;
    int rc = dt_link_ready(a->link, revents), done = DT_OK;
    while (done >= 0 && dt_link_next(a->link, &f))
        done = obey(a, &f);
    if (rc < 0 && !a->ending)
        return dt_error_context(rc, "the coordinator is gone");
    return done;
}

/* ---- The loop ---- */

static int tick(struct agent *a)
{
    double now = dt_clock_seconds();
    for (int32_t i = 0; i < a->count; i++)
        bury(a, &a->children[i]);
    if (a->timeout <= 0 || a->ending)
        return DT_OK;
    if (now >= a->next_pulse) {
        struct dt_msg_pulse m = {.waits_for = -1};
        up(a, dt_pack_pulse(a->frame, FRAME, DT_EVERYBODY, &m));
        a->next_pulse = now + (a->timeout < 8 ? a->timeout / 8 : 1);
    }
    if (now - dt_link_heard(a->link) > a->timeout)
        return DT_FAIL(DT_E_PEER,
                       "no word from the coordinator (%s) for %.1f s: its machine or the "
                       "network to it is lost; the same command goes on",
                       dt_link_peer(a->link), a->timeout);
    if (!a->o->inside && dt_signals_stop_asked() && !a->stop_sent) {
        a->stop_sent = true;
        up(a, dt_pack_text(a->frame, FRAME, DT_MSG_STOP, DT_EVERYBODY, "", 0));
    }
    return DT_OK;
}

static bool all_gone(const struct agent *a)
{
    for (int32_t i = 0; i < a->count; i++)
        if (!a->children[i].reaped)
            return false;
    return true;
}

static int turn(struct agent *a, struct pollfd *fds)
{
    int n = 0, rc = DT_OK;
    fds[n++] = (struct pollfd){.fd = dt_link_fd(a->link), .events = dt_link_events(a->link)};
    for (int32_t i = 0; i < a->count; i++) {
        struct child *c = &a->children[i];
        fds[n++] = (struct pollfd){.fd = c->link ? dt_link_fd(c->link) : -1,
                                   .events = c->link ? dt_link_events(c->link) : 0};
        fds[n++] = (struct pollfd){.fd = c->process.log, .events = POLLIN};
    }
    poll(fds, (nfds_t)n, (int)(TICK * 1000));
    for (int32_t i = 0; 2 + 2 * i < n; i++) {
        struct child *c = &a->children[i];
        if (fds[2 + 2 * i].revents)
            read_log(a, c);
        if (fds[1 + 2 * i].revents && c->link)
            hear(a, c, fds[1 + 2 * i].revents);
    }
    if (fds[0].revents)
        rc = listen_up(a, fds[0].revents);
    return rc >= 0 ? tick(a) : rc;
}

/* Nobody stays: kill, reap, hand over what they still said. */
static void end_children(struct agent *a)
{
    kill_children(a, DT_EVERYBODY);
    for (int32_t i = 0; i < a->count; i++) {
        struct child *c = &a->children[i];
        for (int tries = 0; !c->reaped && tries < 2000; tries++) {
            bury(a, c);
            if (!c->reaped)
                usleep(1000);
        }
        if (c->link)
            dt_link_free(c->link);
        if (c->process.log >= 0)
            close(c->process.log);
    }
}

static int loop(struct agent *a)
{
    struct pollfd *fds;
    DT_TRY(DT_NEW(&fds, 2 * 4096 + 1));
    int rc = DT_OK;
    while (rc >= 0 && !(a->ending && (all_gone(a) || dt_clock_seconds() > a->end_by)))
        rc = turn(a, fds);
    free(fds);
    return rc;
}

/* A failure of this agent itself, for the coordinator to tell. */
static void tell(struct agent *a, int rc)
{
    struct dt_msg_failed m = {.code = rc, .peer = -1};
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    snprintf(m.words, sizeof m.words, "%s: %s", host, dt_error_message());
    up(a, dt_pack_failed(a->frame, FRAME, DT_MSG_FAILED, DT_EVERYBODY, &m));
    dt_link_flush(a->link, 1);
}

int dt_agent_run(const struct dt_agent_options *o)
{
    struct agent a = {.o = o, .link = o->link};
    struct dt_error_state why;
    int rc = DT_NEW(&a.frame, FRAME);
    if (rc >= 0)
        rc = hello(&a);
    if (rc >= 0)
        rc = loop(&a);
    dt_error_save(rc, &why);
    if (rc < 0 && rc != DT_E_PEER && a.frame)
        tell(&a, rc);
    end_children(&a);
    if (a.ending) {
        up(&a, dt_pack_text(a.frame, FRAME, DT_MSG_BYE, DT_EVERYBODY, "", 0));
        dt_link_flush(a.link, 1);
    }
    dt_link_free(a.link);
    free(a.votes);
    free(a.children);
    free(a.frame);
    if (rc < 0)
        return dt_error_restore(&why);
    return a.end.code < 0 ? DT_FAIL(a.end.code, "%s", a.end.words) : DT_OK;
}
