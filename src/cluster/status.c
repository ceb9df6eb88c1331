/* What `ductile ctl status` shows: workers, step, epoch, and who waits for whom. */
#include "base/clock.h"
#include "cluster/coordinator_private.h"

static const char *const stages[] = {
    [STAGE_AGENTS] = "waiting for machines",
    [STAGE_ADDRESSES] = "starting workers",
    [STAGE_READY] = "loading weights",
    [STAGE_RUNNING] = "running",
    [STAGE_ENDING] = "ending",
    [STAGE_OVER] = "over",
};

static json_t *worker(const struct dt_coordinator *c, int32_t rank)
{
    const struct coordinator__worker *w = &c->workers[rank];
    double now = dt_clock_seconds();
    json_t *o =
        json_pack("{s:i, s:s, s:I, s:b, s:s, s:I, s:I, s:f}", "rank", rank, "host",
                  coordinator__host(c, rank), "pid", (json_int_t)w->pid, "alive",
                  w->pid && !w->dead, "phase", dt_phase_name((enum dt_phase)w->pulse.phase), "step",
                  (json_int_t)w->pulse.step, "bytes_resident", (json_int_t)w->pulse.resident,
                  "silent_seconds", w->heard > 0 ? now - w->heard : 0.0);
    if (o && w->pulse.waits_for >= 0) {
        json_object_set_new(o, "waits_for", json_integer(w->pulse.waits_for));
        json_object_set_new(o, "waiting_seconds", json_real(w->pulse.waiting));
    }
    return o;
}

char *coordinator__status(const struct dt_coordinator *c)
{
    const struct dt_book *b = c->o.book;
    json_t *workers = json_array();
    for (int32_t i = 0; workers && i < c->o.job.workers; i++)
        json_array_append_new(workers, worker(c, i));
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "stage", stages[c->stage], "epoch",
                  (json_int_t)c->o.job.epoch, "step", (json_int_t)(b ? b->decided : 0), "steps",
                  (json_int_t)(b ? b->steps : 0), "saved_step", (json_int_t)(b ? b->saved : -1),
                  "machines", (json_int_t)c->agent_count, "workers", workers);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}
