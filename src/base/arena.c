#include "base/arena.h"

#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((size_t)2 << 20)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

int dt_arena_open(struct dt_arena *a, const char *name, size_t size)
{
    *a = (struct dt_arena){.name = name};
    /* A small arena is not worth a huge page of its own. */
    size_t page = size >= HUGE ? HUGE : 4096;
    size = round_up(size ? size : 1, page);
    /* Map one huge page more than asked for and give back what stands before the alignment. */
    size_t span = size + (page == HUGE ? HUGE : 0);
    unsigned char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return DT_FAIL(DT_E_MEMORY, "cannot map %.1f MiB for %s: %s", (double)size / 0x1p20, name,
                       strerror(errno));
    unsigned char *base = (unsigned char *)round_up((size_t)p, page);
    if (base > p)
        munmap(p, (size_t)(base - p));
    if (p + span > base + size)
        munmap(base + size, (size_t)(p + span - (base + size)));
    if (page == HUGE)
        madvise(base, size, MADV_HUGEPAGE); /* a kernel without huge pages is no error */
    for (size_t i = 0; i < size; i += 4096)
        ((volatile unsigned char *)base)[i] = 0;
    a->base = base;
    a->size = size;
    return DT_OK;
}

void *dt_arena_reserve(struct dt_arena *a, size_t bytes)
{
    size_t at = a->used;
    a->used += round_up(bytes, DT_ARENA_ALIGN);
    if (!a->base)
        return NULL;
    if (a->used > a->size) {
        fprintf(stderr, "ductile: arena '%s' of %zu bytes was sized too small (%zu needed)\n",
                a->name, a->size, a->used);
        abort();
    }
    return a->base + at;
}

void dt_arena_close(struct dt_arena *a)
{
    if (a->base)
        munmap(a->base, a->size);
    *a = (struct dt_arena){0};
}

int dt_new_bytes(void *out, size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    memcpy(out, &p, sizeof p);
    return p ? DT_OK : DT_FAIL(DT_E_MEMORY, "cannot allocate %zu bytes", bytes);
}
