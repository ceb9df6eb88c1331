/* Memory of the state, initial values, and the moves between home and compute. */
#include "state/state.h"

#include "base/error.h"
#include "state/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t tensor_elements(const struct dt_arch *a, int64_t i)
{
    return a->tensors[i].rows * a->tensors[i].cols;
}

static bool trains(const struct dt_state_options *o, int64_t i)
{
    return o->kind != DT_STATE_WEIGHTS && (!o->trainable || o->trainable[i]);
}

static float *floats(struct dt_arena *arena, int64_t n)
{
    return dt_arena_reserve(arena, (size_t)n * sizeof(float));
}

static void *gradients(const struct dt_state *s, struct dt_arena *arena, int64_t n)
{
    return dt_arena_reserve(arena, (size_t)n * (s->exact ? sizeof(int64_t) : sizeof(float)));
}

static size_t staging_bytes(const struct dt_state *s)
{
    size_t most = 0;
    for (int64_t k = 0; k < s->part_count && !s->alias; k++) {
        const struct dt_exchange *x[] = {s->parts[k].gather, s->parts[k].reduce};
        for (int i = 0; i < 2; i++)
            most = dt_exchange_staging(x[i]) > most ? dt_exchange_staging(x[i]) : most;
    }
    return most;
}

/* The one place that says what the state takes: counts with an arena that has no memory, carves
 * with one that has. */
static void carve(struct dt_state *s, struct dt_arena *arena)
{
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        p->master = floats(arena, p->elements);
        p->gradient.any = gradients(s, arena, p->elements);
        if (s->kind == DT_STATE_TRAIN) {
            p->exp_avg = floats(arena, p->elements);
            p->exp_avg_sq = floats(arena, p->elements);
        }
        p->box = s->alias ? p->master : floats(arena, p->box_elements);
        p->box_gradient.any = s->alias ? p->gradient.any : gradients(s, arena, p->box_elements);
    }
    for (int64_t i = 0; i < s->arch->tensor_count; i++)
        s->frozen[i] = s->trainable[i] ? NULL : floats(arena, tensor_elements(s->arch, i));
    s->scratch = s->exact ? floats(arena, DT_STATE_SCRATCH) : NULL;
    for (int i = 0; i < DT_EXCHANGE_SLOTS; i++)
        s->staging.slot[i] = dt_arena_reserve(arena, staging_bytes(s));
}

static int open_exchange(struct dt_state *s, struct dt_part *p, bool gather,
                         struct dt_exchange **out)
{
    struct dt_move move;
    enum dt_exchange_kind kind = gather     ? DT_EXCHANGE_COPY
                                 : s->exact ? DT_EXCHANGE_SUM_FIXED
                                            : DT_EXCHANGE_SUM;
    DT_TRY(gather ? dt_move_gather(&p->space, &p->home, &p->compute, s->rank, &move)
                  : dt_move_reduce(&p->space, &p->compute, &p->home, s->rank, &move));
    int rc =
        dt_exchange_new(p->buckets, p->bucket_count, &move, s->rank, kind, s->comm,
                        gather ? DT_COMM_GATHER : DT_COMM_REDUCE, (uint64_t)(p - s->parts), out);
    dt_move_free(&move);
    return rc;
}

static int open_part(struct dt_state *s, struct dt_part *p)
{
    DT_TRY(dt_space_new(s->arch, s->trainable, &p->space));
    DT_TRY(dt_space_buckets(&p->space, &p->buckets, &p->bucket_count));
    DT_TRY(dt_home_buckets(&p->space, s->workers, NULL, &p->home));
    DT_TRY(dt_compute_whole(&p->space, s->workers, &p->compute));
    p->elements = dt_home_elements(&p->home, s->rank);
    p->box_elements = p->space.elements;
    p->gathered = -1;
    if (s->alias)
        return DT_OK;
    DT_TRY(open_exchange(s, p, true, &p->gather));
    return open_exchange(s, p, false, &p->reduce);
}

/* Everything but the memory. */
static int open_tables(const struct dt_arch *arch, const struct dt_state_options *o,
                       struct dt_state *s)
{
    int32_t workers = o->workers > 0 ? o->workers : 1;
    *s = (struct dt_state){.arch = arch,
                           .kind = o->kind,
                           .rank = o->rank,
                           .workers = workers,
                           .comm = o->comm,
                           .exact = o->exact,
                           .alias = workers == 1 && !o->copy_compute};
    pthread_mutex_init(&s->staging.lock, NULL);
    DT_TRY(DT_NEW(&s->trainable, arch->tensor_count));
    DT_TRY(DT_NEW(&s->frozen, arch->tensor_count));
    DT_TRY(DT_NEW(&s->frozen_dtype, arch->tensor_count));
    for (int64_t i = 0; i < arch->tensor_count; i++)
        s->trainable[i] = trains(o, i);
    if (o->kind == DT_STATE_WEIGHTS)
        return DT_OK;
    DT_TRY(DT_NEW(&s->parts, 1));
    s->part_count = 1;
    return open_part(s, &s->parts[0]);
}

int dt_state_bytes(const struct dt_arch *arch, const struct dt_state_options *o, size_t *bytes)
{
    struct dt_state s;
    struct dt_arena count = {0};
    int rc = open_tables(arch, o, &s);
    if (rc >= 0)
        carve(&s, &count);
    *bytes = count.used;
    dt_state_close(&s);
    return rc;
}

int dt_state_open(const struct dt_arch *arch, const struct dt_state_options *o,
                  struct dt_state *out)
{
    int rc;
    struct dt_arena count = {0};
    DT_CHECK(fail, rc, open_tables(arch, o, out));
    carve(out, &count);
    DT_CHECK(fail, rc, dt_arena_open(&out->arena, "weights and optimizer", count.used));
    carve(out, &out->arena);
    for (int64_t k = 0; k < out->part_count && !out->alias; k++) {
        struct dt_part *p = &out->parts[k];
        dt_exchange_attach(p->gather, p->master, p->box, &out->staging);
        dt_exchange_attach(p->reduce, p->box_gradient.any, p->gradient.any, &out->staging);
    }
    return DT_OK;
fail:
    dt_state_close(out);
    return rc;
}

void dt_state_close(struct dt_state *s)
{
    if (!s->arch)
        return;
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        dt_exchange_free(p->reduce);
        dt_exchange_free(p->gather);
        dt_compute_free(&p->compute);
        dt_home_free(&p->home);
        free(p->buckets);
        dt_space_free(&p->space);
    }
    free(s->parts);
    free(s->trainable);
    free(s->frozen);
    free(s->frozen_dtype);
    pthread_mutex_destroy(&s->staging.lock);
    dt_arena_close(&s->arena);
    *s = (struct dt_state){0};
}

void dt_state_addresses(const struct dt_state *s, const float **weight, float **gradient,
                        int64_t **fixed)
{
    for (int64_t i = 0; i < s->arch->tensor_count; i++) {
        weight[i] = s->frozen[i];
        gradient[i] = NULL;
        if (fixed)
            fixed[i] = NULL;
    }
    for (int64_t k = 0; k < s->part_count; k++) {
        const struct dt_part *p = &s->parts[k];
        for (int64_t b = 0; b < p->compute.count; b++) {
            const struct dt_box *box = &p->compute.boxes[b];
            int64_t i = p->space.tensor[box->tensor];
            if (box->owner != s->rank)
                continue;
            weight[i] = p->box + box->at;
            if (!s->exact)
                gradient[i] = p->box_gradient.real + box->at;
            else if (fixed)
                fixed[i] = p->box_gradient.fixed + box->at;
        }
    }
}

bool state__next_run(const struct dt_state *s, const struct dt_part *p, struct state__cursor *c,
                     struct state__run *out)
{
    const struct dt_interval *in = p->home.intervals;
    while (c->interval < p->home.count &&
           (in[c->interval].owner != s->rank || c->element >= in[c->interval].end))
        c->interval++;
    if (c->interval >= p->home.count)
        return false;
    in += c->interval;
    int64_t element = c->element > in->begin ? c->element : in->begin;
    int64_t tensor = dt_space_at(&p->space, element);
    int64_t end = p->space.offset[tensor + 1] < in->end ? p->space.offset[tensor + 1] : in->end;
    *out = (struct state__run){tensor, element - p->space.offset[tensor],
                               in->at + (element - in->begin), end - element};
    c->element = end;
    return true;
}

/* ---- Initial values ---- */

static bool is_norm(enum dt_role role)
{
    return role == DT_NORM1_W || role == DT_NORM2_W || role == DT_FINAL_NORM_W ||
           role == DT_Q_NORM || role == DT_K_NORM;
}

/* Elements first, first + 1, ... of tensor i. */
static void init_elements(const struct dt_state *s, uint64_t seed, int64_t i, int64_t first,
                          int64_t n, float *to)
{
    const struct dt_tensor *t = &s->arch->tensors[i];
    double std = s->arch->initializer_range / (t->residual ? sqrt(2.0 * (double)s->arch->L) : 1);
    if (t->rank == 1)
        dt_k->fill(to, n, is_norm(t->role) ? 1 : 0);
    else
        dt_k->fill_normal(to, n, first, seed, (uint64_t)i, (float)std);
}

void dt_state_init(struct dt_state *s, uint64_t seed)
{
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        struct state__cursor c = {0};
        for (struct state__run r; state__next_run(s, p, &c, &r);)
            init_elements(s, seed, p->space.tensor[r.tensor], r.element, r.count, p->master + r.at);
    }
    for (int64_t i = 0; i < s->arch->tensor_count; i++)
        if (s->frozen[i])
            init_elements(s, seed, i, 0, tensor_elements(s->arch, i), s->frozen[i]);
}

/* ---- Moves of a step ---- */

int64_t state__bucket(const struct dt_part *p, enum dt_segment_kind segment, int64_t layer)
{
    int64_t lo = 0, hi = p->bucket_count;
    for (; lo < hi; lo++)
        if (p->buckets[lo].segment == segment && p->buckets[lo].layer == layer)
            return lo;
    return -1;
}

/* f on the exchange of every part for its bucket of this segment. */
static int each_part(struct dt_state *s, bool gather, enum dt_segment_kind segment, int64_t layer,
                     int (*f)(struct dt_exchange *, int64_t))
{
    for (int64_t k = 0; k < s->part_count && !s->alias; k++) {
        struct dt_part *p = &s->parts[k];
        int64_t b = state__bucket(p, segment, layer);
        if (b >= 0 && !(gather && p->gathered == p->stamp))
            DT_TRY(f(gather ? p->gather : p->reduce, b));
    }
    return DT_OK;
}

int dt_state_gather_start(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    return each_part(s, true, segment, layer, dt_exchange_start);
}

int dt_state_gather_wait(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    return each_part(s, true, segment, layer, dt_exchange_wait);
}

int dt_state_reduce_start(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    return each_part(s, false, segment, layer, dt_exchange_start);
}

int dt_state_settle(struct dt_state *s)
{
    for (int64_t k = 0; k < s->part_count && !s->alias; k++) {
        struct dt_part *p = &s->parts[k];
        DT_TRY(dt_exchange_wait_all(p->gather));
        DT_TRY(dt_exchange_wait_all(p->reduce));
        p->gathered = p->stamp;
    }
    return DT_OK;
}

void dt_state_zero(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    size_t size = s->exact ? sizeof(int64_t) : sizeof(float);
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        int64_t bucket = state__bucket(p, segment, layer);
        for (int64_t b = 0; bucket >= 0 && b < p->compute.count; b++) {
            const struct dt_box *box = &p->compute.boxes[b];
            int64_t in = box->tensor - p->buckets[bucket].first;
            if (box->owner != s->rank || in < 0 || in >= p->buckets[bucket].count)
                continue;
            for (int64_t r = 0; r < box->row1 - box->row0; r++)
                dt_k->zero((char *)p->box_gradient.any + (size_t)(box->at + r * box->ld) * size,
                           (size_t)(box->col1 - box->col0) * size);
        }
    }
}
