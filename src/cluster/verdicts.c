/* Who is lost, and in which words the run ends because of it.
 *
 * Deaths come from agents and are final. A worker's word that it cannot reach a peer is a hint: the
 * death that explains it is usually on its way, so it waits a moment. Silence and standing still
 * are judged by the clock here; who is judged is killed through its agent before the run ends. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/coordinator_private.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

#define HINT_SECONDS 0.5    /* that a broken link may wait for its explanation */
#define STALL_SECONDS 120.0 /* without any progress, at least */
#define STALL_STEPS 20.0    /* or so many of the longest step so far */

/* "worker 2 (host n1, process 4711)" */
static const char *name_of(const struct dt_coordinator *c, int32_t rank, char *out, size_t size)
{
    snprintf(out, size, "worker %d (host %s, process %" PRId64 ")", rank,
             coordinator__host(c, rank), c->workers[rank].pid);
    return out;
}

/* What a user does next: the newest checkpoint, or that there is none. */
static const char *advice(const struct dt_coordinator *c, char *out, size_t size)
{
    const struct dt_book *b = c->o.book;
    if (!b)
        snprintf(out, size, "start again");
    else if (b->saved >= 0)
        snprintf(out, size,
                 "last decided step %" PRId64 ", newest checkpoint %s/step-%08" PRId64
                 "; the same command goes on from there",
                 b->decided, b->checkpoints, b->saved);
    else
        snprintf(out, size,
                 "last decided step %" PRId64
                 ", no checkpoint yet; the same command starts again (checkpoint.every says how "
                 "often one is made)",
                 b->decided);
    return out;
}

static void lose(struct dt_coordinator *c, int32_t rank, const char *what)
{
    char who[DT_MSG_HOST + 64], then[4608];
    name_of(c, rank, who, sizeof who);
    coordinator__end(c, DT_FAIL(DT_E_PEER, "%s %s; %s", who, what, advice(c, then, sizeof then)));
}

void coordinator__died(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_died m;
    if (dt_unpack_died(f, &m) < 0)
        return;
    struct coordinator__worker *w = &c->workers[f->rank];
    w->dead = true;
    if (c->stage >= STAGE_ENDING || w->bye)
        return;
    if (w->broken_at > 0 && m.exit_code >= 0) /* it left because of another */
        return;
    if (m.signal ==
        SIGABRT) { /* a library gave up: mostly because of a peer that died a moment ago */
        w->aborted = true;
        w->broken_at = dt_clock_seconds();
        return;
    }
    lose(c, f->rank, m.words);
}

/* A failure that says it is none would end the run as done. */
static int failure(int code)
{
    return code < 0 ? code : DT_E_INTERNAL;
}

/* A worker (or, rank DT_EVERYBODY, an agent) cannot go on. */
void coordinator__failed(struct dt_coordinator *c, const struct dt_frame *f, bool broken)
{
    struct dt_msg_failed *m = &c->workers[f->rank < 0 ? 0 : f->rank].broken, other;
    if (dt_unpack_failed(f, f->rank < 0 ? &other : m) < 0 || c->stage >= STAGE_ENDING)
        return;
    if (f->rank < 0) {
        coordinator__end(c, DT_FAIL(failure(other.code), "the agent on %s", other.words));
        return;
    }
    if (broken) {
        c->workers[f->rank].broken_at = dt_clock_seconds();
        return;
    }
    char who[DT_MSG_HOST + 64];
    coordinator__end(
        c, DT_FAIL(failure(m->code), "%s: %s", name_of(c, f->rank, who, sizeof who), m->words));
}

void coordinator__pulse(struct dt_coordinator *c, const struct dt_frame *f)
{
    struct dt_msg_pulse m;
    if (f->rank < 0 || dt_unpack_pulse(f, &m) < 0)
        return;
    struct coordinator__worker *w = &c->workers[f->rank];
    if (m.progress != w->pulse.progress || m.phase != w->pulse.phase || m.step != w->pulse.step)
        w->progressed = dt_clock_seconds();
    w->pulse = m;
}

/* ---- By the clock ---- */

static bool silent(struct dt_coordinator *c, int32_t rank, double now)
{
    struct coordinator__worker *w = &c->workers[rank];
    char what[256];
    if (w->pid == 0 || w->dead || w->bye || now - w->heard <= c->o.job.timeout)
        return false;
    snprintf(
        what, sizeof what,
        "has been silent for %.1f s while %s (stopped, or its machine hangs; cluster.timeout is "
        "%.1f s) and is killed",
        now - w->heard, dt_phase_name((enum dt_phase)w->pulse.phase), c->o.job.timeout);
    coordinator__send(c, rank,
                      dt_pack_text(c->frame, COORDINATOR__FRAME, DT_MSG_KILL, rank, "", 0));
    lose(c, rank, what);
    return true;
}

/* Alive but not getting on. Who waits for a peer is the victim, not the culprit. */
static bool stalled(struct dt_coordinator *c, int32_t rank, double now)
{
    struct coordinator__worker *w = &c->workers[rank];
    double limit = STALL_STEPS * c->longest_step;
    char what[256];
    limit = limit > STALL_SECONDS ? limit : STALL_SECONDS;
    bool computes = w->pulse.phase == DT_PHASE_STEP || w->pulse.phase == DT_PHASE_EVALUATE;
    if (w->dead || w->bye || !computes || w->pulse.waits_for >= 0 || now - w->progressed <= limit)
        return false;
    snprintf(what, sizeof what,
             "makes no progress: no instruction after step %" PRId64
             " was finished for %.0f s although its process lives; it is killed",
             w->pulse.step, now - w->progressed);
    coordinator__send(c, rank,
                      dt_pack_text(c->frame, COORDINATOR__FRAME, DT_MSG_KILL, rank, "", 0));
    lose(c, rank, what);
    return true;
}

/* Everybody waits for somebody and nothing moves: no single culprit, but no reason to wait on. */
static bool deadlocked(struct dt_coordinator *c, double now)
{
    double limit = STALL_STEPS * c->longest_step;
    limit = limit > STALL_SECONDS ? limit : STALL_SECONDS;
    for (int32_t i = 0; i < c->o.job.workers; i++) {
        const struct coordinator__worker *w = &c->workers[i];
        bool waits = w->pulse.waits_for >= 0 || w->pulse.phase == DT_PHASE_DECIDE;
        if (!waits || w->dead || w->bye || now - w->progressed <= limit)
            return false;
    }
    char then[4608];
    const struct dt_msg_pulse *p = &c->workers[0].pulse;
    coordinator__end(c, DT_FAIL(DT_E_TIMEOUT,
                                "no worker has got on for %.0f s although all live: worker 0 waits "
                                "for worker %d since %.0f s; %s",
                                limit, p->waits_for, p->waiting, advice(c, then, sizeof then)));
    return true;
}

static bool broken(struct dt_coordinator *c, int32_t rank, double now)
{
    const struct coordinator__worker *w = &c->workers[rank];
    char what[DT_MSG_WORDS];
    if (w->broken_at <= 0 || now - w->broken_at < HINT_SECONDS)
        return false;
    if (w->aborted)
        snprintf(what, sizeof what, "was killed by signal %d (SIGABRT)", SIGABRT);
    else
        snprintf(what, sizeof what, "lost its connection to another worker, who is alive: %.600s",
                 w->broken.words);
    lose(c, rank, what);
    return true;
}

void coordinator__lost_agent(struct dt_coordinator *c, int64_t agent, const char *why)
{
    struct coordinator__agent *a = &c->agents[agent];
    char ranks[64] = "", then[4608];
    if (c->stage >= STAGE_ENDING)
        return;
    if (a->count > 0)
        snprintf(ranks, sizeof ranks, " with workers %d to %d", a->first, a->first + a->count - 1);
    coordinator__end(c, DT_FAIL(DT_E_PEER, "the agent on host %s%s %s; %s", a->hello.host, ranks,
                                why, advice(c, then, sizeof then)));
}

static bool lost_machine(struct dt_coordinator *c, int64_t agent, double now)
{
    struct coordinator__agent *a = &c->agents[agent];
    char why[160];
    if (!a->link || a->inside || !a->greeted || now - dt_link_heard(a->link) <= c->o.job.timeout)
        return false;
    snprintf(
        why, sizeof why,
        "has been silent for %.1f s: its machine or the network to it is lost (cluster.timeout "
        "is %.1f s)",
        now - dt_link_heard(a->link), c->o.job.timeout);
    coordinator__lost_agent(c, agent, why);
    a->bye = true; /* END is sent to it all the same; nobody waits for its answer */
    return true;
}

static void late(struct dt_coordinator *c, double now)
{
    double limit = c->o.job.start_timeout;
    if (now - c->since <= limit)
        return;
    if (c->stage == STAGE_AGENTS) {
        coordinator__end(
            c, DT_FAIL(DT_E_TIMEOUT,
                       "only %" PRId64 " of %" PRId64
                       " machines came within %.0f s (cluster.start_timeout); do the others reach "
                       "this one, and have they the same secret?",
                       c->agent_count, c->o.agents, limit));
        return;
    }
    for (int32_t i = 0; i < c->o.job.workers; i++)
        if (c->stage == STAGE_ADDRESSES ? !c->workers[i].address : !c->workers[i].ready) {
            char who[DT_MSG_HOST + 64];
            coordinator__end(c, DT_FAIL(DT_E_TIMEOUT,
                                        "%s was not ready within %.0f s (cluster.start_timeout)",
                                        name_of(c, i, who, sizeof who), limit));
            return;
        }
}

void coordinator__judge(struct dt_coordinator *c)
{
    double now = dt_clock_seconds();
    if (c->stage < STAGE_RUNNING)
        late(c, now);
    for (int64_t i = 0; i < c->agent_count && c->stage < STAGE_ENDING; i++)
        if (lost_machine(c, i, now))
            return;
    for (int32_t i = 0; i < c->o.job.workers && c->stage < STAGE_ENDING; i++)
        if (silent(c, i, now) || broken(c, i, now))
            return;
    for (int32_t i = 0; i < c->o.job.workers && c->stage == STAGE_RUNNING; i++)
        if (stalled(c, i, now))
            return;
    if (c->stage == STAGE_RUNNING)
        deadlocked(c, now);
}
