#include "base/rng.h"

#include <math.h>

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = n0;
        c[1] = (uint32_t)p1;
        c[2] = n2;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The 64-bit index and item and the step make up more than one counter block: item and purpose are
 * folded into the key by a first Philox pass. */
static void draw(struct dt_rng_key key, uint64_t index, uint32_t out[4])
{
    uint32_t k[4] = {(uint32_t)key.item, (uint32_t)(key.item >> 32), key.purpose, key.step};
    philox(k, (uint32_t)key.seed, (uint32_t)(key.seed >> 32));
    out[0] = (uint32_t)index;
    out[1] = (uint32_t)(index >> 32);
    out[2] = k[2];
    out[3] = k[3];
    philox(out, k[0], k[1]);
}

uint64_t dt_rng_u64(struct dt_rng_key key, uint64_t index)
{
    uint32_t r[4];
    draw(key, index, r);
    return (uint64_t)r[1] << 32 | r[0];
}

uint64_t dt_rng_below(struct dt_rng_key key, uint64_t index, uint64_t bound)
{
    return (uint64_t)((__extension__(unsigned __int128) dt_rng_u64(key, index) * bound) >> 64);
}

double dt_rng_uniform(struct dt_rng_key key, uint64_t index)
{
    return (double)(dt_rng_u64(key, index) >> 11) * 0x1p-53;
}

float dt_rng_normal(struct dt_rng_key key, uint64_t index)
{
    uint32_t r[4];
    draw(key, index, r);
    double u = ((double)r[0] + 1.0) * 0x1p-32; /* (0, 1] */
    double v = (double)r[1] * 0x1p-32;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}
