/* What a coordinator tells each worker to do, as JSON text. */
#ifndef DT_CLUSTER_JOB_H
#define DT_CLUSTER_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dt_job_kind { DT_JOB_TRAIN, DT_JOB_COMM }; /* COMM: measure every link (doctor --comm) */

struct dt_job {
    enum dt_job_kind kind;
    int32_t rank, workers, threads;
    int64_t epoch;
    double timeout, start_timeout; /* seconds */
    bool verbose;
    char *yaml;        /* the run's resolved configuration; NULL for COMM */
    int64_t first;     /* last step done */
    char *checkpoint;  /* "": from the model */
    char *checkpoints; /* directory, for words */
};

/* free() the text. */
int dt_job_print(const struct dt_job *j, char **text);
/* Free with dt_job_free in either case. */
int dt_job_parse(const char *text, size_t bytes, struct dt_job *out);
void dt_job_free(struct dt_job *j);

#endif
