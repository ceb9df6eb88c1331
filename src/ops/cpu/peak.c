/* The machine's peak: the register-only loops of peak.simd.c on every thread of the team, for short
 * rounds; the best round counts, since anything else that ran meanwhile can only slow one down.
 *
 * This is about the machine, so it asks the machine, not the kernel set in use. For bf16 the
 * machine has two ways: its dot product, or fp32 multiply-adds on widened values. Some processors
 * run the dot product twice as fast as the latter, some (Sapphire Rapids, where another unit was
 * meant for it) half as fast. */
#include "ops/cpu/peak.h"

#include "base/clock.h"
#include "ops/ops.h"

#include <math.h>
#include <omp.h>

typedef double peak_fn(int64_t rounds);

static peak_fn *fma_loop(void)
{
    if (dt_kernels_find("avx512"))
        return dt_peak_f32_avx512;
    if (dt_kernels_find("avx2"))
        return dt_peak_f32_avx2;
    return dt_peak_f32_portable;
}

/* GFLOP/s of the team over one round, from the first thread's start to the last one's end */
static double measure(peak_fn *loop, int64_t rounds)
{
    double flops = 0, begin = INFINITY, end = 0;
#pragma omp parallel num_threads(dt_ops_threads()) reduction(+ : flops) reduction(min : begin)       \
    reduction(max : end)
    {
#pragma omp barrier
        begin = dt_clock_seconds();
        flops = loop(rounds);
        end = dt_clock_seconds();
    }
    return flops / (end - begin) * 1e-9;
}

double dt_ops_peak_gflops(enum dt_dtype compute, double seconds)
{
    peak_fn *fma = fma_loop();
    bool dot = compute == DT_BF16 && dt_kernels_find("avx512bf16");
    double best = 0, until = dt_clock_seconds() + seconds;
    do {
        double gflops = measure(fma, 50000); /* a quarter of a millisecond to a few */
        best = gflops > best ? gflops : best;
        gflops = dot ? measure(dt_peak_bf16_avx512bf16, 50000) : 0;
        best = gflops > best ? gflops : best;
    } while (dt_clock_seconds() < until);
    return best;
}
