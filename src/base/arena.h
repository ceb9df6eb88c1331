/* One allocation, carved by offsets.
 *
 * Everything that lives as long as a step, a plan or a run stands in an arena. Sizes are known
 * before anything runs: the same code first counts (dt_arena_reserve on an arena without memory)
 * and then carves. Memory comes from mmap, aligned to 2 MiB, with MADV_HUGEPAGE, and is touched
 * once by dt_arena_open (in parallel callers touch it themselves): no page fault afterwards. */
#ifndef DT_BASE_ARENA_H
#define DT_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct dt_arena {
    unsigned char *base; /* NULL while only counting */
    size_t size;         /* bytes mapped */
    size_t used;         /* bytes handed out so far */
    const char *name;
};

#define DT_ARENA_ALIGN ((size_t)64)

/* Map `size` bytes and touch every page. DT_E_MEMORY when the system refuses. */
int dt_arena_open(struct dt_arena *a, const char *name, size_t size);
/* `bytes` rounded up to DT_ARENA_ALIGN. While only counting (base NULL) returns NULL and counts;
 * with memory, running over the end is a programming error and stops the process. */
void *dt_arena_reserve(struct dt_arena *a, size_t bytes);
void dt_arena_close(struct dt_arena *a);

/* Small things that live long: like malloc, but a failure is DT_E_MEMORY with a message. Zeroed. */
int dt_new_bytes(void *out, size_t bytes);
#define DT_NEW(out, count) dt_new_bytes((void *)(out), sizeof **(out) * (size_t)(count))

#endif
