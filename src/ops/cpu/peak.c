/* The machine's peak: the register-only loops of peak.simd.c on every thread of the team, for short
 * rounds; the best round counts, since anything else that ran meanwhile can only slow one down.
 *
 * This is about the machine, so it asks the machine, not the kernel set in use. */
#include "base/clock.h"
#include "ops/cpu/gemm.h"

#include <omp.h>

typedef double peak_fn(int64_t rounds);

static peak_fn *choose(enum dt_dtype compute)
{
    bool bf16 = compute == DT_BF16;
    if (dt_kernels_find("avx512bf16"))
        return bf16 ? dt_peak_bf16_avx512bf16 : dt_peak_f32_avx512bf16;
    if (dt_kernels_find("avx512"))
        return bf16 ? dt_peak_bf16_avx512 : dt_peak_f32_avx512;
    if (dt_kernels_find("avx2"))
        return bf16 ? dt_peak_bf16_avx2 : dt_peak_f32_avx2;
    return bf16 ? dt_peak_bf16_portable : dt_peak_f32_portable;
}

/* GFLOP/s of the team over one round; every thread starts when all are there */
static double measure(peak_fn *loop, int64_t rounds)
{
    double flops = 0, begin = 0, end = 0;
#pragma omp parallel num_threads(dt_ops_threads()) reduction(+ : flops) reduction(max : end)
    {
#pragma omp barrier
#pragma omp master
        begin = dt_clock_seconds();
        flops = loop(rounds);
        end = dt_clock_seconds();
    }
    return flops / (end - begin) * 1e-9;
}

double dt_ops_peak_gflops(enum dt_dtype compute, double seconds)
{
    peak_fn *loop = choose(compute);
    double best = 0, until = dt_clock_seconds() + seconds;
    do {
        double gflops = measure(loop, 50000); /* about a quarter of a millisecond to a few */
        if (gflops > best)
            best = gflops;
    } while (dt_clock_seconds() < until);
    return best;
}
