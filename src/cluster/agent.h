/* One agent a machine: starts its workers, watches them, explains their deaths, passes frames on.
 *
 * It decides nothing. Without word from the coordinator for the set time it kills its workers:
 * that is what makes it safe for the coordinator to take them for dead. It runs on the thread that
 * spawned them (a parent's death signal fires when the spawning thread ends) and never opens an
 * OpenMP team or a transport, which do not survive becoming somebody's child. */
#ifndef DT_CLUSTER_AGENT_H
#define DT_CLUSTER_AGENT_H

#include "cluster/link.h"

struct dt_agent_options {
    struct dt_link *link; /* to the coordinator; the agent's from here on */
    const char *job;      /* the launcher's job id, "" */
    const char *address;  /* of the trusted network on this machine, "" local */
    const char *device;   /* its interface, "" local */
    int32_t node;         /* the launcher's number of this agent, -1: none */
    int32_t workers;      /* it must have so many; 0: by cores */
    bool inside;          /* a part of `ductile train`: signals are the coordinator's business */
};

/* Until the coordinator says END or is gone: the code it gave, with its words. All workers are gone
 * then, whatever happened. */
int dt_agent_run(const struct dt_agent_options *o);

#endif
