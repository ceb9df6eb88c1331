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
    if (m->exact) {
        model__exact_embed(m, first);
        return;
    }
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

float *dt_model_logits(struct dt_model *m, int64_t row, int64_t n)
{
    float *logits = model__f(m, DT_SLOT_LOGITS, 0);
    model__linear_forward(m, head, model__from_row(model__mat(m, DT_SLOT_NF, 0), row), n, logits,
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

/* The end of the rows from `row` on whose logits are held at once: as many as fit or, when exact,
 * as many whole addends as fit. `most` is a function of V alone, and no addend is longer than the
 * longest sequence, so one always fits. */
static int64_t chunk_end(const struct dt_model *m, int64_t row, int64_t most)
{
    int64_t T = m->batch.T, end = T - row < m->logits_rows ? T : row + m->logits_rows, cut = row;
    if (!m->exact)
        return end;
    for (int64_t next; cut < end && (next = model__addend_end(m, cut, most)) <= end; cut = next)
        ;
    return cut;
}

void model__head_backward(struct dt_model *m, bool first)
{
    const struct dt_arch *a = m->arch;
    double *loss = model__slot(m, DT_SLOT_LOSS, 0);
    float *dn = model__f(m, DT_SLOT_DN, 0); /* [T, C] */
    float *dx = model__f(m, DT_SLOT_DX, 0);
    struct model__rows rows = {.addend = dt_arch_loss_chunk(a, INT64_MAX)};
    for (int64_t row = 0; row < m->batch.T; row += rows.n) {
        rows.first = row;
        rows.n = chunk_end(m, row, rows.addend) - row;
        float *logits = dt_model_logits(m, row, rows.n);
        dt_k->loss(logits, a->V, m->batch.targets + row, loss + row, rows.n, a->V, false);
        model__linear_backward(m, head, model__from_row(model__mat(m, DT_SLOT_NF, 0), row), logits,
                               a->V, rows, dn + row * a->C, false, first && row == 0);
    }
    model__norm_backward(m, final_norm(), dn, dx, false, first);
}

double dt_model_sequence_loss(const struct dt_model *m, int64_t sequence)
{
    const double *loss = model__slot(m, DT_SLOT_LOSS, 0);
    const int32_t *start = m->batch.start + sequence;
    return dt_k->sum(loss + start[0], start[1] - start[0]);
}
