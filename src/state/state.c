/* Memory of the state, initial values, and the moves between home and compute. */
#include "state/state.h"

#include "base/error.h"

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

/* The one place that says what the state takes: counts with an arena that has no memory, carves
 * with one that has. */
static void carve(struct dt_state *s, struct dt_arena *arena)
{
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        int64_t n = p->space.elements;
        p->master = floats(arena, n);
        p->gradient = floats(arena, n);
        if (s->kind == DT_STATE_TRAIN) {
            p->exp_avg = floats(arena, n);
            p->exp_avg_sq = floats(arena, n);
        }
        p->box = s->alias ? p->master : floats(arena, n);
        p->box_gradient = s->alias ? p->gradient : floats(arena, n);
    }
    for (int64_t i = 0; i < s->arch->tensor_count; i++)
        s->frozen[i] = s->trainable[i] ? NULL : floats(arena, tensor_elements(s->arch, i));
}

static int open_part(struct dt_state *s, struct dt_part *p)
{
    DT_TRY(dt_space_new(s->arch, s->trainable, &p->space));
    DT_TRY(dt_home_even(&p->space, 1, NULL, &p->home));
    DT_TRY(dt_compute_whole(&p->space, 1, &p->compute));
    DT_TRY(dt_move_gather(&p->space, &p->home, &p->compute, &p->gather));
    DT_TRY(dt_move_reduce(&p->space, &p->compute, &p->home, &p->reduce));
    return DT_OK;
}

/* Everything but the memory. */
static int open_tables(const struct dt_arch *arch, const struct dt_state_options *o,
                       struct dt_state *s)
{
    *s = (struct dt_state){.arch = arch, .kind = o->kind, .alias = !o->copy_compute};
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
    return DT_OK;
fail:
    dt_state_close(out);
    return rc;
}

void dt_state_close(struct dt_state *s)
{
    for (int64_t k = 0; k < s->part_count; k++) {
        struct dt_part *p = &s->parts[k];
        dt_move_free(&p->reduce);
        dt_move_free(&p->gather);
        dt_compute_free(&p->compute);
        dt_home_free(&p->home);
        dt_space_free(&p->space);
    }
    free(s->parts);
    free(s->trainable);
    free(s->frozen);
    free(s->frozen_dtype);
    dt_arena_close(&s->arena);
    *s = (struct dt_state){0};
}

void dt_state_addresses(const struct dt_state *s, const float **weight, float **gradient)
{
    for (int64_t i = 0; i < s->arch->tensor_count; i++) {
        weight[i] = s->frozen[i];
        gradient[i] = NULL;
    }
    for (int64_t k = 0; k < s->part_count; k++) {
        const struct dt_part *p = &s->parts[k];
        for (int64_t b = 0; b < p->compute.count; b++) {
            int64_t i = p->space.tensor[p->compute.boxes[b].tensor];
            weight[i] = p->box + p->compute.boxes[b].at;
            gradient[i] = p->box_gradient + p->compute.boxes[b].at;
        }
    }
}

float *dt_state_tensor(const struct dt_state *s, int64_t i)
{
    for (int64_t k = 0; k < s->part_count; k++)
        if (s->parts[k].space.of_arch[i] >= 0)
            return s->parts[k].master + s->parts[k].space.offset[s->parts[k].space.of_arch[i]];
    return s->frozen[i];
}

void dt_state_init(struct dt_state *s, uint64_t seed)
{
    for (int64_t i = 0; i < s->arch->tensor_count; i++) {
        const struct dt_tensor *t = &s->arch->tensors[i];
        bool norm = t->role == DT_NORM1_W || t->role == DT_NORM2_W || t->role == DT_FINAL_NORM_W ||
                    t->role == DT_Q_NORM || t->role == DT_K_NORM;
        double std =
            s->arch->initializer_range / (t->residual ? sqrt(2.0 * (double)s->arch->L) : 1);
        if (t->rank == 1)
            dt_k->fill(dt_state_tensor(s, i), tensor_elements(s->arch, i), norm ? 1 : 0);
        else
            dt_k->fill_normal(dt_state_tensor(s, i), tensor_elements(s->arch, i), seed, (uint64_t)i,
                              (float)std);
    }
}

/* The pieces of one segment's tensors, between two buffers of this worker. */
static void run_move(const struct dt_part *p, const struct dt_move *move,
                     enum dt_segment_kind segment, int64_t layer, const float *from, float *to)
{
    for (int64_t i = 0; i < move->count; i++) {
        const struct dt_piece *q = &move->pieces[i];
        const struct dt_tensor *t = &p->space.arch->tensors[p->space.tensor[q->tensor]];
        if (t->segment == segment && t->layer == layer)
            dt_k->copy(to + q->to_at, DT_F32, q->to_ld, from + q->from_at, DT_F32, q->from_ld,
                       q->rows, q->cols);
    }
}

void dt_state_gather(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    for (int64_t k = 0; k < s->part_count && !s->alias; k++)
        run_move(&s->parts[k], &s->parts[k].gather, segment, layer, s->parts[k].master,
                 s->parts[k].box);
}

void dt_state_reduce(struct dt_state *s, enum dt_segment_kind segment, int64_t layer)
{
    for (int64_t k = 0; k < s->part_count && !s->alias; k++)
        run_move(&s->parts[k], &s->parts[k].reduce, segment, layer, s->parts[k].box_gradient,
                 s->parts[k].gradient);
}

/* A home interval cut at tensor edges: f(tensor's position, first element in storage, elements). */
struct run {
    int64_t tensor, at, count;
};

static bool next_run(const struct dt_part *p, int64_t *interval, int64_t *element, struct run *out)
{
    while (*interval < p->home.count && *element >= p->home.intervals[*interval].end)
        if (++*interval < p->home.count)
            *element = p->home.intervals[*interval].begin;
    if (*interval >= p->home.count)
        return false;
    const struct dt_interval *in = &p->home.intervals[*interval];
    int64_t tensor = dt_space_at(&p->space, *element);
    int64_t end = p->space.offset[tensor + 1] < in->end ? p->space.offset[tensor + 1] : in->end;
    *out = (struct run){tensor, in->at + (*element - in->begin), end - *element};
    *element = end;
    return true;
}

bool dt_state_norms(const struct dt_state *s, int64_t part, int scale_log2, struct dt_u128 *sum)
{
    const struct dt_part *p = &s->parts[part];
    int64_t interval = 0, element = p->home.count ? p->home.intervals[0].begin : 0;
    bool finite = true;
    struct run r;
    *sum = (struct dt_u128){0, 0};
    while (next_run(p, &interval, &element, &r))
        finite = dt_k->block_norms(p->gradient + r.at, r.count, scale_log2, sum) && finite;
    return finite;
}

void dt_state_update(struct dt_state *s, int64_t part, const struct dt_adamw *adamw, int64_t step)
{
    struct dt_part *p = &s->parts[part];
    int64_t interval = 0, element = p->home.count ? p->home.intervals[0].begin : 0;
    struct dt_adamw plain = *adamw;
    plain.weight_decay = 0;
    struct run r;
    while (next_run(p, &interval, &element, &r)) {
        bool decay = s->arch->tensors[p->space.tensor[r.tensor]].decay;
        dt_k->adamw(p->master + r.at, p->exp_avg + r.at, p->exp_avg_sq + r.at, p->gradient + r.at,
                    r.count, decay ? adamw : &plain);
    }
    p->stamp = step;
}
