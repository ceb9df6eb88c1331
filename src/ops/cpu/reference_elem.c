/* Reference of the plain operations: the definitions, one element after the other. */
#include "ops/cpu/common.h"
#include "ops/cpu/scalar.h"
#include "ops/ops.h"

#include <math.h>
#include <stddef.h>

void dt_rope_reference(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,
                       const int32_t *position, const float *table, bool inverse);
void dt_rope_reference(float *x, int64_t ld, int64_t T, int64_t heads, int64_t D, int64_t half,
                       const int32_t *position, const float *table, bool inverse)
{
    for (int64_t t = 0; t < T; t++) {
        const float *cosine = table + 2 * half * (int64_t)position[t];
        for (int64_t head = 0; head < heads; head++) {
            for (int64_t i = 0; i < half; i++) {
                float *a = x + t * ld + head * D + i, *b = a + half, was = *a;
                float c = cosine[i], s = inverse ? -cosine[half + i] : cosine[half + i];
                *a = was * c - *b * s;
                *b = *b * c + was * s;
            }
        }
    }
}

void dt_embed_forward_reference(float *x, const float *E, const float *P, const int32_t *id,
                                const int32_t *position, int64_t T, int64_t C);
void dt_embed_forward_reference(float *x, const float *E, const float *P, const int32_t *id,
                                const int32_t *position, int64_t T, int64_t C)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < C; i++)
            x[t * C + i] = P ? E[id[t] * C + i] + P[position[t] * C + i] : E[id[t] * C + i];
}

void dt_embed_backward_reference(float *dE, float *dP, const float *dx, const int32_t *id,
                                 const int32_t *position, int64_t T, int64_t C);
void dt_embed_backward_reference(float *dE, float *dP, const float *dx, const int32_t *id,
                                 const int32_t *position, int64_t T, int64_t C)
{
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < C; i++) {
            if (dE)
                dE[id[t] * C + i] += dx[t * C + i];
            if (dP)
                dP[position[t] * C + i] += dx[t * C + i];
        }
    }
}

/* One row: see loss.simd.c for why the sum is in double. */
static double loss_row(float *x, int32_t target, int64_t V, bool keep)
{
    float max = -INFINITY, hit = x[target];
    for (int64_t i = 0; i < V; i++)
        max = x[i] > max ? x[i] : max;
    double lane[DT_LANES] = {0};
    for (int64_t i = 0; i < V; i++) {
        float e = s_exp(x[i] - max);
        lane[i % DT_LANES] += e;
        if (!keep)
            x[i] = e;
    }
    double sum = s_tree_double(lane);
    if (!keep) {
        float factor = (float)(1 / sum);
        for (int64_t i = 0; i < V; i++)
            x[i] *= factor;
        x[target] -= 1;
    }
    return log(sum) + ((double)max - (double)hit);
}

void dt_loss_reference(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,
                       int64_t V, bool keep_logits);
void dt_loss_reference(float *logits, int64_t ld, const int32_t *target, double *loss, int64_t T,
                       int64_t V, bool keep_logits)
{
    for (int64_t t = 0; t < T; t++) {
        loss[t] = 0;
        if (target[t] >= 0)
            loss[t] = loss_row(logits + t * ld, target[t], V, keep_logits);
        else if (!keep_logits)
            memset(logits + t * ld, 0, (size_t)V * sizeof *logits);
    }
}

void dt_bias_backward_reference(float *db, const float *dy, int64_t ld, int64_t T, int64_t N);
void dt_bias_backward_reference(float *db, const float *dy, int64_t ld, int64_t T, int64_t N)
{
    for (int64_t i = 0; i < N; i++) {
        float total = 0, chunk = 0;
        for (int64_t t = 0; t < T; t++) {
            chunk += dy[t * ld + i];
            if (t % DT_CHUNK == DT_CHUNK - 1 || t == T - 1) {
                total += chunk;
                chunk = 0;
            }
        }
        db[i] += total;
    }
}

void dt_add_reference(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows,
                      int64_t cols);
void dt_add_reference(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows,
                      int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            y[r * ldy + i] += x[r * ldx + i];
}

static float element(const void *p, enum dt_dtype type, int64_t i)
{
    if (type == DT_F32)
        return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == DT_BF16 ? bf16_widen(h) : f16_widen(h);
}

void dt_copy_reference(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,
                       enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols);
void dt_copy_reference(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,
                       enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols)
{
    if (dst_type == src_type) { /* bits, whatever they mean */
        size_t size = dt_dtype_size(src_type), n = (size_t)cols * size;
        for (int64_t r = 0; r < rows; r++)
            memcpy((char *)dst + (size_t)(r * ldd) * size,
                   (const char *)src + (size_t)(r * lds) * size, n);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < cols; i++) {
            float f = element(src, src_type, r * lds + i);
            if (dst_type == DT_F32)
                ((float *)dst)[r * ldd + i] = f;
            else
                ((uint16_t *)dst)[r * ldd + i] = dst_type == DT_BF16 ? bf16_round(f) : f16_round(f);
        }
    }
}

void dt_adamw_reference(float *w, float *m, float *v, const float *grad, int64_t n,
                        const struct dt_adamw *p);
void dt_adamw_reference(float *w, float *m, float *v, const float *grad, int64_t n,
                        const struct dt_adamw *p)
{
    float decay = 1 - p->lr * p->weight_decay, rate = p->lr / p->bias1, root2 = sqrtf(p->bias2);
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * p->grad_scale;
        m[i] = p->beta1 * m[i] + (1 - p->beta1) * g;
        v[i] = p->beta2 * v[i] + (1 - p->beta2) * g * g;
        w[i] = w[i] * decay;
        w[i] = w[i] - rate * m[i] / (sqrtf(v[i]) / root2 + p->eps);
    }
}

bool dt_block_norms_reference(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum);
bool dt_block_norms_reference(const float *g, int64_t n, int scale_log2, struct dt_u128 *sum)
{
    bool good = true;
    for (int64_t first = 0; first < n; first += DT_BLOCK) {
        double lane[DT_LANES] = {0};
        for (int64_t i = first; i < n && i < first + DT_BLOCK; i++)
            lane[i % DT_LANES] += (double)g[i] * (double)g[i];
        good &= dt_block_norm_add(s_tree_double(lane), scale_log2, sum);
    }
    return good;
}
