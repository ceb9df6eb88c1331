/* RMSNorm and LayerNorm (Ba et al. 2016; Zhang & Sennrich 2019), also per head (QK norm).
 *
 *   xhat = (x - mean) · rstd        (RMSNorm: mean = 0)        y = xhat · w [+ b]
 *   g = dy · w      dx = rstd · (g - Σg/C - xhat · Σ(g·xhat)/C)  (RMSNorm: without Σg)
 *   dw = Σ_rows dy · xhat           db = Σ_rows dy
 *
 * A row's sums use 16 lanes and one tree. Sums over rows go by chunks of DT_CHUNK rows, in order,
 * each thread for its own columns: their bits do not depend on the team. That pass comes before
 * dx is written, because dx may be dy. */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <stddef.h>

#define STRIP 512 /* columns whose sums stay in the first-level cache */

VINLINE vf square_step(vf acc, const float *x, vf mean, int64_t k)
{
    vf d = v_keep(v_load_k(x, k, 0) - mean, k);
    return acc + d * d;
}

static float row_mean(const float *x, int64_t C)
{
    vf acc = v_set(0);
    int64_t i = 0;
    for (; i + VL <= C; i += VL)
        acc += v_load(x + i);
    if (i < C)
        acc += v_load_n(x + i, C - i, 0);
    return v_sum(acc) / (float)C;
}

static float row_mean_square(const float *x, float mean, int64_t C)
{
    vf acc = v_set(0), m = v_set(mean);
    int64_t i = 0;
    for (; i + VL <= C; i += VL)
        acc = square_step(acc, x + i, m, VL);
    if (i < C)
        acc = square_step(acc, x + i, m, C - i);
    return v_sum(acc) / (float)C;
}

struct row {
    const float *x, *dy;
    float *y, *dx;
    uint16_t *y_bf16;
    float mean, rstd;
    bool has_db;
};

VINLINE void forward_step(const struct dt_norm *n, const struct row *r, int64_t i, int64_t k)
{
    vf xhat = (v_load_k(r->x + i, k, 0) - v_set(r->mean)) * v_set(r->rstd);
    vf y = xhat * v_load_k(n->w + i, k, 0);
    if (n->b)
        y += v_load_k(n->b + i, k, 0);
    if (r->y_bf16)
        v_store_bf16_k(r->y_bf16 + i, y, k);
    else
        v_store_k(r->y + i, y, k);
}

static void forward_vector(const struct dt_norm *n, int64_t row, int64_t group)
{
    int64_t C = n->cols, at = row * n->groups + group, to = row * n->ldy + group * C, i = 0;
    struct row r = {.x = n->x + row * n->ldx + group * C};
    if (n->y_bf16)
        r.y_bf16 = n->y_bf16 + to;
    else
        r.y = n->y + to;
    if (n->mean)
        n->mean[at] = r.mean = row_mean(r.x, C);
    n->rstd[at] = r.rstd = 1.0f / __builtin_sqrtf(row_mean_square(r.x, r.mean, C) + n->eps);
    for (; i + VL <= C; i += VL)
        forward_step(n, &r, i, VL);
    if (i < C)
        forward_step(n, &r, i, C - i);
}

static void forward_range(int64_t begin, int64_t end, const void *arg)
{
    const struct dt_norm *n = arg;
    for (int64_t row = begin; row < end; row++)
        for (int64_t group = 0; group < n->groups; group++)
            forward_vector(n, row, group);
}

void DT_KERNEL(norm_forward)(const struct dt_norm *n);
void DT_KERNEL(norm_forward)(const struct dt_norm *n)
{
    dt_parallel(n->rows, 1, n->rows * n->groups * n->cols, forward_range, n);
}

/* ---- backward: sums over rows ---- */

struct strip {
    float dw[STRIP], db[STRIP];
};

VINLINE void sums_step(struct strip *s, const struct row *r, int64_t i, int64_t k)
{
    vf dy = v_load_k(r->dy + i, k, 0);
    vf xhat = (v_load_k(r->x + i, k, 0) - v_set(r->mean)) * v_set(r->rstd);
    v_store(s->dw + i, v_load(s->dw + i) + dy * xhat);
    if (r->has_db)
        v_store(s->db + i, v_load(s->db + i) + dy);
}

/* Vectors [first, last) (row-major over rows and groups), columns [c, c + m). */
static void sums_chunk(struct strip *s, const struct dt_norm *n, int64_t first, int64_t last,
                       int64_t c, int64_t m)
{
    memset(s, 0, sizeof *s);
    for (int64_t at = first; at < last; at++) {
        int64_t row = at / n->groups, offset = at % n->groups * n->cols + c, i = 0;
        struct row r = {
            .x = n->x + row * n->ldx + offset,
            .dy = n->dy + row * n->ldy + offset,
            .mean = n->mean ? n->mean[at] : 0,
            .rstd = n->rstd[at],
            .has_db = n->db != NULL,
        };
        for (; i + VL <= m; i += VL)
            sums_step(s, &r, i, VL);
        if (i < m)
            sums_step(s, &r, i, m - i);
    }
}

static void sums_range(int64_t begin, int64_t end, const void *arg)
{
    const struct dt_norm *n = arg;
    int64_t vectors = n->rows * n->groups;
    struct strip total, chunk;
    for (int64_t c = begin; c < end; c += STRIP) {
        int64_t m = end - c < STRIP ? end - c : STRIP;
        memset(&total, 0, sizeof total);
        for (int64_t first = 0; first < vectors; first += DT_CHUNK) {
            int64_t last = first + DT_CHUNK < vectors ? first + DT_CHUNK : vectors;
            sums_chunk(&chunk, n, first, last, c, m);
            for (int64_t i = 0; i < m; i++)
                total.dw[i] += chunk.dw[i];
            for (int64_t i = 0; i < m; i++)
                total.db[i] += chunk.db[i];
        }
        for (int64_t i = 0; n->dw && i < m; i++)
            n->dw[c + i] += total.dw[i];
        for (int64_t i = 0; n->db && i < m; i++)
            n->db[c + i] += total.db[i];
    }
}

/* ---- backward: dx ---- */

struct sums {
    vf g, gx; /* Σg and Σ g·xhat, lane by lane */
};

VINLINE struct sums dot_step(struct sums s, const struct dt_norm *n, const struct row *r, int64_t i,
                             int64_t k)
{
    vf g = v_load_k(r->dy + i, k, 0) * v_load_k(n->w + i, k, 0);
    vf xhat = (v_load_k(r->x + i, k, 0) - v_set(r->mean)) * v_set(r->rstd);
    s.g += v_keep(g, k);
    s.gx += v_keep(g * xhat, k);
    return s;
}

VINLINE void dx_step(const struct dt_norm *n, const struct row *r, float mean_g, float mean_gx,
                     int64_t i, int64_t k)
{
    vf g = v_load_k(r->dy + i, k, 0) * v_load_k(n->w + i, k, 0);
    vf xhat = (v_load_k(r->x + i, k, 0) - v_set(r->mean)) * v_set(r->rstd);
    vf dx = v_set(r->rstd) * ((g - v_set(mean_g)) - xhat * v_set(mean_gx));
    if (n->add_dx)
        dx += v_load_k(r->dx + i, k, 0);
    v_store_k(r->dx + i, dx, k);
}

static void dx_range(int64_t begin, int64_t end, const void *arg)
{
    const struct dt_norm *n = arg;
    int64_t C = n->cols;
    for (int64_t at = begin * n->groups; at < end * n->groups; at++) {
        int64_t row = at / n->groups, offset = at % n->groups * C, i = 0;
        struct row r = {
            .x = n->x + row * n->ldx + offset,
            .dy = n->dy + row * n->ldy + offset,
            .dx = n->dx + row * n->lddx + offset,
            .mean = n->mean ? n->mean[at] : 0,
            .rstd = n->rstd[at],
        };
        struct sums s = {v_set(0), v_set(0)};
        for (; i + VL <= C; i += VL)
            s = dot_step(s, n, &r, i, VL);
        if (i < C)
            s = dot_step(s, n, &r, i, C - i);
        float mean_g = n->mean ? v_sum(s.g) / (float)C : 0;
        float mean_gx = v_sum(s.gx) / (float)C;
        for (i = 0; i + VL <= C; i += VL)
            dx_step(n, &r, mean_g, mean_gx, i, VL);
        if (i < C)
            dx_step(n, &r, mean_g, mean_gx, i, C - i);
    }
}

void DT_KERNEL(norm_backward)(const struct dt_norm *n);
void DT_KERNEL(norm_backward)(const struct dt_norm *n)
{
    int64_t elements = n->rows * n->groups * n->cols;
    if (n->dw || n->db)
        dt_parallel(n->cols, VL, elements, sums_range, n);
    dt_parallel(n->rows, 1, elements, dx_range, n);
}
