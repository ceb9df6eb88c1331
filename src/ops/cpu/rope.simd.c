/* Rotary positions (Su et al. 2021), the two halves of a head's first 2·half elements being the
 * pairs, as Hugging Face stores them: (a, b) -> (a·cos - b·sin, b·cos + a·sin). The backward turns
 * the other way. */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

struct args {
    float *x;
    int64_t ld, heads, D, half;
    const int32_t *position;
    const float *table;
    float sign; /* of the sine */
};

VINLINE void rotate_step(float *a, float *b, const float *c, const float *s, float sign, int64_t k)
{
    vf va = v_load_k(a, k, 0), vb = v_load_k(b, k, 0);
    vf vc = v_load_k(c, k, 0), vs = v_load_k(s, k, 0) * v_set(sign);
    v_store_k(a, va * vc - vb * vs, k);
    v_store_k(b, vb * vc + va * vs, k);
}

static void rotate_range(int64_t begin, int64_t end, const void *arg)
{
    const struct args *r = arg;
    for (int64_t t = begin; t < end; t++) {
        const float *c = r->table + 2 * r->half * (int64_t)r->position[t], *s = c + r->half;
        for (int64_t head = 0; head < r->heads; head++) {
            float *a = r->x + t * r->ld + head * r->D, *b = a + r->half;
            int64_t i = 0;
            for (; i + VL <= r->half; i += VL)
                rotate_step(a + i, b + i, c + i, s + i, r->sign, VL);
            if (i < r->half)
                rotate_step(a + i, b + i, c + i, s + i, r->sign, r->half - i);
        }
    }
}

void DT_KERNEL(rope)(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,
                     const int32_t *position, const float *table, bool inverse);
void DT_KERNEL(rope)(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,
                     const int32_t *position, const float *table, bool inverse)
{
    struct args r = {x, ld, heads, D, half, position, table, inverse ? -1.0f : 1.0f};
    dt_parallel(T, 1, T * heads * half * 2, rotate_range, &r);
}
