/* Attention backward: one pass, in which every tile pair's scores are computed again from q, k and
 * the log-sum-exp that forward kept (Dao et al. 2022).
 *
 * A task is a few tiles of query rows against their key tiles in ascending order; their dq stay in
 * the thread's tiles, dk and dv are added to where they will stay. So the tasks of one head must
 * pass each key tile in order. Where there are heads enough to keep the team even, a thread takes
 * whole heads. Otherwise tasks are dealt out one by one, across heads first, and each waits before
 * a key tile until the task before it in its head is past that key tile: a wave front, never held
 * up for long, and free of deadlock because tasks are taken in the order they wait for. However the
 * tiles are dealt out, each dk and dv adds query tiles in order and each dq key tiles in order. */
#include "ops/cpu/attention_gemm.h"
#include "ops/cpu/attention_tile.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <sched.h>

struct backward { /* one tile of queries */
    struct lanes x;
    int64_t pitch; /* of the row-major tiles: D rounded up to 16 */
    float *k, *p,
        *ds;         /* shared by the tiles of a task: [TILE, D], stride pitch; [TILE keys, TILE] */
    float *qt, *dot; /* [D, TILE] queries (scaled, in units of log 2), d_o */
    float *q, *d_o, *dq; /* [TILE, D], stride pitch; q scaled */
    float lse[TILE];     /* in units of log 2; FLT_MAX for a lane without keys */
    float delta[TILE];   /* Σ d_o o */
};

/* Where tile i of a task has its parts. */
static void backward_place(struct backward *b, int64_t D, int64_t i, float *scratch)
{
    int64_t size = (b->pitch = (D + 15) / 16 * 16) * TILE;
    b->p = scratch;
    b->ds = b->p + TILE * TILE;
    b->k = b->ds + TILE * TILE;
    b->qt = b->k + size + 5 * i * size;
    b->dot = b->qt + size;
    b->q = b->dot + size;
    b->d_o = b->q + size;
    b->dq = b->d_o + size;
}

static void backward_begin(struct backward *b, const struct dt_attention *a, const struct head *h,
                           int64_t tile)
{
    int64_t pitch = b->pitch;
    const struct lanes *x = &b->x;
    lanes_set(&b->x, a, h, tile);
    pack_transposed(b->qt, a->q, x->q_at, x, a->D, (float)((double)a->scale * LOG2_E));
    pack_transposed(b->dot, a->d_o, x->o_at, x, a->D, 1);
    memset(b->dq, 0, (size_t)(pitch * TILE) * sizeof(float));
    for (int64_t r = 0; r < x->padded; r += W) {
        vr sum[W];
        for (int64_t i = 0; i < W; i++) {
            sum[i] = vr_set(0);
            if (r + i >= x->n)
                continue;
            pack_row(b->q + (r + i) * pitch, a->q + x->q_at[r + i], a->D, a->scale);
            pack_row(b->d_o + (r + i) * pitch, a->d_o + x->o_at[r + i], a->D, 1);
            const float *o = a->o + x->o_at[r + i]; /* [D] */
            for (int64_t d = 0; d < a->D; d += W)
                sum[i] = vr_fma(vr_load(b->d_o + (r + i) * pitch + d),
                                a->D - d < W ? vr_load_n(o + d, a->D - d) : vr_load(o + d), sum[i]);
        }
        vr_transpose(sum);
        for (int64_t i = 1; i < W; i++)
            sum[0] = sum[0] + sum[i];
        vr_store(b->delta + r, sum[0]);
    }
    for (int64_t r = 0; r < x->padded; r++) {
        float lse = r < x->n ? a->lse[x->lse_at[r]] : -INFINITY;
        b->lse[r] = lse == -INFINITY ? FLT_MAX : (float)((double)lse * LOG2_E);
    }
}

/* Scores in p become probabilities, gradients of probabilities in ds gradients of scores. */
static void score_gradients(const struct backward *b, const struct spans *sp, int64_t k0)
{
    const struct lanes *x = &b->x;
    float lo[TILE], hi[TILE];
    if (!sp->whole)
        relative(lo, hi, x, k0);
    for (int64_t r = 0; r < x->padded; r += W) {
        vr lse = vr_load(b->lse + r), delta = vr_load(b->delta + r);
        for (int64_t k = sp->k0[r / GRANULE]; k < sp->k1[r / GRANULE]; k++) {
            float *p_at = b->p + k * TILE + r, *ds_at = b->ds + k * TILE + r;
            vr p = vr_exp2(vr_load(p_at) - lse);
            if (!sp->whole)
                p = vr_keep(vr_load(lo + r), vr_set((float)k), vr_load(hi + r), p, vr_set(0));
            vr_store(p_at, p);
            vr_store(ds_at, p * (vr_load(ds_at) - delta));
        }
    }
}

/* dk or dv of the span's keys += weights [keys, lanes] · rows [lanes, D] */
static void add_to_keys(const struct backward *b, const struct span *s, int64_t D,
                        const float *weights, const float *from, float *to, int64_t ld)
{
    multiply(&(struct product){.m = s->k1 - s->k0,
                               .n = D,
                               .k = (s->l1 < b->x.n ? s->l1 : b->x.n) - s->l0,
                               .a = weights + s->k0 * TILE + s->l0,
                               .lda = TILE,
                               .b = from + s->l0 * b->pitch,
                               .ldb = b->pitch,
                               .c = to + s->k0 * ld,
                               .ldc = ld,
                               .add = true});
}

/* dq += dsᵀ · k, for runs of granules of lanes that meet the same keys */
static void add_to_queries(const struct backward *b, const struct spans *sp, int64_t D)
{
    const struct lanes *x = &b->x;
    for (int64_t g = 0, end; g * GRANULE < x->n; g = end) {
        int64_t k0 = sp->k0[g], k1 = sp->k1[g], r = g * GRANULE;
        for (end = g + 1; end * GRANULE < x->n && sp->k0[end] == k0 && sp->k1[end] == k1;)
            end++;
        if (k0 == k1)
            continue;
        multiply(&(struct product){.m = (end * GRANULE < x->n ? end * GRANULE : x->n) - r,
                                   .n = D,
                                   .k = k1 - k0,
                                   .a = b->ds + k0 * TILE + r,
                                   .lda = TILE,
                                   .a_columns = true,
                                   .b = b->k + k0 * b->pitch,
                                   .ldb = b->pitch,
                                   .c = b->dq + r * b->pitch,
                                   .ldc = b->pitch,
                                   .add = true});
    }
}

static void backward_key_tile(const struct backward *b, const struct dt_attention *a,
                              const struct head *h, int64_t k0)
{
    int64_t keys = h->k_n - k0 < TILE ? h->k_n - k0 : TILE, D = a->D;
    int64_t v_at = (h->k0 + k0) * a->ldv + h->g * D, d_at = (h->k0 + k0) * a->ldd + h->g * D;
    struct spans sp;
    spans_set(&sp, &b->x, k0, keys);
    for (int64_t i = 0; i < sp.n; i++) {
        const struct span *s = &sp.at[i];
        struct product to_scores = {.m = s->k1 - s->k0,
                                    .n = s->l1 - s->l0,
                                    .k = D,
                                    .a = b->k + s->k0 * b->pitch,
                                    .lda = b->pitch,
                                    .b = b->qt + s->l0,
                                    .ldb = TILE,
                                    .c = b->p + s->k0 * TILE + s->l0,
                                    .ldc = TILE};
        multiply(&to_scores);
        to_scores.a = a->v + v_at + s->k0 * a->ldv;
        to_scores.lda = a->ldv;
        to_scores.b = b->dot + s->l0;
        to_scores.c = b->ds + s->k0 * TILE + s->l0;
        multiply(&to_scores);
    }
    score_gradients(b, &sp, k0);
    for (int64_t i = 0; i < sp.n; i++) {
        add_to_keys(b, &sp.at[i], D, b->p, b->d_o, a->dv + d_at, a->ldd);
        add_to_keys(b, &sp.at[i], D, b->ds, b->q, a->dk + d_at, a->ldd);
    }
    add_to_queries(b, &sp, D);
}

/* dk and dv of the head's keys [k0, k1) = 0 */
static void zero_keys(const struct dt_attention *a, const struct head *h, int64_t k0, int64_t k1)
{
    for (int64_t k = h->k0 + k0; k < h->k0 + (k1 < h->k_n ? k1 : h->k_n); k++) {
        memset(a->dk + k * a->ldd + h->g * a->D, 0, (size_t)a->D * sizeof(float));
        memset(a->dv + k * a->ldd + h->g * a->D, 0, (size_t)a->D * sizeof(float));
    }
}

#define FINISHED INT32_MAX

/* Until the tile before is past key tile j. It is being worked on, so this is short. */
static void wait_for(const int32_t *progress, int64_t j)
{
    for (int spin = 0; __atomic_load_n(progress, __ATOMIC_ACQUIRE) <= j; spin++) {
        if (spin < 64)
            __builtin_ia32_pause();
        else
            sched_yield(); /* its thread may be waiting for this core */
    }
}

/* Key tile j for the n tiles of a task. */
static void backward_keys(const struct backward *b, int64_t n, const struct dt_attention *a,
                          const struct head *h, int64_t j)
{
    const float *k = a->k + (h->k0 + j * TILE) * a->ldk + h->g * a->D; /* [keys, D], stride ldk */
    for (int64_t r = 0; r < TILE && j * TILE + r < h->k_n; r++)
        pack_row(b->k + r * b->pitch, k + r * a->ldk, a->D, 1);
    for (int64_t i = 0; i < n; i++)
        if (j >= b[i].x.first && j < b[i].x.end)
            backward_key_tile(&b[i], a, h, j * TILE);
}

/* Tiles [tile, end) of the head, at most DT_ATTENTION_DEPTH. progress: key tiles that each tile of
 * this head has passed, or NULL when its tasks come in order anyway. */
static void backward_tiles(const struct dt_attention *a, const struct head *h, int64_t tile,
                           int64_t end, int32_t *progress, float *scratch)
{
    struct backward b[DT_ATTENTION_DEPTH];
    int64_t n = end - tile;
    for (int64_t i = 0; i < n; i++) {
        backward_place(&b[i], a->D, i, scratch);
        backward_begin(&b[i], a, h, tile + i);
    }
    /* keys that no tile has met before; with a window, keys before the first query's are met by
     * none */
    int64_t fresh = key_tiles_end(h, tile), first = key_tiles_begin(a, h, tile);
    for (int64_t j = fresh < first ? fresh : first; j < key_tiles_end(h, end); j++) {
        if (progress && tile > 0)
            wait_for(&progress[tile - 1], j);
        if (j >= fresh)
            zero_keys(a, h, j * TILE, (j + 1) * TILE);
        if (j >= first)
            backward_keys(b, n, a, h, j);
        if (progress)
            __atomic_store_n(&progress[end - 1], (int32_t)(j + 1), __ATOMIC_RELEASE);
    }
    if (progress)
        __atomic_store_n(&progress[end - 1], FINISHED, __ATOMIC_RELEASE);
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < b[i].x.n; r++)
            unpack_row(a->dq + b[i].x.dq_at[r], b[i].dq + r * b[i].pitch, a->D, a->scale);
}

/* Takes whole heads until none is left. */
static void work_by_head(const struct dt_attention *a, int64_t *next, float *scratch)
{
    int64_t heads = a->sequences * a->K, depth = dt_attention_depth(a->D), task;
    while ((task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < heads) {
        struct head h = head_at(a, task / a->K, task % a->K);
        if (h.tiles == 0)
            zero_keys(a, &h, 0, h.k_n);
        for (int64_t tile = 0; tile < h.tiles; tile += depth)
            backward_tiles(a, &h, tile, tile + depth < h.tiles ? tile + depth : h.tiles, NULL,
                           scratch);
    }
}

/* Places in a head's array of progress before its sequence's; a sequence of n >= 1 rows has room
 * for n + floor(n group / TILE) tiles, at least as many as it needs. */
VINLINE int64_t progress_at(const struct dt_attention *a, int64_t row)
{
    return row * (a->H / a->K) / TILE + row;
}

/* Takes tasks until none is left: the first of every head, the second, ... */
static void work_by_wave(const struct dt_attention *a, int64_t depth, int64_t *next,
                         int32_t *progress, float *scratch)
{
    int64_t begin = 0, total = progress_at(a, a->q_start[a->sequences]) + 1, longest = 1;
    int64_t task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    for (int64_t tile = 0; tile < longest; tile += depth)
        for (int64_t s = 0; s < a->sequences; s++) {
            struct head h = head_at(a, s, 0);
            longest = h.tiles > longest ? h.tiles : longest;
            if (tile >= (h.tiles ? h.tiles : 1))
                continue;
            for (; task < begin + a->K; task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) {
                h.g = task - begin;
                if (h.tiles == 0)
                    zero_keys(a, &h, 0, h.k_n);
                else
                    backward_tiles(a, &h, tile, tile + depth < h.tiles ? tile + depth : h.tiles,
                                   progress + h.g * total + progress_at(a, h.q0), scratch);
            }
            begin += a->K;
        }
}

/* Would heads, taken in order by whoever is free, keep `threads` threads busy to the end? */
static bool heads_are_even(const struct dt_attention *a, int64_t threads)
{
    enum { MOST = 256 };
    double busy[MOST] = {0}, total = 0, longest = 0;
    for (int64_t task = 0; task < a->sequences * a->K && threads <= MOST; task++) {
        double *least = busy;
        for (int64_t t = 1; t < threads; t++)
            least = busy[t] < *least ? &busy[t] : least;
        *least += pairs_of(a, task / a->K);
        total += pairs_of(a, task / a->K);
        longest = *least > longest ? *least : longest;
    }
    return threads <= MOST && longest * (double)threads <= 1.1 * total;
}

void DT_KERNEL(attention_backward)(const struct dt_attention *a)
{
    int64_t next = 0, threads = team_for(a, 5), depth = depth_for(a, threads);
    size_t floats = dt_attention_thread_bytes(a->D) / sizeof(float);
    if (threads == 1) {
        work_by_head(a, &next, a->work);
        return;
    }
    bool by_head = heads_are_even(a, threads);
    int32_t *progress =
        (int32_t *)((char *)a->work + (size_t)dt_ops_threads() * dt_attention_thread_bytes(a->D));
    int64_t places = (progress_at(a, a->q_start[a->sequences]) + 1) * a->K;
    if (!by_head)
        memset(progress, 0, (size_t)places * sizeof(int32_t));
#pragma omp parallel num_threads((int)threads)
    {
        float *scratch = (float *)a->work + (size_t)omp_get_thread_num() * floats;
        if (by_head)
            work_by_head(a, &next, scratch);
        else
            work_by_wave(a, depth, &next, progress, scratch);
    }
}
