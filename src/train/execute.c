#include "train/execute.h"

#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SPACES 1 /* one tenant in this version */

/* Exact sums: quantum 2^-S of a step's first attempt is S = 52 - ceil(log2 T), T = input tokens of
 * the global batch; each redo takes 12 bits off. Every element gets at most 2 T addends (a tied
 * tensor has two uses of at most one addend a token), so none of |a| < 2^(61 - ceil(log2 T)) can
 * make a true sum wrap (numerics.md "reduction: exact"). */
#define SCALE_TOP 52
#define SCALE_STEP 12
#define LIMIT_TOP 61

/* What is known only while a list runs. */
struct pass {
    const struct dt_global_batch *batch;
    int64_t step, attempt;
    struct dt_control *control;
    struct dt_decision *decision;
    struct dt_u128 loss; /* of this worker, so far */
    bool finite;
};

static int32_t workers_of(const struct dt_executor_options *o)
{
    return o->workers > 0 ? o->workers : 1;
}

void dt_executor_plan(const struct dt_arch *arch, const bool *trainable,
                      const struct dt_executor_options *o, struct dt_plan *out)
{
    dt_plan_data_parallel(arch, trainable, o->recompute, o->microbatch_tokens, workers_of(o),
                          o->rates, out);
}

static int64_t own_tokens(const struct dt_plan *plan, const struct dt_executor_options *o)
{
    return dt_dispatch_most_tokens(plan, o->rank, o->bound.tokens, o->bound.longest);
}

static struct dt_model_options model_options(const struct dt_plan *plan,
                                             const struct dt_executor_options *o)
{
    int64_t most = own_tokens(plan, o);
    return (struct dt_model_options){.compute = o->compute,
                                     .max_tokens =
                                         o->microbatch_tokens < most ? o->microbatch_tokens : most,
                                     .positions = o->positions,
                                     .rope_length = o->positions,
                                     .train = o->train,
                                     .recompute = o->recompute,
                                     .exact = o->exact};
}

/* The schedule, for the most micro-batches that a part of a batch can have. */
static int open_tables(struct dt_executor *e, const struct dt_executor_options *o)
{
    int64_t microbatches = dt_dispatch_most_microbatches(&e->plan, own_tokens(&e->plan, o));
    e->bound = o->bound;
    DT_TRY(dt_schedule_new(&e->plan, microbatches, &e->schedule));
    return DT_NEW(&e->start, o->bound.sequences + microbatches);
}

size_t dt_executor_bytes(const struct dt_arch *arch, const struct dt_executor_options *o)
{
    struct dt_executor e = {.arch = arch};
    struct dt_arena count = {0};
    if (dt_model_open(&e.model, arch) < 0)
        return 0;
    e.plan = (struct dt_plan){.layers = arch->L,
                              .microbatch_tokens = o->microbatch_tokens,
                              .workers = workers_of(o),
                              .rates = o->rates};
    struct dt_model_options mo = model_options(&e.plan, o);
    dt_model_carve(&e.model, arch, &mo, &count);
    dt_model_close(&e.model);
    size_t tables = open_tables(&e, o) < 0 ? 0
                                           : (size_t)e.schedule.capacity * sizeof *e.schedule.list +
                                                 (size_t)o->bound.sequences * sizeof(int32_t);
    dt_schedule_free(&e.schedule);
    free(e.start);
    return count.used + tables;
}

int dt_executor_open(struct dt_state *state, const struct dt_executor_options *o,
                     struct dt_executor *out)
{
    int rc;
    struct dt_arena count = {0};
    *out = (struct dt_executor){.arch = state->arch, .state = state};
    dt_executor_plan(state->arch, state->trainable, o, &out->plan);
    out->plan_hash = dt_plan_hash(&out->plan);
    struct dt_model_options mo = model_options(&out->plan, o);
    DT_CHECK(fail, rc, open_tables(out, o));
    DT_CHECK(fail, rc, dt_model_open(&out->model, state->arch));
    dt_model_carve(&out->model, state->arch, &mo, &count);
    DT_CHECK(fail, rc, dt_arena_open(&out->arena, "activations", count.used));
    dt_model_carve(&out->model, state->arch, &mo, &out->arena);
    dt_model_prepare(&out->model, &mo);
    dt_state_addresses(state, out->model.weight, out->model.gradient, out->model.fixed);
    return DT_OK;
fail:
    dt_executor_close(out);
    return rc;
}

void dt_executor_close(struct dt_executor *e)
{
    if (e->model.slot)
        dt_model_close(&e->model);
    dt_schedule_free(&e->schedule);
    free(e->start);
    dt_arena_close(&e->arena);
    *e = (struct dt_executor){0};
}

int dt_executor_batch(const struct dt_executor *e, struct dt_global_batch *out)
{
    return dt_global_batch_new(&e->plan, e->state->rank, &e->bound, out);
}

/* The row offsets that the kernels want. */
static void set_starts(struct dt_executor *e, const struct dt_global_batch *batch)
{
    const struct dt_dispatch *d = &batch->dispatch;
    int32_t *start = e->start;
    for (int64_t m = 0; m < d->microbatches; m++, start++) {
        *start = 0;
        for (int64_t i = d->first[m]; i < d->first[m + 1]; i++, start++)
            start[1] = start[0] + (int32_t)batch->length[d->sequence[i]];
    }
}

/* Point the model at micro-batch m. */
static void select_microbatch(struct dt_executor *e, const struct dt_global_batch *batch, int64_t m)
{
    const struct dt_dispatch *d = &batch->dispatch;
    int64_t row = 0;
    for (int64_t i = 0; i < m; i++)
        row += d->microbatch_tokens[i];
    int64_t first = d->first[m];
    e->model.batch = (struct dt_microbatch){
        .T = d->microbatch_tokens[m],
        .sequences = d->first[m + 1] - first,
        .start =
            e->start + first + m, /* every earlier micro-batch has one offset more than sequences */
        .ids = batch->ids + row,
        .targets = batch->targets + row,
        .position = batch->position + row,
    };
}

static void add_loss(const struct dt_executor *e, struct pass *p)
{
    for (int64_t s = 0; s < e->model.batch.sequences; s++)
        dt_loss_add(&p->loss, dt_model_sequence_loss(&e->model, s), &p->finite);
}

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

static void set_scale(struct dt_executor *e, const struct pass *p)
{
    int bits = ceil_log2(p->batch->tokens);
    e->model.fixed_scale = SCALE_TOP - bits - SCALE_STEP * (int)p->attempt;
    e->model.fixed_limit = LIMIT_TOP - bits;
    e->model.fixed_flags = 0;
    e->state->fixed_scale = e->model.fixed_scale;
}

static double flops_of(const struct dt_executor *e, const struct dt_global_batch *b)
{
    double flops = 0;
    for (int64_t i = 0; i < b->dispatch.sequences; i++)
        flops += 3 * dt_arch_forward_flops(e->arch, b->length[b->dispatch.sequence[i]]);
    return flops;
}

static int vote(struct dt_executor *e, const struct pass *p)
{
    struct dt_space_vote space[MAX_SPACES];
    const struct dt_global_batch *b = p->batch;
    for (int64_t k = 0; k < e->state->part_count; k++) {
        space[k] = (struct dt_space_vote){.scale_log2 = -2 * ceil_log2(b->tokens),
                                          .loss = p->loss,
                                          .loss_tokens = b->loss_tokens};
        space[k].finite = dt_state_norms(e->state, k, space[k].scale_log2, &space[k].norm) &&
                          p->finite && !(e->model.fixed_flags & DT_FIXED_NONFINITE);
        space[k].overflow = e->model.fixed_flags & DT_FIXED_OVERFLOW;
    }
    struct dt_vote v = {.step = p->step,
                        .attempt = p->attempt,
                        .plan = e->plan_hash,
                        .dispatch = b->dispatch.hash,
                        .kernels = e->state->exact ? dt_hash(dt_k->name, strlen(dt_k->name)) : 0,
                        .data_epoch = b->epoch,
                        .sequences = b->sequences,
                        .tokens = b->tokens,
                        .flops = flops_of(e, b),
                        .spaces = e->state->part_count,
                        .space = space};
    return p->control->vote(p->control->self, &v);
}

static int decide(const struct pass *p)
{
    p->control->phase(p->control->self, DT_PHASE_DECIDE);
    DT_TRY(p->control->decide(p->control->self, p->decision));
    p->control->phase(p->control->self, DT_PHASE_STEP);
    if (p->decision->step != p->step || p->decision->attempt != p->attempt)
        return DT_FAIL(DT_E_INTERNAL,
                       "the decision is about step %lld attempt %lld, this worker is at %lld, %lld",
                       (long long)p->decision->step, (long long)p->decision->attempt,
                       (long long)p->step, (long long)p->attempt);
    return DT_OK;
}

static void update(struct dt_executor *e, const struct pass *p)
{
    for (int64_t k = 0; k < e->state->part_count; k++) {
        const struct dt_space_decision *d = &p->decision->space[k];
        if (d->action == DT_APPLY)
            dt_state_update(e->state, k, &d->adamw, d->denominator, p->step);
        else if (d->action == DT_SKIP)
            dt_state_skip(e->state, k, p->step);
    }
}

static int run_one(struct dt_executor *e, struct pass *p, const struct dt_instruction *i)
{
    switch (i->op) {
    case DT_OP_GATHER:
        return dt_state_gather_start(e->state, i->segment, i->layer);
    case DT_OP_GATHERED:
        return dt_state_gather_wait(e->state, i->segment, i->layer);
    case DT_OP_FORWARD:
        if (i->segment == DT_SEG_EMBED)
            select_microbatch(e, p->batch, i->microbatch);
        dt_model_forward(&e->model, i->segment, i->layer);
        break;
    case DT_OP_LOSS:
        dt_model_loss(&e->model);
        add_loss(e, p);
        break;
    case DT_OP_BACKWARD:
        dt_model_backward(&e->model, i->segment, i->layer, i->first);
        if (i->segment == DT_SEG_HEAD)
            add_loss(e, p);
        break;
    case DT_OP_ZERO:
        dt_state_zero(e->state, i->segment, i->layer);
        break;
    case DT_OP_REDUCE:
        return dt_state_reduce_start(e->state, i->segment, i->layer);
    case DT_OP_SETTLE:
        return dt_state_settle(e->state);
    case DT_OP_VOTE:
        return p->control ? vote(e, p) : DT_OK;
    case DT_OP_DECIDE:
        return p->control ? decide(p) : DT_OK;
    case DT_OP_UPDATE:
        if (p->control)
            update(e, p);
        break;
    }
    return DT_OK;
}

static int run(struct dt_executor *e, struct pass *p, bool train)
{
    p->loss = (struct dt_u128){0, 0};
    p->finite = true;
    set_scale(e, p);
    set_starts(e, p->batch);
    dt_schedule_fill(&e->schedule, &e->plan, p->batch->dispatch.microbatches, train);
    for (int64_t i = 0; i < e->schedule.count; i++) {
        DT_TRY(run_one(e, p, &e->schedule.list[i]));
        atomic_fetch_add_explicit(&e->instructions, 1, memory_order_relaxed);
    }
    return DT_OK;
}

int dt_executor_step(struct dt_executor *e, const struct dt_global_batch *batch, int64_t step,
                     struct dt_control *control, struct dt_decision *decision)
{
    struct pass p = {.batch = batch, .step = step, .control = control, .decision = decision};
    do
        DT_TRY(run(e, &p, true));
    while (dt_decision_redo(decision) && ++p.attempt);
    return DT_OK;
}

int dt_executor_gradients(struct dt_executor *e, const struct dt_global_batch *batch, double *loss)
{
    struct pass p = {.batch = batch};
    DT_TRY(run(e, &p, true));
    *loss = dt_loss_value(&p.loss);
    return DT_OK;
}

int dt_executor_evaluate(struct dt_executor *e, const struct dt_global_batch *batch,
                         struct dt_u128 *loss, bool *finite)
{
    struct pass p = {.batch = batch};
    DT_TRY(run(e, &p, false));
    dt_u128_add(loss, &p.loss);
    *finite = *finite && p.finite;
    return DT_OK;
}
