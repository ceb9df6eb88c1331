/* One way to use the team: cut [0, n) into one contiguous range a thread and run a function on
 * each.
 *
 * Kernels in *.simd.c are written as such range functions and know nothing of threads; as every
 * element's value depends on its own inputs only, the cut does not show in the result. */
#ifndef DT_OPS_CPU_PARALLEL_H
#define DT_OPS_CPU_PARALLEL_H

#include <stdint.h>

/* Below this many elements waking the team costs more than it saves. */
#define DT_SERIAL ((int64_t)16384)
/* Column count of one piece of work of the elementwise kernels over boxes (dt_tiles). */
#define DT_TILE ((int64_t)4096)

typedef void dt_range_fn(int64_t begin, int64_t end, const void *arg);

/* f(begin, end, arg) over a partition of [0, n); inner edges are multiples of `unit`. `elements`
 * is the whole amount of work: up to DT_SERIAL of it runs on the calling thread alone. */
void dt_parallel(int64_t n, int64_t unit, int64_t elements, dt_range_fn *f, const void *arg);

/* A [rows, cols] box as pieces of at most DT_TILE columns, row by row, so that one long row and
 * many short ones are both dealt out evenly. */
static inline int64_t dt_tiles(int64_t cols)
{
    return (cols + DT_TILE - 1) / DT_TILE;
}

struct dt_tile {
    int64_t row, col, n; /* columns [col, col + n) of the row */
};

static inline struct dt_tile dt_tile_at(int64_t index, int64_t cols)
{
    int64_t tiles = dt_tiles(cols);
    struct dt_tile t = {.row = index / tiles, .col = index % tiles * DT_TILE};
    t.n = cols - t.col < DT_TILE ? cols - t.col : DT_TILE;
    return t;
}

#endif
