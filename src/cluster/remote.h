/* A worker's end of the control connection.
 *
 * One thread of its own reads it, answers nothing but keeps what the loop waits for (the table of
 * addresses, the decision, totals, outcomes of saves), sends pulses, and ends the process when the
 * coordinator says so, or when there has been no word from the agent for too long. So a worker that
 * sits in a kernel or waits for a dead peer still leaves within a moment, and a pulse says that the
 * process lives while `progress` in it says whether the loop gets on. */
#ifndef DT_CLUSTER_REMOTE_H
#define DT_CLUSTER_REMOTE_H

#include "cluster/link.h"
#include "comm/comm.h"

struct dt_remote;

struct dt_remote_options {
    int fd;         /* the inherited socket pair */
    int last_words; /* descriptor for the line written when nobody is left to tell, -1 */
    int32_t rank;   /* known after the job came: set by dt_remote_job */
};

/* Starts the thread. */
int dt_remote_open(const struct dt_remote_options *o, struct dt_remote **out);
void dt_remote_close(struct dt_remote *r);

/* The job (JSON text, the remote's until close) that the coordinator sends first. */
int dt_remote_job(struct dt_remote *r, double seconds, const char **text, size_t *bytes);
/* From then on: who this is, how long silence may last, what to say at an unhappy end. */
void dt_remote_begin(struct dt_remote *r, int32_t rank, int64_t epoch, double timeout,
                     const char *checkpoints);
/* Transfers end when the epoch does. NULL: not any more. */
void dt_remote_watch(struct dt_remote *r, struct dt_comm *comm);
/* What pulses report. */
void dt_remote_progress(struct dt_remote *r, const _Atomic int64_t *instructions);

int dt_remote_send(struct dt_remote *r, const unsigned char *frame, int64_t bytes);
int dt_remote_text(struct dt_remote *r, int type, const char *text);
/* Wait for one message of a kind, copied out; DT_E_EPOCH when the end came instead. */
int dt_remote_table(struct dt_remote *r, double seconds, struct dt_msg_table *out);
int dt_remote_go(struct dt_remote *r, double seconds);
/* Waits for END. */
int dt_remote_ended(struct dt_remote *r, double seconds);

/* train/control.h over the connection. `state` is what saves write. */
struct dt_state;
int dt_control_remote(struct dt_remote *r, struct dt_state *state, struct dt_control *out);

#endif
