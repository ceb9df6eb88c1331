/* What this process may use of the machine it runs on: cores and memory, with the limits of its
 * control groups (version 1 and 2), its affinity and its resource limits. Nothing here fails: what
 * the system does not tell is 0 or "unknown". */
#ifndef DT_BASE_MACHINE_H
#define DT_BASE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

struct dt_machine_memory {
    int64_t total;     /* bytes of the machine */
    int64_t available; /* bytes that the machine could give out now without swapping */
    int64_t limit;     /* the least limit of a control group or RLIMIT_AS, in bytes; 0: none */
    int64_t used;      /* of that limit, without what the kernel would drop (file cache) */
};
void dt_machine_memory(struct dt_machine_memory *out);
/* Bytes that this process may still take: the lesser of `available` and `limit - used`. */
int64_t dt_machine_memory_free(void);

/* How many processes the kernel has killed for memory in this process's control group; 0 unknown. */
int64_t dt_machine_oom_kills(void);

/* Cores that this process may use: its affinity, cut by the control groups' quota (rounded up);
 * >= 1. */
int dt_machine_threads(void);
/* Cores online in the machine. */
int dt_machine_cores(void);

void dt_machine_cpu_name(char *out, size_t size);
/* "always", "madvise", "never" or "unknown": may arenas have transparent huge pages? */
void dt_machine_huge_pages(char *out, size_t size);

#endif
