/* plan + number of micro-batches -> the list of instructions of a step.
 *
 * One device runs a micro-batch forward and backward before it takes the next, so the activations
 * of one micro-batch are all that is ever held. With recomputation each block's forward stands in
 * the list a second time, just before its backward: what costs time is visible in the list. A
 * segment's gradients are reduced as soon as its last backward is done, and its weights are waited
 * for just before its first forward, so that both travel while others are computed. A worker that
 * got no sequence gives its homes' weights out and takes part in every sum with zeros. */
#include "plan/plan.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

int dt_schedule_new(const struct dt_plan *p, int64_t microbatches, struct dt_schedule *out)
{
    int64_t segments = 2 * p->layers + 2;
    *out = (struct dt_schedule){.capacity = microbatches * 3 * segments + 4 * segments + 4};
    return DT_NEW(&out->list, out->capacity);
}

void dt_schedule_free(struct dt_schedule *s)
{
    free(s->list);
    *s = (struct dt_schedule){0};
}

static struct dt_instruction *push(struct dt_schedule *s, enum dt_op op,
                                   enum dt_segment_kind segment, int64_t layer, int64_t microbatch)
{
    struct dt_instruction *i = &s->list[s->count++];
    *i = (struct dt_instruction){
        .op = op, .segment = segment, .layer = layer, .microbatch = microbatch};
    return i;
}

/* One segment on the way up: its weights are waited for when it is the first to need them. */
static void up(struct dt_schedule *s, enum dt_op op, enum dt_segment_kind segment, int64_t layer,
               int64_t microbatch)
{
    if (op == DT_OP_FORWARD && microbatch == 0)
        push(s, DT_OP_GATHERED, segment, layer, -1);
    push(s, op, segment, layer, microbatch);
}

/* All segments from the first to the last. */
static void upwards(struct dt_schedule *s, const struct dt_plan *p, enum dt_op op,
                    int64_t microbatch)
{
    up(s, op, DT_SEG_EMBED, -1, microbatch);
    for (int64_t l = 0; l < p->layers; l++) {
        up(s, op, DT_SEG_ATTENTION, l, microbatch);
        up(s, op, DT_SEG_MLP, l, microbatch);
    }
    up(s, op, DT_SEG_HEAD, -1, microbatch);
}

static void nothing(struct dt_schedule *s, enum dt_segment_kind segment, int64_t layer)
{
    push(s, DT_OP_ZERO, segment, layer, -1);
    push(s, DT_OP_REDUCE, segment, layer, -1);
}

/* In the order of a backward, so that every worker begins its reductions alike. */
static void zeros(struct dt_schedule *s, const struct dt_plan *p)
{
    nothing(s, DT_SEG_HEAD, -1);
    for (int64_t l = p->layers - 1; l >= 0 && l >= p->lowest_trainable; l--) {
        nothing(s, DT_SEG_MLP, l);
        nothing(s, DT_SEG_ATTENTION, l);
    }
    if (p->lowest_trainable < 0)
        nothing(s, DT_SEG_EMBED, -1);
}

static void downwards(struct dt_schedule *s, const struct dt_plan *p, int64_t microbatch,
                      int64_t microbatches)
{
    bool first = microbatch == 0, last = microbatch + 1 == microbatches;
    push(s, DT_OP_BACKWARD, DT_SEG_HEAD, -1, microbatch)->first = first;
    if (last)
        push(s, DT_OP_REDUCE, DT_SEG_HEAD, -1, -1);
    for (int64_t l = p->layers - 1; l >= 0 && l >= p->lowest_trainable; l--) {
        /* The last block's activations still stand in the shared slots after forward. */
        if (p->recompute && l + 1 < p->layers) {
            push(s, DT_OP_FORWARD, DT_SEG_ATTENTION, l, microbatch);
            push(s, DT_OP_FORWARD, DT_SEG_MLP, l, microbatch);
        }
        push(s, DT_OP_BACKWARD, DT_SEG_MLP, l, microbatch)->first = first;
        if (last)
            push(s, DT_OP_REDUCE, DT_SEG_MLP, l, -1);
        push(s, DT_OP_BACKWARD, DT_SEG_ATTENTION, l, microbatch)->first = first;
        if (last)
            push(s, DT_OP_REDUCE, DT_SEG_ATTENTION, l, -1);
    }
    if (p->lowest_trainable >= 0)
        return;
    push(s, DT_OP_BACKWARD, DT_SEG_EMBED, -1, microbatch)->first = first;
    if (last)
        push(s, DT_OP_REDUCE, DT_SEG_EMBED, -1, -1);
}

void dt_schedule_fill(struct dt_schedule *s, const struct dt_plan *p, int64_t microbatches,
                      bool train)
{
    s->count = 0;
    upwards(s, p, DT_OP_GATHER, -1);
    for (int64_t m = 0; m < microbatches; m++) {
        upwards(s, p, DT_OP_FORWARD, m);
        if (train)
            downwards(s, p, m, microbatches);
        else
            push(s, DT_OP_LOSS, DT_SEG_HEAD, -1, m);
    }
    if (train && microbatches == 0)
        zeros(s, p);
    push(s, DT_OP_SETTLE, DT_SEG_HEAD, -1, -1);
    if (!train)
        return;
    push(s, DT_OP_VOTE, DT_SEG_HEAD, -1, -1);
    push(s, DT_OP_DECIDE, DT_SEG_HEAD, -1, -1);
    push(s, DT_OP_UPDATE, DT_SEG_HEAD, -1, -1);
}
