/* The ends of the chain: embedding look-up, and final norm, logits and loss.
 *
 * Logits are [T, V] and never held whole: a chunk of rows is computed, turned into its loss and (in
 * training) into the loss's gradient in place, which at once enters the head's two products. */
#include "model/private.h"

static struct model__norm final_norm(void)
{
    return (struct model__norm){
        -1, DT_FINAL_NORM_W, DT_FINAL_NORM_B, DT_SLOT_XF, DT_SLOT_MEANF, DT_SLOT_RSTDF, DT_SLOT_NF};
}

static const struct model__linear head = {-1, DT_HEAD_W, DT_ROLES};

void model__embed_forward(struct dt_model *m)
{
    dt_k->embed_forward(model__f(m, DT_SLOT_X, 0), model__w(m, -1, DT_EMBED_W),
                        model__w(m, -1, DT_POSITION_W), m->batch.ids, m->batch.position, m->batch.T,
                        m->arch->C);
}

void model__embed_backward(struct dt_model *m, bool first)
{
    const struct dt_arch *a = m->arch;
    float *de = model__g(m, -1, DT_EMBED_W), *dp = model__g(m, -1, DT_POSITION_W);
    /* A tied embedding's gradient was begun by the head. */
    if (first && de && !a->tied)
        dt_k->zero(de, (size_t)(a->V * a->C) * sizeof *de);
    if (first && dp)
        dt_k->zero(dp, (size_t)(a->positions * a->C) * sizeof *dp);
    dt_k->embed_backward(de, dp, model__f(m, DT_SLOT_DX, 0), m->batch.ids, m->batch.position,
                         m->batch.T, a->C);
}

void model__head_forward(struct dt_model *m)
{
    model__norm_forward(m, final_norm());
}

static struct dt_mat rows_of(struct dt_mat x, int64_t row)
{
    x.p = (const unsigned char *)x.p + (size_t)(row * x.ld) * dt_dtype_size(x.dtype);
    return x;
}

float *dt_model_logits(struct dt_model *m, int64_t row, int64_t n)
{
    float *logits = model__f(m, DT_SLOT_LOGITS, 0);
    model__linear_forward(m, head, rows_of(model__mat(m, DT_SLOT_NF, 0), row), n, logits,
                          m->arch->V, NULL, 0);
    return logits;
}

void dt_model_loss(struct dt_model *m)
{
    double *loss = model__slot(m, DT_SLOT_LOSS, 0);
    for (int64_t row = 0; row < m->batch.T; row += m->logits_rows) {
        int64_t n = m->batch.T - row < m->logits_rows ? m->batch.T - row : m->logits_rows;
        float *logits = dt_model_logits(m, row, n);
        dt_k->loss(logits, m->arch->V, m->batch.targets + row, loss + row, n, m->arch->V, true);
    }
}

void model__head_backward(struct dt_model *m, bool first)
{
    const struct dt_arch *a = m->arch;
    double *loss = model__slot(m, DT_SLOT_LOSS, 0);
    float *dn = model__f(m, DT_SLOT_DN, 0); /* [T, C] */
    float *dx = model__f(m, DT_SLOT_DX, 0);
    for (int64_t row = 0; row < m->batch.T; row += m->logits_rows) {
        int64_t n = m->batch.T - row < m->logits_rows ? m->batch.T - row : m->logits_rows;
        float *logits = dt_model_logits(m, row, n);
        dt_k->loss(logits, a->V, m->batch.targets + row, loss + row, n, a->V, false);
        model__linear_backward(m, head, rows_of(model__mat(m, DT_SLOT_NF, 0), row), logits, a->V, n,
                               dn + row * a->C, false, first && row == 0);
    }
    model__norm_backward(m, final_norm(), dn, dx, false, first);
}

double dt_model_loss_sum(const struct dt_model *m, double total)
{
    const double *loss = model__slot(m, DT_SLOT_LOSS, 0);
    for (int64_t s = 0; s < m->batch.sequences; s++)
        total += dt_k->sum(loss + m->batch.start[s], m->batch.start[s + 1] - m->batch.start[s]);
    return total;
}
