/* Norms and AdamW on the home intervals. With exact sums the gradient is turned into floats piece
 * by piece in a bounded scratch, so that it never needs a second array. */
#include "state/state.h"

static int64_t piece_of(const struct dt_state *s, int64_t left)
{
    return s->exact && left > DT_STATE_SCRATCH ? DT_STATE_SCRATCH : left;
}

/* Gradient elements [at, at + n) as floats, divided by `divide` when they are integers. */
static const float *gradient_of(const struct dt_state *s, const struct dt_part *p, int64_t at,
                                int64_t n, double divide)
{
    if (!s->exact)
        return p->gradient.real + at;
    dt_k->fixed_get(s->scratch, p->gradient.fixed + at, n, s->fixed_scale, divide);
    return s->scratch;
}

bool dt_state_norms(const struct dt_state *s, int64_t part, int scale_log2, struct dt_u128 *sum)
{
    const struct dt_part *p = &s->parts[part];
    struct state__cursor c = {0};
    bool finite = true;
    *sum = (struct dt_u128){0, 0};
    for (struct state__run r; state__next_run(s, p, &c, &r);)
        for (int64_t i = 0, n; i < r.count; i += n) {
            n = piece_of(s, r.count - i);
            finite =
                dt_k->block_norms(gradient_of(s, p, r.at + i, n, 1), n, scale_log2, sum) && finite;
        }
    return finite;
}

void dt_state_update(struct dt_state *s, int64_t part, const struct dt_adamw *adamw,
                     int64_t denominator, int64_t step)
{
    struct dt_part *p = &s->parts[part];
    struct state__cursor c = {0};
    struct dt_adamw plain = *adamw;
    plain.weight_decay = 0;
    for (struct state__run r; state__next_run(s, p, &c, &r);) {
        bool decay = s->arch->tensors[p->space.tensor[r.tensor]].decay;
        for (int64_t i = 0, n; i < r.count; i += n) {
            n = piece_of(s, r.count - i);
            int64_t at = r.at + i;
            dt_k->adamw(p->master + at, p->exp_avg + at, p->exp_avg_sq + at,
                        gradient_of(s, p, at, n, (double)denominator), n, decay ? adamw : &plain);
        }
    }
    dt_state_skip(s, part, step);
}

void dt_state_skip(struct dt_state *s, int64_t part, int64_t step)
{
    s->parts[part].stamp = step;
}
