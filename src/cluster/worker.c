#include "cluster/worker.h"

#include "base/error.h"
#include "base/log.h"
#include "cluster/job.h"
#include "cluster/measure.h"
#include "cluster/remote.h"
#include "comm/transport.h"
#include "train/run.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define JOB_SECONDS 60.0
#define END_SECONDS 60.0
/* Of one transfer. A slow peer is no lost one, and who is lost the coordinator says; this only keeps
 * a wait from being endless. */
#define TRANSFER_SECONDS 86400.0
#define PARENT_GRACE_SECONDS 5u

struct worker {
    struct dt_remote *remote;
    struct dt_job job;
    struct dt_comm *comm;
    struct dt_run_config config;
    struct dt_run run;
    struct dt_engine engine;
    struct dt_control control;
};

/* The agent's end is seen on the control connection. Should the thread that looks there be unable
 * to, the kernel's signal at the parent's death starts an alarm that nothing stops. */
static void on_orphaned(int number)
{
    (void)number;
    alarm(PARENT_GRACE_SECONDS);
}

/* Asking to stop is the agent's business: a terminal's CTRL-C reaches the whole group. */
static void set_signals(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, SIG_DFL);
    signal(SIGHUP, on_orphaned);
    prctl(PR_SET_PDEATHSIG, SIGHUP);
    prctl(PR_SET_NAME, "ductile"); /* not "exe", what it was started by */
}

/* ---- Meeting the others ---- */

static int send_address(struct worker *w)
{
    unsigned char frame[8192];
    struct dt_msg_address m = {.epoch = w->job.epoch};
    const void *data;
    DT_TRY(dt_comm_address(w->comm, &data, &m.bytes));
    m.data = data;
    return dt_remote_send(w->remote, frame, dt_pack_address(frame, sizeof frame, w->job.rank, &m));
}

static int connect_all(struct worker *w)
{
    struct dt_msg_table *table = malloc(sizeof *table);
    struct dt_comm_address *addresses = calloc((size_t)w->job.workers, sizeof *addresses);
    int rc =
        table && addresses ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory for the table of workers");
    if (rc >= 0)
        rc = dt_remote_table(w->remote, w->job.start_timeout, table);
    if (rc >= 0 && (table->size != w->job.workers || table->epoch != w->job.epoch))
        rc = DT_FAIL(DT_E_INTERNAL,
                     "the table is of %d workers and epoch %lld, expected %d and %lld", table->size,
                     (long long)table->epoch, w->job.workers, (long long)w->job.epoch);
    for (int32_t i = 0; rc >= 0 && i < table->size; i++)
        addresses[i] = (struct dt_comm_address){table->data[i], table->bytes[i]};
    if (rc >= 0)
        rc = dt_comm_connect(w->comm, addresses);
    free(addresses);
    free(table);
    return rc;
}

static int meet(struct worker *w)
{
    struct dt_comm_options o = {.rank = w->job.rank,
                                .size = w->job.workers,
                                .epoch = w->job.epoch,
                                .timeout = TRANSFER_SECONDS};
    DT_TRY(dt_comm_ucx_new(o.rank, o.size, o.epoch, &o.transport));
    DT_TRY(dt_comm_open(&o, &w->comm));
    dt_remote_watch(w->remote, w->comm);
    DT_TRY(send_address(w));
    return connect_all(w);
}

static int tell_ready(struct worker *w, double peak, const char *words)
{
    json_t *o = json_pack("{s:f, s:s}", "peak_gflops", peak, "words", words);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    int rc = text ? dt_remote_text(w->remote, DT_MSG_READY, text)
                  : DT_FAIL(DT_E_MEMORY, "no memory to report");
    free(text);
    json_decref(o);
    DT_TRY(rc);
    return dt_remote_go(w->remote, w->job.start_timeout);
}

/* ---- Training ---- */

static int open_run(struct worker *w, struct dt_train_options *o)
{
    DT_TRY(dt_run_config_parse("the coordinator's configuration", "/", w->job.yaml,
                               strlen(w->job.yaml), NULL, 0, &w->config));
    w->config.threads = w->job.threads;
    *o = (struct dt_train_options){.follow = true,
                                   .rank = w->job.rank,
                                   .first = w->job.first,
                                   .checkpoint = w->job.checkpoint};
    /* What the coordinator has already told need not be told by every worker again. */
    dt_log_set_level(w->job.verbose ? DT_LOG_DEBUG : DT_LOG_ERROR);
    DT_TRY(dt_run_open(&w->run, &w->config, o));
    if (!w->job.verbose)
        dt_log_set_level(DT_LOG_WARN);
    return DT_OK;
}

static int train(struct worker *w)
{
    struct dt_train_options o;
    char words[256];
    bool stopped;
    DT_TRY(open_run(w, &o));
    DT_TRY(meet(w));
    o.comm = w->comm;
    DT_TRY(dt_engine_open(&w->engine, &w->run));
    DT_TRY(dt_control_remote(w->remote, &w->engine.state, &w->control));
    dt_remote_progress(w->remote, &w->engine.executor.instructions);
    double peak = dt_engine_peak(&w->run, words, sizeof words);
    DT_TRY(tell_ready(w, peak, words));
    DT_TRY(dt_run_loop(&w->run, &w->engine, &w->control, &stopped));
    return dt_remote_text(w->remote, DT_MSG_BYE, stopped ? "stopped" : "");
}

static int measure(struct worker *w)
{
    char *text;
    DT_TRY(meet(w));
    DT_TRY(tell_ready(w, 0, ""));
    DT_TRY(dt_measure_links(w->comm, &text));
    int rc = dt_remote_text(w->remote, DT_MSG_RESULT, text);
    free(text);
    DT_TRY(rc);
    return dt_remote_text(w->remote, DT_MSG_BYE, "");
}

/* Words to the coordinator, who says whether the run goes on. A lost peer is a hint: the
 * coordinator knows better who died. */
static void report(struct worker *w, int rc)
{
    unsigned char *frame = malloc(sizeof(struct dt_msg_failed) + 256);
    struct dt_msg_failed m = {.code = rc, .peer = -1};
    if (!frame)
        return;
    snprintf(m.words, sizeof m.words, "%s", dt_error_message());
    int type = rc == DT_E_PEER ? DT_MSG_BROKEN : DT_MSG_FAILED;
    dt_remote_send(w->remote, frame, dt_pack_failed(frame, sizeof m + 256, type, w->job.rank, &m));
    free(frame);
}

static void close_all(struct worker *w)
{
    dt_remote_watch(w->remote, NULL);
    dt_remote_progress(w->remote, NULL);
    if (w->control.close)
        w->control.close(w->control.self);
    dt_engine_close(&w->engine);
    dt_comm_close(w->comm);
    dt_run_close(&w->run);
    dt_run_config_free(&w->config);
}

static int work(struct worker *w)
{
    const char *text;
    size_t bytes;
    DT_TRY(dt_remote_job(w->remote, JOB_SECONDS, &text, &bytes));
    DT_TRY(dt_job_parse(text, bytes, &w->job));
    dt_remote_begin(w->remote, w->job.rank, w->job.epoch, w->job.timeout, w->job.checkpoints);
    return w->job.kind == DT_JOB_TRAIN ? train(w) : measure(w);
}

int dt_worker_main(void)
{
    static struct worker w;
    struct dt_remote_options o = {
        .fd = DT_WORKER_CONTROL, .last_words = DT_WORKER_LAST_WORDS, .rank = -1};
    set_signals();
    DT_TRY(dt_remote_open(&o, &w.remote));
    int rc = work(&w);
    if (rc < 0)
        report(&w, rc);
    /* END with a failure leaves at once, from the thread that reads it. */
    struct dt_error_state why;
    dt_error_save(rc, &why);
    int ended = dt_remote_ended(w.remote, END_SECONDS);
    close_all(&w);
    dt_remote_close(w.remote);
    dt_job_free(&w.job);
    return rc < 0 ? dt_error_restore(&why) : ended;
}
