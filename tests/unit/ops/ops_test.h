/* Shared by the tests of ops: buffers of exact size (so that ASan sees one element too many),
 * values of several kinds, and the kernel sets that run here. */
#ifndef OPS_TEST_H
#define OPS_TEST_H

#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const set_names[] = {"reference", "portable", "avx2", "avx512", "avx512bf16"};
enum { SETS = 5 };

/* ---- buffers: freed together at the end of a case ---- */

static void *pool[512];
static int pooled;

static inline void *exact(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p || pooled == 512)
        abort();
    return pool[pooled++] = p;
}

static inline void release(void)
{
    while (pooled)
        free(pool[--pooled]);
}

/* ---- values ---- */

enum values { PLAIN, TINY, WIDE, SPECIAL, VALUES };

static inline uint64_t next_random(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15u; /* splitmix64 (Steele et al. 2014) */
    uint64_t z = *s;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline double uniform(uint64_t *s) /* [-1, 1) */
{
    return (double)(next_random(s) >> 11) * 0x1p-52 - 1;
}

static inline float value_of(enum values kind, uint64_t *s)
{
    static const float special[] = {INFINITY, -INFINITY, NAN,     0.0f,
                                    -0.0f,    3e38f,     -1e-45f, 65520.0f};
    float x = (float)(3 * uniform(s));
    switch (kind) {
    case TINY: /* around the denormals of float */
        return x * 0x1p-128f;
    case WIDE:
        return ldexpf(x, (int)(next_random(s) % 61) - 30);
    case SPECIAL:
        return next_random(s) % 7 == 0 ? special[next_random(s) % 8] : x;
    default:
        return x;
    }
}

/* n floats after `skew` (0..3) unused ones: every alignment a float can have. */
static inline float *floats_at(int64_t n, int skew, enum values kind, uint64_t seed)
{
    float *p = exact((size_t)(n + skew) * sizeof *p);
    uint64_t s = seed * 7919 + 17;
    for (int64_t i = 0; i < n + skew; i++)
        p[i] = value_of(kind, &s);
    return p + skew;
}

static inline float *floats(int64_t n, enum values kind, uint64_t seed)
{
    return floats_at(n, 0, kind, seed);
}

static inline int32_t *indices(int64_t n, int32_t below, uint64_t seed)
{
    int32_t *p = exact((size_t)n * sizeof *p);
    uint64_t s = seed * 104729 + 3;
    for (int64_t i = 0; i < n; i++)
        p[i] = (int32_t)(next_random(&s) % (uint64_t)below);
    return p;
}

/* Elements of a [rows, cols] box with row stride ld, and not one more. */
static inline int64_t box(int64_t rows, int64_t cols, int64_t ld)
{
    return rows ? (rows - 1) * ld + cols : 0;
}

#endif
