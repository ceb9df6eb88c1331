/* What a decision is made of: sums of votes, learning rate, clip, bias corrections. One formula for
 * the local control and the coordinator. */
#include "train/decide.h"

#include <math.h>

/* ---- Sums as integers ---- */

void dt_u128_add(struct dt_u128 *a, const struct dt_u128 *b)
{
    a->lo += b->lo;
    a->hi += b->hi + (a->lo < b->lo);
}

/* Losses are not negative; 2^63 nats is out of any range. */
void dt_loss_add(struct dt_u128 *sum, double loss, bool *finite)
{
    if (!(loss >= 0 && loss < 0x1p63)) {
        *finite = false;
        return;
    }
    double whole = floor(loss);
    struct dt_u128 fixed = {.hi = (uint64_t)whole, .lo = (uint64_t)ldexp(loss - whole, 64)};
    dt_u128_add(sum, &fixed);
}

double dt_loss_value(const struct dt_u128 *sum)
{
    return (double)sum->hi + ldexp((double)sum->lo, -64);
}

const char *dt_phase_name(enum dt_phase phase)
{
    static const char *const names[] = {
        [DT_PHASE_START] = "starting", [DT_PHASE_STEP] = "computing a step",
        [DT_PHASE_DECIDE] = "voted",   [DT_PHASE_EVALUATE] = "evaluating",
        [DT_PHASE_SAVE] = "saving",    [DT_PHASE_END] = "ending",
    };
    return phase >= 0 && phase <= DT_PHASE_END ? names[phase] : "?";
}

/* ---- The decision ---- */

double dt_lr_at(const struct dt_optimizer *o, int64_t k)
{
    if (k <= o->warmup)
        return o->lr * (double)k / (double)o->warmup;
    double r = o->min_lr_ratio, share;
    int64_t rest = o->steps - o->warmup;
    switch (o->shape) {
    case DT_SHAPE_CONSTANT:
        return o->lr;
    case DT_SHAPE_LINEAR:
        share = (double)(k - o->warmup) / (double)rest;
        return o->lr * (1 - (1 - r) * share);
    case DT_SHAPE_COSINE:
        share = (double)(k - o->warmup) / (double)rest;
        return o->lr * (r + (1 - r) * 0.5 * (1 + cos(3.14159265358979323846 * share)));
    case DT_SHAPE_WSD:
        if (k <= o->steps - o->decay)
            return o->lr;
        share = (double)(k - (o->steps - o->decay)) / (double)o->decay;
        return o->lr * (1 - (1 - r) * share);
    }
    return o->lr;
}

/* sqrt(Σg²) of the gradient of the summed loss, from the fixed-point sum of quantum 2^-80 ·
 * 2^-scale. */
static double norm_of(const struct dt_space_vote *v)
{
    double sum = ldexp((double)v->norm.hi, 64) + (double)v->norm.lo;
    return sqrt(ldexp(sum, -80 - v->scale_log2));
}

bool dt_decision_redo(const struct dt_decision *d)
{
    for (int64_t i = 0; i < d->spaces; i++)
        if (d->space[i].action == DT_REDO)
            return true;
    return false;
}

static enum dt_action action_of(const struct dt_space_vote *v, int64_t attempt)
{
    if (!v->finite || v->loss_tokens == 0)
        return DT_SKIP;
    if (v->overflow)
        return attempt + 1 < DT_MOST_ATTEMPTS ? DT_REDO : DT_SKIP;
    return DT_APPLY;
}

struct dt_space_decision dt_decide_space(const struct dt_optimizer *o,
                                         const struct dt_space_vote *v, int64_t step,
                                         int64_t attempt)
{
    double denominator = v->loss_tokens > 0 ? (double)v->loss_tokens : 1;
    struct dt_space_decision d = {.action = action_of(v, attempt),
                                  .denominator = v->loss_tokens,
                                  .norm = norm_of(v) / denominator,
                                  .loss = dt_loss_value(&v->loss) / denominator};
    if (!v->finite)
        d.loss = NAN;
    double clip = o->clip > 0 && d.norm > o->clip ? o->clip / d.norm : 1;
    d.adamw = (struct dt_adamw){
        .lr = (float)dt_lr_at(o, step),
        .beta1 = (float)o->beta1,
        .beta2 = (float)o->beta2,
        .eps = (float)o->eps,
        .weight_decay = (float)o->weight_decay,
        .bias1 = (float)(1 - pow(o->beta1, (double)step)),
        .bias2 = (float)(1 - pow(o->beta2, (double)step)),
        .grad_scale = (float)(o->exact ? clip : clip / denominator),
    };
    return d;
}
