/* Several workers: what the verbs call. */
#ifndef DT_CLUSTER_CLUSTER_H
#define DT_CLUSTER_CLUSTER_H

#include "cluster/launch.h"
#include "train/run.h"

/* `ductile train`: with one worker and no launcher in this process; else as coordinator with the
 * agent of this machine, or, for a launcher's later tasks, as an agent. config->workers is set to
 * what the launcher says. */
int dt_cluster_train(struct dt_run_config *config, const struct dt_train_options *options);

/* `ductile agent --join HOST:PORT`: until the run ends. network "": as the address to the
 * coordinator tells. secret_file NULL: DUCTILE_SECRET in the environment. */
struct dt_agent_join {
    const char *host;
    int port;
    const char *secret_file, *network;
    double timeout; /* seconds to keep trying */
};
int dt_cluster_agent(const struct dt_agent_join *o);

/* `ductile ctl status`: the coordinator's JSON (free it), of the run in `output`. */
int dt_cluster_status(const char *output, char **text);

/* `ductile doctor --comm`: local workers measure every link; a JSON array of arrays (free it). */
int dt_cluster_measure(int32_t workers, char **text);

/* ---- OUTPUT/.control, mode 0600: where the coordinator of a run listens, and the secret. ---- */
struct dt_control_file {
    char host[256], address[64], job[128];
    int32_t port;
    int64_t pid;
    char secret[65];
};
int dt_control_file_write(const char *output, const struct dt_control_file *c);
/* DT_E_NOT_FOUND when there is none. */
int dt_control_file_read(const char *output, struct dt_control_file *out);
void dt_control_file_remove(const char *output);

#endif
