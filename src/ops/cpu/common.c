/* The operations that are the same in every kernel set: memory fills, random initialisation, a sum
 * in order, and how a block's norm becomes a fixed-point integer. */
#include "ops/cpu/common.h"

#include "base/rng.h"
#include "ops/cpu/parallel.h"

#include <math.h>
#include <string.h>

double dt_sum(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static void zero_range(int64_t begin, int64_t end, const void *arg)
{
    unsigned char *p = *(unsigned char *const *)arg;
    memset(p + begin, 0, (size_t)(end - begin));
}

void dt_zero(void *p, size_t bytes)
{
    unsigned char *at = p;
    dt_parallel((int64_t)bytes, 4096, (int64_t)(bytes / sizeof(float)), zero_range, &at);
}

struct fill {
    float *p;
    struct dt_rng_key key;
    float value; /* or the standard deviation */
    int64_t first;
};

static void fill_range(int64_t begin, int64_t end, const void *arg)
{
    const struct fill *f = arg;
    for (int64_t i = begin; i < end; i++)
        f->p[i] = f->value;
}

void dt_fill(float *p, int64_t n, float value)
{
    struct fill f = {.p = p, .value = value};
    dt_parallel(n, 1024, n, fill_range, &f);
}

static void fill_normal_range(int64_t begin, int64_t end, const void *arg)
{
    const struct fill *f = arg;
    for (int64_t i = begin; i < end; i++)
        f->p[i] = dt_rng_normal(f->key, (uint64_t)(f->first + i)) * f->value;
}

void dt_fill_normal(float *p, int64_t n, int64_t first, uint64_t seed, uint64_t tensor, float std)
{
    if (std == 0) { /* not normal * 0, which would leave negative zeros */
        dt_fill(p, n, 0);
        return;
    }
    struct fill f = {
        .p = p,
        .key = {.seed = seed, .purpose = DT_RNG_INIT, .item = tensor},
        .value = std,
        .first = first,
    };
    /* some 100 operations an element: worth the team much earlier than a copy */
    dt_parallel(n, 16, n * 64, fill_normal_range, &f);
}

bool dt_block_norm_add(double sum, int scale_log2, struct dt_u128 *to)
{
    double scaled = ldexp(sum, scale_log2);
    if (!(scaled < DT_BLOCK_NORM_LIMIT)) /* NaN fails too */
        return false;
    /* Integer-valued after rint (to nearest even; from 2^53 on it already is), so both halves are
     * exact. */
    double fixed = rint(ldexp(sum, scale_log2 + 80));
    uint64_t hi = (uint64_t)(fixed * 0x1p-64);
    uint64_t lo = (uint64_t)(fixed - (double)hi * 0x1p64);
    dt_u128_add(to, hi, lo);
    return true;
}
