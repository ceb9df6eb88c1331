/* Reference RMSNorm and LayerNorm: the definition, in scalar loops. Formulas in norm.simd.c. */
#include "ops/cpu/scalar.h"
#include "ops/ops.h"

#include <math.h>
#include <stddef.h>

static float row_mean(const float *x, int64_t C)
{
    float lane[DT_LANES] = {0};
    for (int64_t i = 0; i < C; i++)
        lane[i % DT_LANES] += x[i];
    return s_tree(lane) / (float)C;
}

static float row_mean_square(const float *x, float mean, int64_t C)
{
    float lane[DT_LANES] = {0};
    for (int64_t i = 0; i < C; i++)
        lane[i % DT_LANES] += (x[i] - mean) * (x[i] - mean);
    return s_tree(lane) / (float)C;
}

void dt_norm_forward_reference(const struct dt_norm *n);
void dt_norm_forward_reference(const struct dt_norm *n)
{
    for (int64_t at = 0; at < n->rows * n->groups; at++) {
        int64_t row = at / n->groups, offset = at % n->groups * n->cols;
        const float *x = n->x + row * n->ldx + offset;
        float mean = n->mean ? row_mean(x, n->cols) : 0;
        float rstd = 1.0f / sqrtf(row_mean_square(x, mean, n->cols) + n->eps);
        for (int64_t i = 0; i < n->cols; i++) {
            float y = (x[i] - mean) * rstd * n->w[i];
            if (n->b)
                y += n->b[i];
            if (n->y_bf16)
                n->y_bf16[row * n->ldy + offset + i] = bf16_round(y);
            else
                n->y[row * n->ldy + offset + i] = y;
        }
        if (n->mean)
            n->mean[at] = mean;
        n->rstd[at] = rstd;
    }
}

/* Column c of dw and db. */
static void column_sums(const struct dt_norm *n, int64_t c)
{
    float dw = 0, db = 0, chunk_dw = 0, chunk_db = 0;
    int64_t vectors = n->rows * n->groups;
    for (int64_t at = 0; at < vectors; at++) {
        int64_t row = at / n->groups, i = at % n->groups * n->cols + c;
        float dy = n->dy[row * n->ldy + i], mean = n->mean ? n->mean[at] : 0;
        chunk_dw += dy * ((n->x[row * n->ldx + i] - mean) * n->rstd[at]);
        chunk_db += dy;
        if (at % DT_CHUNK == DT_CHUNK - 1 || at == vectors - 1) {
            dw += chunk_dw;
            db += chunk_db;
            chunk_dw = chunk_db = 0;
        }
    }
    if (n->dw)
        n->dw[c] += dw;
    if (n->db)
        n->db[c] += db;
}

void dt_norm_backward_reference(const struct dt_norm *n);
void dt_norm_backward_reference(const struct dt_norm *n)
{
    int64_t C = n->cols;
    for (int64_t c = 0; c < C; c++)
        column_sums(n, c);
    for (int64_t at = 0; at < n->rows * n->groups; at++) {
        int64_t row = at / n->groups, offset = at % n->groups * C;
        const float *x = n->x + row * n->ldx + offset, *dy = n->dy + row * n->ldy + offset;
        float *dx = n->dx + row * n->lddx + offset;
        float mean = n->mean ? n->mean[at] : 0, rstd = n->rstd[at];
        float lane_g[DT_LANES] = {0}, lane_gx[DT_LANES] = {0};
        for (int64_t i = 0; i < C; i++) {
            float g = dy[i] * n->w[i];
            lane_g[i % DT_LANES] += g;
            lane_gx[i % DT_LANES] += g * ((x[i] - mean) * rstd);
        }
        float mean_g = n->mean ? s_tree(lane_g) / (float)C : 0;
        float mean_gx = s_tree(lane_gx) / (float)C;
        for (int64_t i = 0; i < C; i++) {
            float g = dy[i] * n->w[i];
            float d = rstd * ((g - mean_g) - (x[i] - mean) * rstd * mean_gx);
            dx[i] = n->add_dx ? d + dx[i] : d;
        }
    }
}
