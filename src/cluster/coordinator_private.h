/* What the files of the coordinator share. */
#ifndef DT_CLUSTER_COORDINATOR_PRIVATE_H
#define DT_CLUSTER_COORDINATOR_PRIVATE_H

#include "base/error.h"
#include "cluster/coordinator.h"
#include "train/book.h"

#include <pthread.h>

enum { COORDINATOR__CTLS = 16 };

/* In the order in which a run comes up and goes down. */
enum coordinator__stage {
    STAGE_AGENTS,    /* waiting for machines */
    STAGE_ADDRESSES, /* workers open data and transport */
    STAGE_READY,     /* they connect, load weights */
    STAGE_RUNNING,
    STAGE_ENDING, /* END is sent, agents leave */
    STAGE_OVER
};

struct coordinator__worker {
    int32_t agent;
    int64_t pid; /* 0: not started */
    unsigned char *address;
    size_t address_bytes;
    bool ready, bye, dead;
    double heard;      /* clock of its last frame */
    double progressed; /* clock when `pulse.progress` or its phase last changed */
    struct dt_msg_pulse pulse;
    bool aborted; /* it died by SIGABRT; judged like a hint */
    double broken_at; /* it said that a peer is lost, 0: no */
    struct dt_msg_failed broken;
};

struct coordinator__agent {
    struct dt_link *link; /* NULL: gone */
    struct dt_msg_hello hello;
    bool greeted, bye, inside;
    int32_t first, count; /* ranks */
};

struct dt_coordinator {
    struct dt_coordinator_options o;
    pthread_t thread;
    enum coordinator__stage stage;
    double since;                      /* of the stage */
    struct coordinator__agent *agents; /* [o.agents] */
    int64_t agent_count;
    struct coordinator__worker *workers; /* [o.job.workers] */
    struct dt_link *ctls[COORDINATOR__CTLS];
    struct dt_door *door;
    char cookie[64];
    double next_pulse;
    bool stop_told;
    bool stop_asked; /* by a signal here or at an agent */
    /* questions under way */
    struct dt_msg_vote sum;
    int32_t votes;
    struct dt_msg_evaluated evaluated;
    struct clerk *clerk;
    int64_t saving_step;
    int32_t wants_save, parts_in;
    struct dt_checkpoint_writer *writer;
    struct dt_error_state save_error; /* the first failure of a part */
    double longest_step, last_decision;
    double peak_gflops; /* of the workers that are ready */
    /* the end */
    struct dt_error_state verdict; /* code 0: done */
    bool decided_end, stopped;
    char *results;        /* RESULT texts, as a JSON array without its end */
    unsigned char *frame; /* [COORDINATOR__FRAME] */
};
enum { COORDINATOR__FRAME = 1 << 20 };

/* coordinator.c */
void coordinator__send(struct dt_coordinator *c, int32_t rank, int64_t bytes); /* c->frame */
void coordinator__broadcast(struct dt_coordinator *c, int64_t bytes);
/* The run is over: `code` and the words of the trail are told to everybody. The first call counts.
 */
void coordinator__end(struct dt_coordinator *c, int code);
const char *coordinator__host(const struct dt_coordinator *c, int32_t rank);

/* answers.c */
void coordinator__vote(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__evaluated(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__save(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__saved(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__clerk_done(struct dt_coordinator *c);
/* All said BYE. */
void coordinator__finish(struct dt_coordinator *c);

/* verdicts.c */
void coordinator__died(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__failed(struct dt_coordinator *c, const struct dt_frame *f, bool broken);
void coordinator__pulse(struct dt_coordinator *c, const struct dt_frame *f);
void coordinator__judge(struct dt_coordinator *c);
void coordinator__lost_agent(struct dt_coordinator *c, int64_t agent, const char *why);

/* status.c: free() the text. */
char *coordinator__status(const struct dt_coordinator *c);

/* clerk.c: one job at a time, off the thread that answers pulses. */
struct clerk;
int clerk__open(struct clerk **out);
void clerk__close(struct clerk *k);
int clerk__descriptor(const struct clerk *k); /* readable when a job is done */
enum clerk__kind { CLERK_BEGIN, CLERK_END };
struct clerk__job {
    enum clerk__kind kind;
    struct dt_book *book;
    int64_t step;
    struct dt_checkpoint_writer *writer; /* BEGIN: out */
    struct dt_error_state error;         /* END: what went wrong with the parts (code 0: nothing);
                                            out: how it went */
    bool done;                           /* END, out: a checkpoint stands */
};
void clerk__give(struct clerk *k, const struct clerk__job *job);
/* false: nothing is done. */
bool clerk__take(struct clerk *k, struct clerk__job *job);
bool clerk__busy(const struct clerk *k);

#endif
