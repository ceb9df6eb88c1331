/* Geometry of attention's tiles, and the moves between memory and them.
 *
 * A *head* is one (sequence, kv head) with all its query heads. Its query rows, 64 at a time, are
 * the lanes of a tile; its keys, 64 at a time, the rows: scores lie transposed, [key, lane], so
 * that softmax runs down registers and keys and values are used where they lie. Both count from the
 * sequence's start. What a lane sees is an interval of keys that moves up with the lane; so the
 * part of a tile pair that is not masked out is a staircase, cut into *spans* of 16 x 16 granules.
 */
#ifndef DT_OPS_CPU_ATTENTION_TILE_H
#define DT_OPS_CPU_ATTENTION_TILE_H

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_vec.h"

#define TILE DT_ATTENTION_TILE
#define GRANULE 16
#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453

struct head {
    int64_t q0, q_n, k0, k_n; /* rows of its sequence: first and number */
    int64_t g, group;         /* kv head, query heads that share it */
    int64_t tiles;            /* of 64 query rows */
};

struct lanes {         /* one tile of query rows */
    int64_t n, padded; /* lanes in use; rounded up to granules */
    int64_t lo[TILE],
        hi[TILE]; /* keys seen are lo..hi; both ascend; lanes from n on repeat the last */
    int64_t q_at[TILE], o_at[TILE]; /* offsets of its row in q, o and d_o */
    int64_t dq_at[TILE];            /* and in dq */
    int64_t lse_at[TILE];
    int64_t first, end; /* key tiles that any lane sees */
};

struct span { /* keys [k0, k1) of a key tile against lanes [l0, l1); lanes are whole granules */
    int64_t k0, k1, l0, l1;
};

struct spans {
    int64_t n;
    bool whole; /* nothing in them is masked */
    struct span at[TILE / GRANULE];
    int64_t k0[TILE / GRANULE], k1[TILE / GRANULE]; /* keys that each granule of lanes meets */
};

VINLINE struct head head_at(const struct dt_attention *a, int64_t s, int64_t g)
{
    struct head h = {.q0 = a->q_start[s], .k0 = a->k_start[s], .g = g, .group = a->H / a->K};
    h.q_n = a->q_start[s + 1] - h.q0;
    h.k_n = a->k_start[s + 1] - h.k0;
    h.tiles = (h.q_n * h.group + TILE - 1) / TILE;
    return h;
}

/* First key that a query sees whose last is last_key. */
VINLINE int64_t first_key(const struct dt_attention *a, int64_t last_key)
{
    return a->window > 0 && last_key >= a->window ? last_key - a->window + 1 : 0;
}

/* First key tile that tile `tile` of queries sees. */
VINLINE int64_t key_tiles_begin(const struct dt_attention *a, const struct head *h, int64_t tile)
{
    return first_key(a, tile * TILE / h->group + h->k_n - h->q_n) / TILE;
}

/* Key tiles [0, end) are all that the head's first `tiles` tiles of queries see. */
VINLINE int64_t key_tiles_end(const struct head *h, int64_t tiles)
{
    int64_t row = tiles * TILE < h->q_n * h->group ? tiles * TILE : h->q_n * h->group;
    int64_t last = row ? (row - 1) / h->group + h->k_n - h->q_n : -1;
    return last < 0 ? 0 : last / TILE + 1;
}

static void lanes_set(struct lanes *x, const struct dt_attention *a, const struct head *h,
                      int64_t tile)
{
    int64_t rows = h->q_n * h->group, total = a->q_start[a->sequences];
    x->n = rows - tile * TILE < TILE ? rows - tile * TILE : TILE;
    x->padded = (x->n + GRANULE - 1) / GRANULE * GRANULE;
    int64_t i = tile * TILE / h->group, sub = tile * TILE % h->group;
    x->first = key_tiles_begin(a, h, tile);
    x->end = key_tiles_end(h, tile + 1);
    for (int64_t r = 0; r < x->padded; r++) {
        if (r >= x->n) {
            x->lo[r] = x->lo[r - 1];
            x->hi[r] = x->hi[r - 1];
            continue;
        }
        int64_t q_head = h->g * h->group + sub;
        x->hi[r] = i + h->k_n - h->q_n;
        x->lo[r] = first_key(a, x->hi[r]);
        x->q_at[r] = (h->q0 + i) * a->ldq + q_head * a->D;
        x->dq_at[r] = (h->q0 + i) * a->ldd + q_head * a->D;
        x->o_at[r] = ((h->q0 + i) * a->H + q_head) * a->D;
        x->lse_at[r] = q_head * total + h->q0 + i;
        if (++sub == h->group) {
            sub = 0;
            i++;
        }
    }
}

/* The spans of key tile [k0, k0 + keys). */
static void spans_set(struct spans *s, const struct lanes *x, int64_t k0, int64_t keys)
{
    s->n = 0;
    s->whole = k0 + keys - 1 <= x->hi[0] && k0 >= x->lo[x->n - 1];
    for (int64_t g = 0; g < TILE / GRANULE; g++)
        s->k0[g] = s->k1[g] = 0;
    for (int64_t k = 0; k < keys; k += GRANULE) {
        struct span now = {k, k + GRANULE < keys ? k + GRANULE : keys, 0, x->padded};
        while (now.l0 < now.l1 && x->hi[now.l0 + GRANULE - 1] < k0 + now.k0)
            now.l0 += GRANULE;
        while (now.l1 > now.l0 && x->lo[now.l1 - GRANULE] > k0 + now.k1 - 1)
            now.l1 -= GRANULE;
        if (now.l0 == now.l1)
            continue;
        for (int64_t g = now.l0 / GRANULE; g < now.l1 / GRANULE; g++) {
            if (s->k1[g] == 0)
                s->k0[g] = now.k0;
            s->k1[g] = now.k1;
        }
        struct span *last = s->n ? &s->at[s->n - 1] : NULL;
        if (last && last->k1 == now.k0 && last->l0 == now.l0 && last->l1 == now.l1)
            last->k1 = now.k1;
        else
            s->at[s->n++] = now;
    }
}

/* to[D, TILE] = the lanes' rows of x, transposed and scaled; padding lanes are zero. */
static void pack_transposed(float *to, const float *x, const int64_t *at, const struct lanes *ln,
                            int64_t D, float scale)
{
    for (int64_t r = 0; r < ln->padded; r += W)
        for (int64_t d = 0; d < D; d += W) {
            int64_t width = D - d < W ? D - d : W;
            vr y[W];
            for (int64_t i = 0; i < W; i++) {
                if (r + i >= ln->n)
                    y[i] = vr_set(0);
                else
                    y[i] = width == W ? vr_load(x + at[r + i] + d)
                                      : vr_load_n(x + at[r + i] + d, width);
            }
            vr_transpose(y);
            for (int64_t i = 0; i < width; i++)
                vr_store(to + (d + i) * TILE + r, y[i] * vr_set(scale));
        }
}

/* Rows of D floats, n of them, each scaled; missing columns up to a multiple of W are zero. */
VINLINE void pack_row(float *to, const float *x, int64_t D, float scale)
{
    for (int64_t d = 0; d < D; d += W) {
        vr y = D - d < W ? vr_load_n(x + d, D - d) : vr_load(x + d);
        vr_store(to + d, y * vr_set(scale));
    }
}

/* x[D] = from[D] * scale; `from` is readable up to the next multiple of W. */
VINLINE void unpack_row(float *x, const float *from, int64_t D, float scale)
{
    for (int64_t d = 0; d < D; d += W) {
        vr y = vr_load(from + d) * vr_set(scale);
        if (D - d < W)
            vr_store_n(x + d, y, D - d);
        else
            vr_store(x + d, y);
    }
}

/* Asks for rows of key tile j, short pieces far apart that no prefetcher guesses. x: k, v, dk or
 * dv. */
VINLINE void fetch_keys(const float *x, int64_t ld, const struct head *h, int64_t j, int64_t D)
{
    int64_t end = (j + 1) * TILE < h->k_n ? (j + 1) * TILE : h->k_n;
    for (int64_t k = j * TILE; k < end; k++)
        for (int64_t d = 0; d < D; d += 16)
            __builtin_prefetch(x + (h->k0 + k) * ld + h->g * D + d, 0, 2);
}

/* Intervals as floats relative to a key tile's start, exact for all that can matter in it. */
static void relative(float lo[TILE], float hi[TILE], const struct lanes *x, int64_t k0)
{
    for (int64_t r = 0; r < x->padded; r++) {
        int64_t l = x->lo[r] - k0, h = x->hi[r] - k0;
        lo[r] = (float)(l < 0 ? 0 : l > TILE ? TILE : l);
        hi[r] = (float)(h < -1 ? -1 : h > TILE ? TILE : h);
    }
}

/* Pairs of a query and a key that one query head of sequence s computes, about. */
VINLINE double pairs_of(const struct dt_attention *a, int64_t s)
{
    double q = a->q_start[s + 1] - a->q_start[s], k = a->k_start[s + 1] - a->k_start[s];
    double all = q * k - q * q / 2;
    return a->window > 0 && q * (double)a->window < all ? q * (double)a->window : all;
}

/* The whole team, or one thread when waking the others would cost more than `products` small matrix
 * products take. */
VINLINE int64_t team_for(const struct dt_attention *a, int products)
{
    double work = 0;
    for (int64_t s = 0; s < a->sequences; s++)
        work += pairs_of(a, s) * (double)(a->H * a->D) * products;
    return work < 2e5 ? 1 : dt_ops_threads();
}

/* Tiles of queries that a task takes: fewer where there are few tasks for each thread. */
VINLINE int64_t depth_for(const struct dt_attention *a, int64_t threads)
{
    int64_t tiles = 0, depth = dt_attention_depth(a->D);
    for (int64_t s = 0; s < a->sequences; s++)
        tiles += head_at(a, s, 0).tiles * a->K;
    while (depth > 1 && threads > 1 && tiles < 8 * threads * depth)
        depth--;
    return depth;
}

#endif
