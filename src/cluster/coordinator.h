/* The coordinator: the only authority on who is alive and what is decided.
 *
 * It runs in a thread of its own beside the agent of its machine. coordinator.c owns the
 * connections and the order of a start; verdicts.c says who is lost; answers.c turns votes,
 * evaluations and saves of all workers into answers, with the books (train/book.h); clerk.c does
 * what may wait on a disk in another thread, so that pulses are always answered; status.c describes
 * all of it.
 *
 * What is written in metrics.jsonl before DECIDE is sent is the record of the step; the newest
 * checkpoint is what a run goes back to. Nothing is decided by two of them: the run's lock keeps a
 * second coordinator out. */
#ifndef DT_CLUSTER_COORDINATOR_H
#define DT_CLUSTER_COORDINATOR_H

#include "cluster/job.h"
#include "cluster/link.h"

struct dt_book;
struct dt_coordinator;

struct dt_coordinator_options {
    struct dt_job job;        /* of every worker but for rank and threads; borrowed */
    struct dt_book *book;     /* NULL: a job that trains nothing */
    int64_t agents;           /* machines to wait for */
    int64_t threads;          /* per worker, 0: cores / workers of each machine */
    const char *output;       /* the run's directory, "" none */
    const char *launcher_job; /* agents of another job are refused; "" any */
    bool local;               /* no machine but this one */
    int listen_fd;            /* of ctl and other agents; the coordinator's from here on, -1 none */
    struct dt_secret secret;
    struct dt_link *inside; /* to the agent of this process; the coordinator's from here on */
};

/* Starts the thread. */
int dt_coordinator_start(const struct dt_coordinator_options *o, struct dt_coordinator **out);
/* Waits for its end: how the run ended, with the words. *result (may be NULL; free it): the RESULT
 * texts of all workers as a JSON array. */
int dt_coordinator_join(struct dt_coordinator *c, char **result);

#endif
