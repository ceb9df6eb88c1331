/* Attention forward: exact softmax, one tile of 64 query rows against key tiles in ascending order.
 *
 * The running maximum and sum of a row are kept as in Dao et al. 2022 (FlashAttention) and Milakov
 * & Gimelshein 2018; scores are in units of log 2, the factor being folded into the packed queries.
 * Nothing a row goes through depends on the rows beside it, on other sequences or on threads. */
#include "ops/cpu/attention_gemm.h"
#include "ops/cpu/attention_tile.h"

#include <float.h>
#include <math.h>
#include <omp.h>

struct forward { /* one tile of queries */
    struct lanes x;
    float *qt;       /* [D, TILE] queries */
    float *ot;       /* [D, TILE] sums of values, not yet normalised */
    float *s;        /* [TILE keys, TILE] scores, then probabilities */
    float max[TILE]; /* what probabilities are relative to: a maximum, in units of log 2 */
    float sum[TILE];
};

/* Row maximum over keys [k0, k1) of W lanes at s, started from `max`; masks in place when lo is
 * given. */
VINLINE vr tile_max(float *s, int64_t k0, int64_t k1, vr max, const float *lo, const float *hi)
{
    vr best[4] = {max, max, max, max};
    int64_t k = k0;
    if (lo)
        for (; k < k1; k++) {
            vr x = vr_keep(vr_load(lo), vr_set((float)k), vr_load(hi), vr_load(s + k * TILE),
                           vr_set(-INFINITY));
            vr_store(s + k * TILE, x);
            best[0] = vr_max(x, best[0]);
        }
    for (; k + 4 <= k1; k += 4)
        for (int i = 0; i < 4; i++)
            best[i] = vr_max(vr_load(s + (k + i) * TILE), best[i]);
    for (; k < k1; k++)
        best[0] = vr_max(vr_load(s + k * TILE), best[0]);
    return vr_max(vr_max(best[0], best[1]), vr_max(best[2], best[3]));
}

/* A later score may be larger than the one that probabilities are relative to by up to this (2^8
 * times the probability): sums of floats do not mind, and earlier sums have hardly ever to be
 * rescaled. */
#define SLACK 8.0f

/* Scores of a key tile become probabilities. */
static void softmax(struct forward *f, const struct spans *sp, int64_t k0, int64_t D)
{
    const struct lanes *x = &f->x;
    float lo[TILE], hi[TILE];
    if (!sp->whole)
        relative(lo, hi, x, k0);
    for (int64_t r = 0; r < x->padded; r += W) {
        int64_t first = sp->k0[r / GRANULE], end = sp->k1[r / GRANULE];
        if (first == end)
            continue;
        vr old = vr_load(f->max + r), sum = vr_load(f->sum + r);
        vr seen = tile_max(f->s + r, first, end, old, sp->whole ? NULL : lo + r, hi + r);
        vr max = vr_keep(old + vr_set(SLACK), seen, vr_set(INFINITY), seen, old);
        if (!vr_equal(old, max)) {
            vr factor = vr_exp2(old - max);
            sum = sum * factor;
            for (int64_t d = 0; d < D; d++)
                vr_store(f->ot + d * TILE + r, vr_load(f->ot + d * TILE + r) * factor);
        }
        for (int64_t k = first; k < end; k++) {
            vr p = vr_exp2(vr_load(f->s + k * TILE + r) - max);
            vr_store(f->s + k * TILE + r, p);
            sum = sum + p;
        }
        vr_store(f->max + r, max);
        vr_store(f->sum + r, sum);
    }
}

static void forward_key_tile(struct forward *f, const struct dt_attention *a, const struct head *h,
                             int64_t k0)
{
    const float *key = a->k + (h->k0 + k0) * a->ldk + h->g * a->D;   /* [keys, D], stride ldk */
    const float *value = a->v + (h->k0 + k0) * a->ldv + h->g * a->D; /* [keys, D], stride ldv */
    struct spans sp;
    spans_set(&sp, &f->x, k0, h->k_n - k0 < TILE ? h->k_n - k0 : TILE);
    for (int64_t i = 0; i < sp.n; i++) {
        const struct span *s = &sp.at[i];
        multiply(&(struct product){.m = s->k1 - s->k0,
                                   .n = s->l1 - s->l0,
                                   .k = a->D,
                                   .a = key + s->k0 * a->ldk,
                                   .lda = a->ldk,
                                   .b = f->qt + s->l0,
                                   .ldb = TILE,
                                   .c = f->s + s->k0 * TILE + s->l0,
                                   .ldc = TILE});
    }
    softmax(f, &sp, k0, a->D);
    for (int64_t i = 0; i < sp.n; i++) {
        const struct span *s = &sp.at[i];
        multiply(&(struct product){.m = a->D,
                                   .n = s->l1 - s->l0,
                                   .k = s->k1 - s->k0,
                                   .a = value + s->k0 * a->ldv,
                                   .lda = a->ldv,
                                   .a_columns = true,
                                   .b = f->s + s->k0 * TILE + s->l0,
                                   .ldb = TILE,
                                   .c = f->ot + s->l0,
                                   .ldc = TILE,
                                   .add = true});
    }
}

static void forward_store(const struct forward *f, const struct dt_attention *a)
{
    const struct lanes *x = &f->x;
    for (int64_t r = 0; r < x->padded; r += W) {
        vr sum = vr_load(f->sum + r), empty = vr_set(0);
        vr inverse =
            vr_keep(empty, sum, empty, empty, vr_set(1) / sum); /* 0 for a row without keys */
        for (int64_t d = 0; d < a->D; d += W) {
            int64_t width = a->D - d < W ? a->D - d : W;
            vr y[W];
            for (int64_t i = 0; i < W; i++)
                y[i] = i < width ? vr_load(f->ot + (d + i) * TILE + r) * inverse : vr_set(0);
            vr_transpose(y);
            for (int64_t i = 0; i < W && r + i < x->n; i++) {
                if (width == W)
                    vr_store(a->o + x->o_at[r + i] + d, y[i]);
                else
                    vr_store_n(a->o + x->o_at[r + i] + d, y[i], width);
            }
        }
    }
    for (int64_t r = 0; r < x->n; r++) /* log2(0) = -inf */
        a->lse[x->lse_at[r]] = (float)(((double)f->max[r] + log2((double)f->sum[r])) * LN_2);
}

static void forward_begin(struct forward *f, const struct dt_attention *a, const struct head *h,
                          int64_t tile)
{
    lanes_set(&f->x, a, h, tile);
    pack_transposed(f->qt, a->q, f->x.q_at, &f->x, a->D, (float)((double)a->scale * LOG2_E));
    memset(f->ot, 0, (size_t)(a->D * TILE) * sizeof(float));
    for (int64_t r = 0; r < TILE; r++) {
        f->max[r] = -FLT_MAX;
        f->sum[r] = 0;
    }
}

/* Tiles [tile, end) of the head, at most DT_ATTENTION_DEPTH. */
static void forward_tiles(const struct dt_attention *a, const struct head *h, int64_t tile,
                          int64_t end, float *scratch)
{
    struct forward f[DT_ATTENTION_DEPTH];
    int64_t n = end - tile;
    for (int64_t i = 0; i < n; i++) {
        f[i].s = scratch;
        f[i].qt = scratch + TILE * TILE + 2 * i * a->D * TILE;
        f[i].ot = f[i].qt + a->D * TILE;
        forward_begin(&f[i], a, h, tile + i);
    }
    for (int64_t j = key_tiles_begin(a, h, tile); j < key_tiles_end(h, end); j++) {
        fetch_keys(a->k, a->ldk, h, j + 1, a->D);
        fetch_keys(a->v, a->ldv, h, j + 1, a->D);
        for (int64_t i = 0; i < n; i++)
            if (j >= f[i].x.first && j < f[i].x.end)
                forward_key_tile(&f[i], a, h, j * TILE);
    }
    for (int64_t i = 0; i < n; i++)
        forward_store(&f[i], a);
}

/* Takes tasks (`depth` tiles of query rows) until none is left: sequences and heads in order, in
 * each the longest, that is last, first, so that the end is even. */
static void forward_work(const struct dt_attention *a, int64_t depth, int64_t *next, float *scratch)
{
    int64_t s = 0, g = 0, begin = 0; /* first task of head (s, g) */
    int64_t task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    while (s < a->sequences) {
        struct head h = head_at(a, s, g);
        int64_t tasks = (h.tiles + depth - 1) / depth;
        for (; task < begin + tasks; task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) {
            int64_t tile = (begin + tasks - 1 - task) * depth;
            forward_tiles(a, &h, tile, tile + depth < h.tiles ? tile + depth : h.tiles, scratch);
        }
        begin += tasks;
        if (++g == a->K) {
            g = 0;
            s++;
        }
    }
}

void DT_KERNEL(attention_forward)(const struct dt_attention *a)
{
    int64_t next = 0, threads = team_for(a, 2), depth = depth_for(a, threads);
    size_t floats = dt_attention_thread_bytes(a->D) / sizeof(float);
    if (threads == 1) { /* no team of another size: it would be allocated anew */
        forward_work(a, depth, &next, a->work);
        return;
    }
#pragma omp parallel num_threads((int)threads)
    forward_work(a, depth, &next, (float *)a->work + (size_t)omp_get_thread_num() * floats);
}
