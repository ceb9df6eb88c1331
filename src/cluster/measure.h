/* Latency and bandwidth of every pair of workers: the job behind `ductile doctor --comm`. */
#ifndef DT_CLUSTER_MEASURE_H
#define DT_CLUSTER_MEASURE_H

#include "comm/comm.h"

/* All workers call it together; pairs take turns, so that links are measured one at a time. *text
 * (free it): JSON of this worker's links to higher ranks: peer, path, latency_us, bandwidth_gbs. */
int dt_measure_links(struct dt_comm *c, char **text);

#endif
