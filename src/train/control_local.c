/* The decision for one worker: same inputs and outputs as a coordinator's, no message. */
#include "train/control.h"

#include "base/arena.h"
#include "base/error.h"

#include <math.h>
#include <stdlib.h>

#define SKIPS_IN_A_ROW 20

struct local {
    struct dt_optimizer optimizer;
    int64_t spaces;
    struct dt_vote vote;
    struct dt_space_vote *space; /* [spaces] */
    int64_t *skipped;            /* [spaces] in a row */
};

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

static int vote(void *self, const struct dt_vote *v)
{
    struct local *l = self;
    l->vote = *v;
    for (int64_t i = 0; i < l->spaces; i++)
        l->space[i] = v->space[i];
    return DT_OK;
}

/* sqrt(Σg²) of the gradient of the summed loss, from the fixed-point sum of quantum 2^-80 ·
 * 2^-scale. */
static double norm_of(const struct dt_space_vote *v)
{
    double sum = ldexp((double)v->norm.hi, 64) + (double)v->norm.lo;
    return sqrt(ldexp(sum, -80 - v->scale_log2));
}

static struct dt_space_decision decide_space(const struct dt_optimizer *o,
                                             const struct dt_space_vote *v, int64_t step)
{
    struct dt_space_decision d = {.denominator = v->loss_tokens, .action = DT_APPLY};
    double denominator = v->loss_tokens > 0 ? (double)v->loss_tokens : 1;
    d.norm = norm_of(v) / denominator;
    d.loss = v->loss / denominator;
    if (!v->finite || !isfinite(v->loss) || v->loss_tokens == 0)
        d.action = DT_SKIP;
    double clip = o->clip > 0 && d.norm > o->clip ? o->clip / d.norm : 1;
    d.adamw = (struct dt_adamw){
        .lr = (float)dt_lr_at(o, step),
        .beta1 = (float)o->beta1,
        .beta2 = (float)o->beta2,
        .eps = (float)o->eps,
        .weight_decay = (float)o->weight_decay,
        .bias1 = (float)(1 - pow(o->beta1, (double)step)),
        .bias2 = (float)(1 - pow(o->beta2, (double)step)),
        .grad_scale = (float)(clip / denominator),
    };
    return d;
}

static int decide(void *self, struct dt_decision *out)
{
    struct local *l = self;
    out->step = l->vote.step;
    out->spaces = l->spaces;
    out->stop = dt_signals_stop_asked();
    for (int64_t i = 0; i < l->spaces; i++) {
        out->space[i] = decide_space(&l->optimizer, &l->space[i], out->step);
        l->skipped[i] = out->space[i].action == DT_SKIP ? l->skipped[i] + 1 : 0;
        if (l->skipped[i] >= SKIPS_IN_A_ROW)
            return DT_FAIL(DT_E_NUMERIC,
                           "%d steps in a row had a gradient that is not finite; lower "
                           "optimizer.lr or start from "
                           "an earlier checkpoint",
                           SKIPS_IN_A_ROW);
    }
    return DT_OK;
}

static bool stop_asked(void *self)
{
    (void)self;
    return dt_signals_stop_asked();
}

static void close_local(void *self)
{
    struct local *l = self;
    free(l->space);
    free(l->skipped);
    free(l);
}

int dt_control_local(const struct dt_optimizer *optimizer, int64_t spaces, struct dt_control *out)
{
    struct local *l;
    int rc;
    DT_TRY(DT_NEW(&l, 1));
    l->optimizer = *optimizer;
    l->spaces = spaces;
    DT_CHECK(fail, rc, DT_NEW(&l->space, spaces));
    DT_CHECK(fail, rc, DT_NEW(&l->skipped, spaces));
    *out = (struct dt_control){
        .self = l, .vote = vote, .decide = decide, .stop_asked = stop_asked, .close = close_local};
    return DT_OK;
fail:
    close_local(l);
    return rc;
}
