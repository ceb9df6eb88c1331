/* How this process was started: by hand, or by a launcher whose variables say which part it is. */
#ifndef DT_CLUSTER_LAUNCH_H
#define DT_CLUSTER_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

enum dt_launcher { DT_LAUNCH_NONE, DT_LAUNCH_TORCHRUN, DT_LAUNCH_SLURM, DT_LAUNCH_MPI };

struct dt_launch {
    enum dt_launcher kind;
    int32_t rank,
        size;        /* of the launcher's tasks; each is one agent, task 0 also the coordinator */
    int32_t workers; /* that each agent must have (mpirun: one a task), 0: by cores */
    char job[128];   /* tells agents of this job from those of another; "" when unknown */
    char host[256];  /* where the coordinator is said to be, "": read in OUTPUT/.control */
    int32_t port;    /* 0: unknown */
};

/* From the environment (DESIGN 4): Open MPI's and PMI's variables, Slurm's, torchrun's. A launcher
 * with a single task is none. DT_E_CONFIG when the variables contradict each other. */
int dt_launch_detect(struct dt_launch *out);
const char *dt_launcher_name(enum dt_launcher kind);

#endif
