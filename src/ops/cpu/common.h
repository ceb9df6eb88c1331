/* What the kernel sets share: the fixed-point step of block norms (docs/numerics.md, "Norms"). */
#ifndef DT_OPS_CPU_COMMON_H
#define DT_OPS_CPU_COMMON_H

#include "ops/ops.h"

/* A block's scaled Σg² must stay below this: 2^24 blocks (17 G parameters), all at the limit, then
 * still add up without wrapping modulo 2^128 (24 + 24 + 80 bits). The limit is a root mean square
 * of 128 an element of the mean gradient: far beyond any training that is not already lost. */
#define DT_BLOCK_NORM_LIMIT 0x1p24

/* sum · 2^scale_log2 as fixed point into *to; false, adding nothing, when out of range or not
 * finite. */
bool dt_block_norm_add(double sum, int scale_log2, struct dt_u128 *to);

/* Modulo 2^128, safe against other threads that add to the same place: each wrap of the low half is
 * seen by exactly one of them. */
static inline void dt_u128_add(struct dt_u128 *to, uint64_t hi, uint64_t lo)
{
    uint64_t before = __atomic_fetch_add(&to->lo, lo, __ATOMIC_RELAXED);
    uint64_t carry = before + lo < before;
    __atomic_fetch_add(&to->hi, hi + carry, __ATOMIC_RELAXED);
}

#endif
