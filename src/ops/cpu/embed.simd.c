/* Embedding look-up and its gradient. The gradient adds rows that may repeat, so the team divides
 * the columns and every thread takes the tokens in order. */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <stddef.h>

struct args {
    float *x, *dE, *dP;
    const float *E, *P, *dx;
    const int32_t *id, *position;
    int64_t T, C;
};

/* to[0..n) = a + b; to may be a */
static void add_row(float *to, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(to + i, v_load(a + i) + v_load(b + i));
    if (i < n)
        v_store_n(to + i, v_load_n(a + i, n - i, 0) + v_load_n(b + i, n - i, 0), n - i);
}

static void forward_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *a = arg;
    int64_t C = a->C;
    for (int64_t t = begin; t < end; t++) {
        const float *row = a->E + a->id[t] * C;
        if (a->P)
            add_row(a->x + t * C, row, a->P + a->position[t] * C, C);
        else
            memcpy(a->x + t * C, row, (size_t)C * sizeof *row);
    }
}

void DT_KERNEL(embed_forward)(float *x, const float *E, const float *P, const int32_t *id,
                              const int32_t *position, int64_t T, int64_t C);
void DT_KERNEL(embed_forward)(float *x, const float *E, const float *P, const int32_t *id,
                              const int32_t *position, int64_t T, int64_t C)
{
    struct args a = {.x = x, .E = E, .P = P, .id = id, .position = position, .T = T, .C = C};
    dt_parallel(T, 1, T * C, forward_range, &a);
}

static void backward_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *a = arg;
    int64_t C = a->C, n = end - begin;
    for (int64_t t = 0; t < a->T; t++) {
        const float *dx = a->dx + t * C + begin;
        if (a->dE) {
            float *to = a->dE + a->id[t] * C + begin;
            add_row(to, to, dx, n);
        }
        if (a->dP) {
            float *to = a->dP + a->position[t] * C + begin;
            add_row(to, to, dx, n);
        }
    }
}

void DT_KERNEL(embed_backward)(float *dE, float *dP, const float *dx, const int32_t *id,
                               const int32_t *position, int64_t T, int64_t C);
void DT_KERNEL(embed_backward)(float *dE, float *dP, const float *dx, const int32_t *id,
                               const int32_t *position, int64_t T, int64_t C)
{
    struct args a = {.dE = dE, .dP = dP, .dx = dx, .id = id, .position = position, .T = T, .C = C};
    dt_parallel(C, VL, T * C, backward_range, &a);
}
