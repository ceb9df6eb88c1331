/* What remote.c and control_remote.c share. */
#ifndef DT_CLUSTER_REMOTE_PRIVATE_H
#define DT_CLUSTER_REMOTE_PRIVATE_H

#include "cluster/remote.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

/* The newest answer of each kind: a worker asks one thing at a time. */
struct remote__inbox {
    bool has_decide, has_evaluated, has_save, has_saved;
    struct dt_msg_decide decide;
    struct dt_msg_evaluated evaluated;
    struct dt_msg_save save;
    struct dt_msg_saved saved;
};

struct dt_remote {
    int32_t rank;
    int64_t epoch;
    int last_words, statm, wake;
    double timeout; /* 0: not begun */
    char checkpoints[4096];
    pthread_t thread;
    bool started, closing;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    struct dt_link *link;
    struct dt_comm *comm;
    const _Atomic int64_t *instructions;
    char *job;
    size_t job_bytes;
    unsigned char *table_frame;
    size_t table_bytes;
    bool has_job, has_table, go, ended;
    int64_t step; /* last decided */
    struct remote__inbox inbox;
    _Atomic bool stop_asked;
    _Atomic int phase;
};

/* With the lock held: until *flag, DT_E_EPOCH when the run ended, DT_E_TIMEOUT. */
int remote__wait(struct dt_remote *r, const bool *flag, double seconds, const char *what);

#endif
