/* The life of a worker process, from the inherited descriptors to its exit code. */
#ifndef DT_CLUSTER_WORKER_H
#define DT_CLUSTER_WORKER_H

/* Descriptors that an agent's child is born with, beside 0, 1 and 2. */
enum { DT_WORKER_CONTROL = 3, DT_WORKER_LAST_WORDS = 4 };

/* What `ductile worker` runs: not for people, an agent starts it. The result is the process's. */
int dt_worker_main(void);

#endif
