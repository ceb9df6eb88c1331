/* `reduction: exact`: gradients whose bits do not depend on how a batch was divided.
 *
 * An addend is what one sequence gives to one use of a tensor, in fp32, computed from that
 * sequence's rows alone; accumulators add addends as integers, in which order does not matter. The
 * head's addends are cut further, at distances from the sequence's start that depend on V alone,
 * because its logits cannot be held for long sequences; the embedding's are single rows.
 *
 * A weight's addend passes through a tile, box by box: our GEMM gives an element the same bits
 * wherever the box lies. All sequences go through one box before the next, so that the
 * accumulator's box is still in a cache when it is added to again. */
#include "model/private.h"

enum { SIDE = 1024 /* of a box, about */, UNIT = 48 /* columns of a GEMM panel */ };

/* n in equal parts of at most about `most` */
static int64_t even(int64_t n, int64_t most)
{
    int64_t parts = (n + most - 1) / most, each = (n + parts - 1) / parts;
    each = (each + UNIT - 1) / UNIT * UNIT;
    return each < n ? each : n;
}

struct box {
    int64_t rows, cols;
};

static struct box box_of(const struct dt_tensor *t)
{
    struct box b = {.rows = even(t->rows, SIDE)};
    b.cols = even(t->cols, SIDE * SIDE / b.rows);
    b.rows = even(t->rows, SIDE * SIDE / b.cols + 1);
    return b;
}

int64_t model__tile(const struct dt_arch *a)
{
    int64_t most = 0;
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const struct dt_tensor *t = &a->tensors[i];
        struct box b = box_of(t);
        int64_t need = t->rank == 1 ? 2 * t->cols : b.rows * b.cols; /* a norm's weight and bias */
        most = need > most ? need : most;
    }
    return most;
}

int64_t model__addend_end(const struct dt_model *m, int64_t row, int64_t most)
{
    const int32_t *end = m->batch.start + 1;
    while (*end <= row)
        end++;
    return *end - row < most ? *end : row + most;
}

/* The accumulator of tensor i, emptied when this is the first use; NULL when there is none. */
static int64_t *accumulator(const struct dt_model *m, int64_t i, bool first)
{
    if (i < 0 || !m->fixed[i])
        return NULL;
    const struct dt_tensor *t = &m->arch->tensors[i];
    if (first)
        dt_k->zero(m->fixed[i], (size_t)(t->rows * t->cols) * sizeof *m->fixed[i]);
    return m->fixed[i];
}

static void add(struct dt_model *m, int64_t *acc, int64_t ld, const float *g, int64_t rows,
                int64_t cols)
{
    dt_k->fixed_add(acc, ld, g, cols, rows, cols, m->fixed_scale, m->fixed_limit, &m->fixed_flags);
}

/* Box [row, col] on of g's product, from its rows [from, end) of K. */
static struct dt_gemm part(const struct dt_gemm *g, int64_t row, int64_t col, struct box b,
                           int64_t from, int64_t end)
{
    struct dt_gemm x = *g;
    x.M = b.rows, x.N = b.cols, x.K = end - from;
    x.a = model__from_row(g->a, from);
    x.b = model__from_row(g->b, from);
    x.a.p = (const unsigned char *)x.a.p + (size_t)row * dt_dtype_size(x.a.dtype);
    x.b.p = (const unsigned char *)x.b.p + (size_t)col * dt_dtype_size(x.b.dtype);
    return x;
}

void model__exact_weight(struct dt_model *m, int64_t w, const struct dt_gemm *g,
                         struct model__rows rows, bool first)
{
    int64_t *acc = accumulator(m, w, first), last = rows.first + rows.n;
    struct box most = box_of(&m->arch->tensors[w]);
    for (int64_t r = 0; acc && r < g->M; r += most.rows)
        for (int64_t c = 0; c < g->N; c += most.cols) {
            struct box b = {g->M - r < most.rows ? g->M - r : most.rows,
                            g->N - c < most.cols ? g->N - c : most.cols};
            for (int64_t row = rows.first, end; row < last; row = end) {
                end = model__addend_end(m, row, rows.addend);
                struct dt_gemm x = part(g, r, c, b, row - rows.first, end - rows.first);
                x.c = m->tile, x.ldc = b.cols;
                dt_k->gemm(&x);
                add(m, acc + r * g->N + c, g->N, m->tile, b.rows, b.cols);
            }
        }
}

void model__exact_bias(struct dt_model *m, int64_t b, const float *dy, int64_t lddy, int64_t N,
                       struct model__rows rows, bool first)
{
    int64_t *acc = accumulator(m, b, first), last = rows.first + rows.n;
    for (int64_t row = rows.first, end; acc && row < last; row = end) {
        end = model__addend_end(m, row, rows.addend);
        dt_k->zero(m->tile, (size_t)N * sizeof(float));
        dt_k->bias_backward(m->tile, dy + (row - rows.first) * lddy, lddy, end - row, N);
        add(m, acc, N, m->tile, 1, N);
    }
}

/* Rows [row, end) of a norm's backward */
static struct dt_norm norm_rows(const struct dt_norm *n, int64_t row, int64_t end)
{
    struct dt_norm x = *n;
    x.rows = end - row;
    x.x += row * n->ldx;
    x.dy += row * n->ldy;
    x.dx += row * n->lddx;
    x.rstd += row * n->groups;
    if (x.mean)
        x.mean += row * n->groups;
    return x;
}

void model__exact_norm(struct dt_model *m, const struct dt_norm *n, int64_t w, int64_t b,
                       bool first)
{
    int64_t *dw = accumulator(m, w, first), *db = accumulator(m, b, first), cols = n->cols;
    for (int64_t row = 0, end; row < n->rows; row = end) {
        end = model__addend_end(m, row, n->rows);
        struct dt_norm x = norm_rows(n, row, end);
        x.dw = dw ? m->tile : NULL;
        x.db = db ? m->tile + cols : NULL;
        dt_k->zero(m->tile, (size_t)(2 * cols) * sizeof(float));
        dt_k->norm_backward(&x);
        if (dw)
            add(m, dw, cols, x.dw, 1, cols);
        if (db)
            add(m, db, cols, x.db, 1, cols);
    }
}

void model__exact_embed(struct dt_model *m, bool first)
{
    const struct dt_arch *a = m->arch;
    /* A tied embedding's accumulator was begun by the head. */
    int64_t *de = accumulator(m, dt_arch_tensor(a, -1, DT_EMBED_W), first && !a->tied);
    int64_t *dp = accumulator(m, dt_arch_tensor(a, -1, DT_POSITION_W), first);
    dt_k->embed_backward_fixed(de, dp, model__f(m, DT_SLOT_DX, 0), m->batch.ids, m->batch.position,
                               m->batch.T, a->C, m->fixed_scale, m->fixed_limit, &m->fixed_flags);
}
