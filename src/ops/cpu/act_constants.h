/* The numbers of the activations, so that the vector kernels and the reference share them. */
#ifndef DT_OPS_CPU_ACT_CONSTANTS_H
#define DT_OPS_CPU_ACT_CONSTANTS_H

#define DT_QUICK_GELU 1.702f
#define DT_GELU_SCALE 1.5957691216057308f /* 2 √(2/π) */
#define DT_GELU_CUBE 0.044715f
#define DT_INV_SQRT_2PI 0.3989422804014327f

/* Abramowitz & Stegun 7.1.26 for erfc(|x|/√2)/2: p/√2, and a1 … a5 halved */
#define DT_ERF_P 0.23164189f
#define DT_ERF_1 0.127414796f
#define DT_ERF_2 -0.142248368f
#define DT_ERF_3 0.7107068705f
#define DT_ERF_4 -0.7265760135f
#define DT_ERF_5 0.5307027145f

#endif
