/* The register-only loops (peak.simd.c). */
#ifndef DT_OPS_CPU_PEAK_H
#define DT_OPS_CPU_PEAK_H

#include <stdint.h>

/* Each returns the floating-point operations of `rounds` rounds. */
double dt_peak_f32_portable(int64_t rounds);
double dt_peak_f32_avx2(int64_t rounds);
double dt_peak_f32_avx512(int64_t rounds);
double dt_peak_f32_avx512bf16(int64_t rounds);
double dt_peak_bf16_avx512bf16(int64_t rounds);

#endif
