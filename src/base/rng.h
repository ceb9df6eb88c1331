/* Counter-based randomness (Philox4x32-10, Salmon et al. 2011): the value is a pure function of
 * its key, so no generator state exists and none is saved. key = (seed, purpose, step, sample or
 * tensor, index). */
#ifndef DT_BASE_RNG_H
#define DT_BASE_RNG_H

#include <stdint.h>

enum dt_rng_purpose { DT_RNG_INIT = 1, DT_RNG_SHUFFLE, DT_RNG_SAMPLE, DT_RNG_SPLIT };

struct dt_rng_key {
    uint64_t seed;
    uint32_t purpose; /* enum dt_rng_purpose */
    uint32_t step;    /* or epoch */
    uint64_t item;    /* sample or tensor */
};

uint64_t dt_rng_u64(struct dt_rng_key key, uint64_t index);
/* Uniform in [0, bound), without modulo bias beyond 2^-64 · bound. */
uint64_t dt_rng_below(struct dt_rng_key key, uint64_t index, uint64_t bound);
double dt_rng_uniform(struct dt_rng_key key, uint64_t index); /* [0, 1), 53 bits */
float dt_rng_normal(struct dt_rng_key key, uint64_t index);   /* N(0, 1), Box-Muller */

#endif
