#include "train/execute.h"

#include "base/error.h"

#include <stdlib.h>

#define MAX_SPACES 1 /* one tenant in this version */

/* What is known only while a list runs. */
struct pass {
    const struct dt_global_batch *batch;
    int64_t step;
    struct dt_control *control;
    struct dt_decision *decision;
    double loss; /* summed so far */
};

static struct dt_model_options model_options(const struct dt_executor_options *o)
{
    int64_t most = o->microbatch_tokens < o->max_tokens ? o->microbatch_tokens : o->max_tokens;
    return (struct dt_model_options){.compute = o->compute,
                                     .max_tokens = most,
                                     .positions = o->positions,
                                     .rope_length = o->positions,
                                     .train = o->train,
                                     .recompute = o->recompute};
}

static int open_tables(struct dt_executor *e, const struct dt_executor_options *o)
{
    e->max_sequences = o->max_sequences;
    e->max_tokens = o->max_tokens;
    DT_TRY(dt_dispatch_new(&e->plan, o->max_tokens, &e->dispatch));
    DT_TRY(dt_schedule_new(&e->plan, e->dispatch.capacity, &e->schedule));
    return DT_NEW(&e->start, o->max_sequences + e->dispatch.capacity);
}

size_t dt_executor_bytes(const struct dt_arch *arch, const struct dt_executor_options *o)
{
    struct dt_executor e = {.arch = arch};
    struct dt_model_options mo = model_options(o);
    struct dt_arena count = {0};
    if (dt_model_open(&e.model, arch) < 0)
        return 0;
    dt_model_carve(&e.model, arch, &mo, &count);
    dt_model_close(&e.model);
    e.plan = (struct dt_plan){.layers = arch->L, .microbatch_tokens = o->microbatch_tokens};
    size_t tables = open_tables(&e, o) < 0
                        ? 0
                        : (size_t)(e.schedule.capacity) * sizeof *e.schedule.list +
                              (size_t)(e.dispatch.capacity) * 2 * sizeof(int64_t) +
                              (size_t)(o->max_sequences + e.dispatch.capacity) * sizeof(int32_t);
    dt_dispatch_free(&e.dispatch);
    dt_schedule_free(&e.schedule);
    free(e.start);
    return count.used + tables;
}

int dt_executor_open(struct dt_state *state, const struct dt_executor_options *o,
                     struct dt_executor *out)
{
    int rc;
    struct dt_model_options mo = model_options(o);
    struct dt_arena count = {0};
    *out = (struct dt_executor){.arch = state->arch, .state = state};
    dt_plan_single(state->arch, state->trainable, o->recompute, o->microbatch_tokens, &out->plan);
    out->plan_hash = dt_plan_hash(&out->plan);
    DT_CHECK(fail, rc, open_tables(out, o));
    DT_CHECK(fail, rc, dt_model_open(&out->model, state->arch));
    dt_model_carve(&out->model, state->arch, &mo, &count);
    DT_CHECK(fail, rc, dt_arena_open(&out->arena, "activations", count.used));
    dt_model_carve(&out->model, state->arch, &mo, &out->arena);
    dt_model_prepare(&out->model, &mo);
    dt_state_addresses(state, out->model.weight, out->model.gradient);
    return DT_OK;
fail:
    dt_executor_close(out);
    return rc;
}

void dt_executor_close(struct dt_executor *e)
{
    if (e->model.slot)
        dt_model_close(&e->model);
    dt_dispatch_free(&e->dispatch);
    dt_schedule_free(&e->schedule);
    free(e->start);
    dt_arena_close(&e->arena);
    *e = (struct dt_executor){0};
}

/* Sequences into micro-batches, and the row offsets that the kernels want. */
static int dispatch(struct dt_executor *e, const struct dt_global_batch *batch)
{
    if (batch->sequences > e->max_sequences || batch->tokens > e->max_tokens)
        return DT_FAIL(DT_E_INTERNAL,
                       "a batch of %lld sequences and %lld tokens, sized for %lld and %lld",
                       (long long)batch->sequences, (long long)batch->tokens,
                       (long long)e->max_sequences, (long long)e->max_tokens);
    DT_TRY(dt_dispatch_fill(&e->dispatch, &e->plan, batch->length, batch->sequences));
    int32_t *start = e->start;
    for (int64_t m = 0; m < e->dispatch.microbatches; m++) {
        *start = 0;
        for (int64_t i = e->dispatch.first[m]; i < e->dispatch.first[m + 1]; i++, start++)
            start[1] = start[0] + (int32_t)batch->length[i];
        start++;
    }
    return DT_OK;
}

/* Point the model at micro-batch m. */
static void select_microbatch(struct dt_executor *e, const struct dt_global_batch *batch, int64_t m)
{
    int64_t row = 0;
    for (int64_t i = 0; i < m; i++)
        row += e->dispatch.tokens[i];
    int64_t first = e->dispatch.first[m];
    e->model.batch = (struct dt_microbatch){
        .T = e->dispatch.tokens[m],
        .sequences = e->dispatch.first[m + 1] - first,
        .start =
            e->start + first + m, /* every earlier micro-batch has one offset more than sequences */
        .ids = batch->ids + row,
        .targets = batch->targets + row,
        .position = batch->position + row,
    };
}

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

static int vote(struct dt_executor *e, const struct pass *p)
{
    struct dt_space_vote space[MAX_SPACES];
    for (int64_t k = 0; k < e->state->part_count; k++) {
        space[k] = (struct dt_space_vote){.scale_log2 = -2 * ceil_log2(p->batch->tokens),
                                          .loss = p->loss,
                                          .loss_tokens = p->batch->loss_tokens,
                                          .input_tokens = p->batch->tokens};
        space[k].finite = dt_state_norms(e->state, k, space[k].scale_log2, &space[k].norm);
    }
    struct dt_vote v = {.step = p->step,
                        .plan = e->plan_hash,
                        .dispatch = e->dispatch.hash,
                        .spaces = e->state->part_count,
                        .space = space};
    return p->control->vote(p->control->self, &v);
}

static void update(struct dt_executor *e, const struct pass *p)
{
    for (int64_t k = 0; k < e->state->part_count; k++) {
        const struct dt_space_decision *d = &p->decision->space[k];
        if (d->action == DT_APPLY)
            dt_state_update(e->state, k, &d->adamw, p->step);
        else
            e->state->parts[k].stamp = p->step;
    }
}

static int run_one(struct dt_executor *e, struct pass *p, const struct dt_instruction *i)
{
    switch (i->op) {
    case DT_OP_GATHER:
        dt_state_gather(e->state, i->segment, i->layer);
        break;
    case DT_OP_FORWARD:
        if (i->segment == DT_SEG_EMBED)
            select_microbatch(e, p->batch, i->microbatch);
        dt_model_forward(&e->model, i->segment, i->layer);
        break;
    case DT_OP_LOSS:
        dt_model_loss(&e->model);
        p->loss = dt_model_loss_sum(&e->model, p->loss);
        break;
    case DT_OP_BACKWARD:
        dt_model_backward(&e->model, i->segment, i->layer, i->first);
        if (i->segment == DT_SEG_HEAD)
            p->loss = dt_model_loss_sum(&e->model, p->loss);
        break;
    case DT_OP_REDUCE:
        dt_state_reduce(e->state, i->segment, i->layer);
        break;
    case DT_OP_VOTE:
        return p->control ? vote(e, p) : DT_OK;
    case DT_OP_DECIDE:
        return p->control ? p->control->decide(p->control->self, p->decision) : DT_OK;
    case DT_OP_UPDATE:
        if (p->control)
            update(e, p);
        break;
    }
    return DT_OK;
}

static int run(struct dt_executor *e, struct pass *p, bool train)
{
    DT_TRY(dispatch(e, p->batch));
    dt_schedule_fill(&e->schedule, &e->plan, e->dispatch.microbatches, train);
    for (int64_t i = 0; i < e->schedule.count; i++)
        DT_TRY(run_one(e, p, &e->schedule.list[i]));
    return DT_OK;
}

int dt_executor_step(struct dt_executor *e, const struct dt_global_batch *batch, int64_t step,
                     struct dt_control *control, struct dt_decision *decision)
{
    struct pass p = {.batch = batch, .step = step, .control = control, .decision = decision};
    return run(e, &p, true);
}

int dt_executor_gradients(struct dt_executor *e, const struct dt_global_batch *batch, double *loss)
{
    struct pass p = {.batch = batch};
    DT_TRY(run(e, &p, true));
    *loss = p.loss;
    return DT_OK;
}

int dt_executor_evaluate(struct dt_executor *e, const struct dt_global_batch *batch, double *loss)
{
    struct pass p = {.batch = batch};
    DT_TRY(run(e, &p, false));
    *loss = p.loss;
    return DT_OK;
}
