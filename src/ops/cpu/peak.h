/* The register-only loops (peak.simd.c), and what the choice of a kernel set asks the machine. */
#ifndef DT_OPS_CPU_PEAK_H
#define DT_OPS_CPU_PEAK_H

#include <stdbool.h>
#include <stdint.h>

/* Each returns the floating-point operations of `rounds` rounds. */
double dt_peak_f32_portable(int64_t rounds);
double dt_peak_f32_avx2(int64_t rounds);
double dt_peak_f32_avx512(int64_t rounds);
double dt_peak_f32_avx512bf16(int64_t rounds);
double dt_peak_bf16_avx512bf16(int64_t rounds);

/* Whether the bf16 dot product computes more than fp32 multiply-adds on widened values do. They are a factor
 * of two apart one way or the other, and the best of many short tries on the calling thread counts, so
 * a busy machine does not change the answer. Takes about a millisecond; call it only where the set
 * avx512bf16 runs. */
bool dt_peak_dot_pays(void);

#endif
