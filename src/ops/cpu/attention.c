/* Attention, plain: the definition that the tiled sets are held to, and the size of their scratch.
 *
 * Scores are dot products in double of the fp32 inputs; softmax and every sum are in double,
 * results are rounded once. Nothing is stored between rows: probabilities are computed again where
 * they are needed, so no scratch is used. Rows of a tensor are split into chunks of CHUNK elements
 * only so that the sums of one row fit on the stack whatever D is. */
#include "ops/cpu/attention.h"

#include <math.h>

#define CHUNK 512

int64_t dt_attention_depth(int64_t D)
{
    int64_t depth = 256 / D;
    return depth > DT_ATTENTION_DEPTH ? DT_ATTENTION_DEPTH : depth > 1 ? depth : 1;
}

size_t dt_attention_thread_bytes(int64_t D)
{
    size_t tile = DT_ATTENTION_TILE, padded = ((size_t)D + 15) / 16 * 16;
    /* backward: five tiles [64, D] for each tile of queries, one of keys, two tiles [64, 64] */
    return ((5 * (size_t)dt_attention_depth(D) + 1) * tile * padded + 2 * tile * tile) *
           sizeof(float);
}

size_t dt_attention_work_bytes(int64_t H, int64_t K, int64_t D, int64_t q_rows)
{
    size_t group = (size_t)(H / K), rows = (size_t)q_rows;
    size_t progress = (rows * group / DT_ATTENTION_TILE + rows + 1) * (size_t)K * sizeof(int32_t);
    return (size_t)dt_ops_threads() * dt_attention_thread_bytes(D) + (progress + 63) / 64 * 64;
}

struct rows { /* of one sequence: where they start and how many there are */
    int64_t q0, q_n, k0, k_n;
};

static struct rows rows_of(const struct dt_attention *a, int64_t s)
{
    return (struct rows){a->q_start[s], a->q_start[s + 1] - a->q_start[s], a->k_start[s],
                         a->k_start[s + 1] - a->k_start[s]};
}

/* Keys [*first, *end) that query i of the sequence sees. */
static void keys_seen(const struct dt_attention *a, const struct rows *n, int64_t i, int64_t *first,
                      int64_t *end)
{
    int64_t last = i + n->k_n - n->q_n;
    *end = last + 1 > 0 ? last + 1 : 0;
    *first = a->window > 0 && last - a->window + 1 > 0 ? last - a->window + 1 : 0;
    if (*first > *end)
        *first = *end;
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

static void forward_row(const struct dt_attention *a, const struct rows *n, int64_t h, int64_t i)
{
    int64_t g = h / (a->H / a->K), first, end, D = a->D;
    const float *q = a->q + (n->q0 + i) * a->ldq + h * D; /* [D] */
    const float *k = a->k + n->k0 * a->ldk + g * D;       /* [keys, D], stride ldk */
    const float *v = a->v + n->k0 * a->ldv + g * D;       /* [keys, D], stride ldv */
    float *o = a->o + (n->q0 + i) * a->H * D + h * D;     /* [D] */
    keys_seen(a, n, i, &first, &end);
    double max = -INFINITY, total = 0;
    for (int64_t j = first; j < end; j++)
        max = fmax(max, (double)a->scale * dot(q, k + j * a->ldk, D));
    for (int64_t j = first; j < end; j++)
        total += exp((double)a->scale * dot(q, k + j * a->ldk, D) - max);
    for (int64_t c = 0; c < D; c += CHUNK) {
        double sum[CHUNK] = {0};
        int64_t width = D - c < CHUNK ? D - c : CHUNK;
        for (int64_t j = first; j < end; j++) {
            double p = exp((double)a->scale * dot(q, k + j * a->ldk, D) - max) / total;
            for (int64_t d = 0; d < width; d++)
                sum[d] += p * (double)v[j * a->ldv + c + d];
        }
        for (int64_t d = 0; d < width; d++)
            o[c + d] = (float)sum[d];
    }
    a->lse[h * a->q_start[a->sequences] + n->q0 + i] = (float)(max + log(total));
}

void dt_attention_forward_reference(const struct dt_attention *a)
{
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(dt_ops_threads())
    for (int64_t s = 0; s < a->sequences; s++)
        for (int64_t h = 0; h < a->H; h++) {
            struct rows n = rows_of(a, s);
            for (int64_t i = 0; i < n.q_n; i++)
                forward_row(a, &n, h, i);
        }
}

/* One pair of the backward: probability p of key j for query i of head h, and the gradient of its
 * score, ds = p (do·v - do·o). */
struct pair {
    double p, ds;
};

static struct pair pair_of(const struct dt_attention *a, const struct rows *n, int64_t h, int64_t i,
                           int64_t j)
{
    int64_t g = h / (a->H / a->K), D = a->D, row = n->q0 + i, key = n->k0 + j;
    const float *d_o = a->d_o + row * a->H * D + h * D,
                *o = a->o + row * a->H * D + h * D; /* [D] */
    double s = (double)a->scale * dot(a->q + row * a->ldq + h * D, a->k + key * a->ldk + g * D, D);
    double p = exp(s - (double)a->lse[h * a->q_start[a->sequences] + row]);
    return (struct pair){p, p * (dot(d_o, a->v + key * a->ldv + g * D, D) - dot(d_o, o, D))};
}

static void backward_query(const struct dt_attention *a, const struct rows *n, int64_t h, int64_t i)
{
    int64_t g = h / (a->H / a->K), first, end, D = a->D;
    const float *k = a->k + n->k0 * a->ldk + g * D;   /* [keys, D], stride ldk */
    float *dq = a->dq + (n->q0 + i) * a->ldd + h * D; /* [D] */
    keys_seen(a, n, i, &first, &end);
    for (int64_t c = 0; c < D; c += CHUNK) {
        double sum[CHUNK] = {0};
        int64_t width = D - c < CHUNK ? D - c : CHUNK;
        for (int64_t j = first; j < end; j++) {
            double ds = pair_of(a, n, h, i, j).ds;
            for (int64_t d = 0; d < width; d++)
                sum[d] += ds * (double)k[j * a->ldk + c + d];
        }
        for (int64_t d = 0; d < width; d++)
            dq[c + d] = (float)((double)a->scale * sum[d]);
    }
}

/* Adds what queries i of all heads of the group give to elements [c, c + width) of key j. */
static void backward_key(const struct dt_attention *a, const struct rows *n, int64_t g, int64_t j,
                         int64_t c, int64_t width)
{
    int64_t D = a->D, group = a->H / a->K, first, end;
    double dk[CHUNK] = {0}, dv[CHUNK] = {0};
    for (int64_t i = 0; i < n->q_n; i++) {
        keys_seen(a, n, i, &first, &end);
        for (int64_t h = g * group; j >= first && j < end && h < (g + 1) * group; h++) {
            struct pair x = pair_of(a, n, h, i, j);
            const float *q = a->q + (n->q0 + i) * a->ldq + h * D + c;       /* [width] */
            const float *d_o = a->d_o + (n->q0 + i) * a->H * D + h * D + c; /* [width] */
            for (int64_t d = 0; d < width; d++) {
                dk[d] += x.ds * (double)q[d];
                dv[d] += x.p * (double)d_o[d];
            }
        }
    }
    for (int64_t d = 0; d < width; d++) {
        a->dk[(n->k0 + j) * a->ldd + g * D + c + d] = (float)((double)a->scale * dk[d]);
        a->dv[(n->k0 + j) * a->ldd + g * D + c + d] = (float)dv[d];
    }
}

void dt_attention_backward_reference(const struct dt_attention *a)
{
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(dt_ops_threads())
    for (int64_t s = 0; s < a->sequences; s++)
        for (int64_t g = 0; g < a->K; g++) {
            struct rows n = rows_of(a, s);
            for (int64_t i = 0; i < n.q_n; i++)
                for (int64_t h = g * (a->H / a->K); h < (g + 1) * (a->H / a->K); h++)
                    backward_query(a, &n, h, i);
            for (int64_t j = 0; j < n.k_n; j++)
                for (int64_t c = 0; c < a->D; c += CHUNK)
                    backward_key(a, &n, g, j, c, a->D - c < CHUNK ? a->D - c : CHUNK);
        }
}
