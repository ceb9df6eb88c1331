/* The trusted network between machines, and this machine's place in it. */
#ifndef DT_CLUSTER_NETWORK_H
#define DT_CLUSTER_NETWORK_H

#include <stddef.h>

enum { DT_ADDRESS = 64 };

/* network: "10.7.0.0/16" or "fd00::/8". The first address of an interface of this machine inside
 * it, and that interface's name. DT_E_CONFIG listing what this machine has when there is none. */
int dt_network_find(const char *network, char address[DT_ADDRESS], char device[DT_ADDRESS]);
/* The same for the address that a TCP connection has on this machine. */
int dt_network_of(int fd, char address[DT_ADDRESS], char device[DT_ADDRESS]);

#endif
