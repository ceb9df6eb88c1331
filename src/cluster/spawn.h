/* Starting one worker process, and what its end means. */
#ifndef DT_CLUSTER_SPAWN_H
#define DT_CLUSTER_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct dt_child {
    pid_t pid;
    int control; /* our end of the socket pair */
    int log;     /* read end of what it writes to standard output and error */
};

/* `ductile worker` of this very program: whole environment set before, every descriptor closed but
 * the ones of cluster/worker.h. local, device: for the transport's settings. */
int dt_child_start(bool local, const char *device, struct dt_child *out);

/* "killed by signal 9 (SIGKILL)", "exited with code 3". oom: the control group killed something
 * since the worker was started. */
void dt_child_words(int status, bool oom, char *out, size_t size);

#endif
