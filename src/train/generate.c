#include "train/generate.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

static void carve(struct dt_generator *g, const struct dt_arch *a, const struct dt_model_options *o,
                  int64_t context, struct dt_arena *arena)
{
    size_t cache = (size_t)(a->L * context * a->K * a->D) * sizeof(float);
    dt_model_carve(&g->model, a, o, arena);
    g->cache = (struct dt_cache){.capacity = context};
    g->cache.k = dt_arena_reserve(arena, cache);
    g->cache.v = dt_arena_reserve(arena, cache);
    g->logits = dt_arena_reserve(arena, (size_t)a->V * sizeof(float));
    g->order = dt_arena_reserve(arena, (size_t)a->V * sizeof(int32_t));
}

int dt_generator_open(const struct dt_session *s, enum dt_dtype compute, int64_t context,
                      struct dt_generator *out)
{
    int rc;
    struct dt_arena count = {0};
    struct dt_model_options o = {
        .compute = compute, .max_tokens = DT_PREFILL, .positions = context, .rope_length = context};
    *out = (struct dt_generator){0};
    DT_TRY(dt_model_open(&out->model, s->arch));
    carve(out, s->arch, &o, context, &count);
    DT_CHECK(fail, rc, dt_arena_open(&out->arena, "generation", count.used));
    carve(out, s->arch, &o, context, &out->arena);
    dt_model_prepare(&out->model, &o);
    dt_state_addresses(&s->state, out->model.weight, out->model.gradient, NULL);
    return DT_OK;
fail:
    dt_generator_close(out);
    return rc;
}

void dt_generator_close(struct dt_generator *g)
{
    dt_model_close(&g->model);
    dt_arena_close(&g->arena);
    *g = (struct dt_generator){0};
}

static void forward(struct dt_generator *g, const int32_t *ids, int64_t n)
{
    struct dt_model *m = &g->model;
    int32_t start[2] = {0, (int32_t)n};
    for (int64_t t = 0; t < n; t++)
        g->position[t] = (int32_t)(g->cache.length + t);
    m->batch = (struct dt_microbatch){
        .T = n, .sequences = 1, .start = start, .ids = ids, .position = g->position};
    m->cache = &g->cache;
    dt_model_forward(m, DT_SEG_EMBED, -1);
    for (int64_t l = 0; l < m->arch->L; l++) {
        dt_model_forward(m, DT_SEG_ATTENTION, l);
        dt_model_forward(m, DT_SEG_MLP, l);
    }
    dt_model_forward(m, DT_SEG_HEAD, -1);
    g->cache.length += n;
}

int dt_generator_feed(struct dt_generator *g, const int32_t *ids, int64_t n)
{
    if (g->cache.length + n > g->cache.capacity)
        return DT_FAIL(DT_E_DATA, "%lld tokens do not fit the context of %lld",
                       (long long)(g->cache.length + n), (long long)g->cache.capacity);
    int64_t last = 0;
    for (int64_t at = 0; at < n; at += last) {
        last = n - at < DT_PREFILL ? n - at : DT_PREFILL;
        forward(g, ids + at, last);
    }
    int64_t V = g->model.arch->V;
    const float *row = dt_model_logits(&g->model, last - 1, 1);
    dt_k->copy(g->logits, DT_F32, V, row, DT_F32, V, 1, V);
    for (int64_t i = 0; i < V; i++)
        if (isnan(g->logits[i]))
            return DT_FAIL(
                DT_E_NUMERIC,
                "the logits after %lld tokens are not numbers: the weights are damaged or "
                "overflow",
                (long long)g->cache.length);
    return DT_OK;
}

/* Max-heap order: larger logit first, then lower id, so that equal logits have one order. */
static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

static void sift(const float *logits, int32_t *heap, int64_t n, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(logits, heap[child + 1], heap[child]))
            child++;
        if (!before(logits, heap[child], heap[i]))
            return;
        int32_t t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
    }
}

/* Takes tokens in order of likelihood until top_k or top_p is reached: the chosen ones stand at the
 * end of `order`, the likeliest last. Returns how many, and the sum of their weights. */
static int64_t keep_likeliest(struct dt_generator *g, const struct dt_sampling *how, double *kept)
{
    int64_t V = g->model.arch->V, limit = how->top_k > 0 && how->top_k < V ? how->top_k : V, n = 0;
    double total = 0;
    for (int64_t i = 0; i < V; i++)
        g->order[i] = (int32_t)i;
    for (int64_t i = V / 2 - 1; i >= 0; i--)
        sift(g->logits, g->order, V, i);
    double top = g->logits[g->order[0]];
    for (int64_t i = 0; i < V; i++)
        total += exp((g->logits[i] - top) / how->temperature);
    *kept = 0;
    while (n < limit && (n == 0 || *kept < how->top_p * total)) {
        int64_t size = V - n;
        int32_t best = g->order[0];
        g->order[0] = g->order[size - 1];
        g->order[size - 1] = best;
        sift(g->logits, g->order, size - 1, 0);
        *kept += exp((g->logits[best] - top) / how->temperature);
        n++;
    }
    return n;
}

int32_t dt_generator_choose(struct dt_generator *g, const struct dt_sampling *how)
{
    int64_t V = g->model.arch->V;
    int32_t best = 0;
    for (int64_t i = 1; i < V; i++)
        if (g->logits[i] > g->logits[best])
            best = (int32_t)i;
    int64_t step = g->steps++;
    if (how->temperature <= 0)
        return best;
    double kept;
    int64_t n = keep_likeliest(g, how, &kept);
    struct dt_rng_key key = {.seed = how->seed, .purpose = DT_RNG_SAMPLE};
    double left = dt_rng_uniform(key, (uint64_t)step) * kept, top = g->logits[best];
    for (int64_t i = 0; i < n; i++) {
        int32_t id = g->order[V - 1 - i];
        left -= exp((g->logits[id] - top) / how->temperature);
        if (left < 0)
            return id;
    }
    return g->order[V - n];
}
