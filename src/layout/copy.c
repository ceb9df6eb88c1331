/* Copies between two box layouts when an element stands on several workers.
 *
 * The edges of a tensor's source boxes cut it into cells; all elements of a cell have the same
 * holders. A cell's part of a wanted box that the receiver holds itself is a local piece. The rest
 * is demand, and demands with equal holders are one class: who sends how much of a class is all
 * that the senders' loads depend on. Classes are poured over their holders one after the other,
 * like water into vessels that are partly full, again and again until nothing moves. That is
 * coordinate descent on a sum of squares, whose minimum has the least busiest sender. Then each
 * class is dealt out, demand after demand, in the amounts found. */
#include "layout/private.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

/* Pouring converges geometrically; this many times is far more than ten workers need, and an end
 * for those that trade the same odd element forever. */
#define POURINGS 200

struct holder {
    int32_t owner;
    const struct dt_box *box;
};

struct cell {
    struct layout__rect rect;
    int64_t count;
    struct holder *holders; /* by owner, one box each */
};

struct demand {
    const struct cell *cell;
    const struct dt_box *to;
    struct layout__rect rect;
    int64_t serial;
};

struct class
{
    int64_t first, count; /* of the sorted demands */
    int64_t elements;
    int64_t *sends; /* [holders of its cells] */
};

struct copy {
    const struct dt_space *space;
    int32_t rank;
    struct layout__list list;
    int64_t cell_count, cell_capacity;
    struct cell **cells; /* each stays where it is: demands point to it */
    int64_t demand_count, demand_capacity;
    struct demand *demands;
    int64_t class_count;
    struct class *classes;
    int64_t *load; /* [owners] elements sent to others */
    int64_t *sends;
};

static int64_t elements_of(const struct layout__rect *r)
{
    return (r->row1 - r->row0) * (r->col1 - r->col0);
}

static bool clip(struct layout__rect *r, const struct dt_box *box)
{
    r->row0 = layout__max(r->row0, box->row0);
    r->row1 = layout__min(r->row1, box->row1);
    r->col0 = layout__max(r->col0, box->col0);
    r->col1 = layout__min(r->col1, box->col1);
    return r->row0 < r->row1 && r->col0 < r->col1;
}

/* Room for one more. */
static int grow(void *items, int64_t count, int64_t *capacity, size_t size)
{
    void **p = items;
    if (count < *capacity)
        return DT_OK;
    int64_t more = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*p, (size_t)more * size);
    if (!grown)
        return DT_FAIL(DT_E_MEMORY, "cannot hold a move of %lld parts", (long long)more);
    *p = grown;
    *capacity = more;
    return DT_OK;
}

static int send(struct copy *c, const struct dt_box *from, const struct dt_box *to,
                const struct layout__rect *r)
{
    if (c->rank >= 0 && from->owner != c->rank && to->owner != c->rank)
        return DT_OK;
    return layout__push(
        &c->list,
        (struct dt_piece){.from = from->owner,
                          .to = to->owner,
                          .tensor = to->tensor,
                          .rows = r->row1 - r->row0,
                          .cols = r->col1 - r->col0,
                          .from_at =
                              from->at + (r->row0 - from->row0) * from->ld + (r->col0 - from->col0),
                          .from_ld = from->ld,
                          .to_at = to->at + (r->row0 - to->row0) * to->ld + (r->col0 - to->col0),
                          .to_ld = to->ld});
}

/* ---- Cells and demands ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Boxes of one tensor, by owner, then as they stand in the list. */
static int by_tensor(const void *a, const void *b)
{
    const struct dt_box *x = *(const struct dt_box *const *)a;
    const struct dt_box *y = *(const struct dt_box *const *)b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    return (x > y) - (x < y);
}

static int sort_boxes(const struct dt_compute *c, const struct dt_box ***out)
{
    DT_TRY(DT_NEW(out, c->count));
    for (int64_t i = 0; i < c->count; i++)
        (*out)[i] = &c->boxes[i];
    if (c->count)
        qsort(*out, (size_t)c->count, sizeof **out, by_tensor);
    return DT_OK;
}

/* The distinct edges of the boxes in one direction, and 0 and `limit`. */
static int64_t edges_of(const struct dt_box **boxes, int64_t n, bool rows, int64_t limit,
                        int64_t *edge)
{
    int64_t count = 0, kept = 1;
    edge[count++] = 0;
    edge[count++] = limit;
    for (int64_t i = 0; i < n; i++) {
        edge[count++] = rows ? boxes[i]->row0 : boxes[i]->col0;
        edge[count++] = rows ? boxes[i]->row1 : boxes[i]->col1;
    }
    qsort(edge, (size_t)count, sizeof *edge, by_value);
    for (int64_t i = 1; i < count; i++)
        if (edge[i] != edge[kept - 1])
            edge[kept++] = edge[i];
    return kept;
}

static int add_cell(struct copy *c, const struct dt_box **from, int64_t n, struct layout__rect rect)
{
    struct cell *cell;
    DT_TRY(grow(&c->cells, c->cell_count, &c->cell_capacity, sizeof *c->cells));
    DT_TRY(DT_NEW(&cell, 1));
    c->cells[c->cell_count++] = cell;
    cell->rect = rect;
    DT_TRY(DT_NEW(&cell->holders, n));
    for (int64_t i = 0; i < n; i++) {
        struct layout__rect inside = rect;
        bool again = cell->count && cell->holders[cell->count - 1].owner == from[i]->owner;
        if (!again && clip(&inside, from[i]))
            cell->holders[cell->count++] = (struct holder){from[i]->owner, from[i]};
    }
    return DT_OK;
}

static int make_cells(struct copy *c, int64_t tensor, const struct dt_box **from, int64_t n)
{
    int rc;
    const struct dt_tensor *t = &c->space->arch->tensors[c->space->tensor[tensor]];
    int64_t *row = NULL, *col = NULL;
    DT_CHECK(done, rc, DT_NEW(&row, 2 * n + 2));
    DT_CHECK(done, rc, DT_NEW(&col, 2 * n + 2));
    int64_t rows = edges_of(from, n, true, t->rows, row);
    int64_t cols = edges_of(from, n, false, t->cols, col);
    for (int64_t i = 0; i + 1 < rows; i++)
        for (int64_t j = 0; j + 1 < cols; j++)
            DT_CHECK(done, rc,
                     add_cell(c, from, n,
                              (struct layout__rect){row[i], row[i + 1], col[j], col[j + 1]}));
done:
    free(row);
    free(col);
    return rc;
}

/* The part of a cell that a box wants. */
static int want(struct copy *c, const struct cell *cell, const struct dt_box *to)
{
    struct layout__rect rect = cell->rect;
    if (!clip(&rect, to))
        return DT_OK;
    for (int64_t h = 0; h < cell->count; h++)
        if (cell->holders[h].owner == to->owner)
            return send(c, cell->holders[h].box, to, &rect);
    if (cell->count == 0)
        return DT_FAIL(DT_E_INTERNAL,
                       "worker %d needs rows %lld to %lld, columns %lld to %lld of '%s', which "
                       "no worker holds",
                       (int)to->owner, (long long)rect.row0, (long long)rect.row1,
                       (long long)rect.col0, (long long)rect.col1,
                       c->space->arch->tensors[c->space->tensor[to->tensor]].name);
    DT_TRY(grow(&c->demands, c->demand_count, &c->demand_capacity, sizeof *c->demands));
    c->demands[c->demand_count] = (struct demand){cell, to, rect, c->demand_count};
    c->demand_count++;
    return DT_OK;
}

static int make_demands(struct copy *c, const struct dt_box **from, int64_t from_count,
                        const struct dt_box **to, int64_t to_count)
{
    for (int64_t i = 0, j = 0; i < to_count;) {
        int64_t tensor = to[i]->tensor, first_cell = c->cell_count, n = 0;
        while (j < from_count && from[j]->tensor < tensor)
            j++;
        while (j + n < from_count && from[j + n]->tensor == tensor)
            n++;
        DT_TRY(make_cells(c, tensor, from + j, n));
        for (; i < to_count && to[i]->tensor == tensor; i++)
            for (int64_t k = first_cell; k < c->cell_count; k++)
                DT_TRY(want(c, c->cells[k], to[i]));
    }
    return DT_OK;
}

/* ---- Who sends how much ---- */

/* Few holders first: those have least choice. */
static int by_holders(const struct cell *a, const struct cell *b)
{
    if (a->count != b->count)
        return a->count < b->count ? -1 : 1;
    for (int64_t i = 0; i < a->count; i++)
        if (a->holders[i].owner != b->holders[i].owner)
            return a->holders[i].owner < b->holders[i].owner ? -1 : 1;
    return 0;
}

static int by_class(const void *a, const void *b)
{
    const struct demand *x = a, *y = b;
    int order = by_holders(x->cell, y->cell);
    return order ? order : (x->serial > y->serial) - (x->serial < y->serial);
}

static int make_classes(struct copy *c)
{
    int64_t sends = 0;
    if (c->demand_count)
        qsort(c->demands, (size_t)c->demand_count, sizeof *c->demands, by_class);
    DT_TRY(DT_NEW(&c->classes, c->demand_count));
    for (int64_t i = 0; i < c->demand_count; i++) {
        const struct demand *d = &c->demands[i];
        if (i == 0 || by_holders(d[-1].cell, d->cell) != 0) {
            c->classes[c->class_count++].first = i;
            sends += d->cell->count;
        }
        struct class *last = &c->classes[c->class_count - 1];
        last->count++;
        last->elements += elements_of(&d->rect);
    }
    DT_TRY(DT_NEW(&c->sends, sends));
    int64_t *next = c->sends;
    for (int64_t k = 0; k < c->class_count; k++) {
        c->classes[k].sends = next;
        next += c->demands[c->classes[k].first].cell->count;
    }
    return DT_OK;
}

/* A vessel: what a holder sends of other classes, and which holder it is. */
struct vessel {
    int64_t base, holder;
};

static int by_base(const void *a, const void *b)
{
    const struct vessel *x = a, *y = b;
    if (x->base != y->base)
        return x->base < y->base ? -1 : 1;
    return (x->holder > y->holder) - (x->holder < y->holder);
}

/* Divides the class anew, so that its holders' loads are as equal as they can be; did it change? */
static bool pour(struct copy *c, struct class *k, struct vessel *v)
{
    const struct cell *cell = c->demands[k->first].cell;
    bool moved = false;
    for (int64_t h = 0; h < cell->count; h++)
        v[h] = (struct vessel){c->load[cell->holders[h].owner] - k->sends[h], h};
    qsort(v, (size_t)cell->count, sizeof *v, by_base);
    int64_t n = 1, sum = v[0].base; /* the n lowest get something and end at one level */
    while (n < cell->count && v[n].base * n - sum < k->elements)
        sum += v[n++].base;
    int64_t level = (sum + k->elements) / n, odd = (sum + k->elements) % n;
    for (int64_t i = 0; i < cell->count; i++) {
        int64_t h = v[i].holder, now = i < n ? level + (i < odd) - v[i].base : 0;
        moved = moved || now != k->sends[h];
        k->sends[h] = now;
        c->load[cell->holders[h].owner] = v[i].base + now;
    }
    return moved;
}

static int balance(struct copy *c, int32_t owners)
{
    struct vessel *v;
    DT_TRY(DT_NEW(&v, owners));
    bool moved = true;
    for (int round = 0; round < POURINGS && moved; round++) {
        moved = false;
        for (int64_t i = 0; i < c->class_count; i++) {
            int64_t k = round % 2 ? c->class_count - 1 - i : i; /* news travels both ways */
            moved |= pour(c, &c->classes[k], v);
        }
    }
    free(v);
    return DT_OK;
}

/* ---- Pieces ---- */

/* Takes up to n elements off the front of *rect, as a rectangle. */
static struct layout__rect take(struct layout__rect *rect, int64_t n)
{
    struct layout__rect r = *rect;
    int64_t cols = r.col1 - r.col0;
    if (n >= cols) {
        r.row1 = layout__min(r.row1, r.row0 + n / cols);
        rect->row0 = r.row1;
    } else {
        r.row1 = r.row0 + 1;
        r.col1 = r.col0 + n;
    }
    return r;
}

/* A demand's part of n elements from `start` on, counted row by row. */
static int send_part(struct copy *c, const struct demand *d, const struct dt_box *from,
                     int64_t start, int64_t n)
{
    int64_t cols = d->rect.col1 - d->rect.col0;
    int64_t row = d->rect.row0 + start / cols, col = d->rect.col0 + start % cols;
    if (col > d->rect.col0) { /* to the end of a row begun */
        int64_t rest = layout__min(n, d->rect.col1 - col);
        struct layout__rect r = {row, row + 1, col, col + rest};
        DT_TRY(send(c, from, d->to, &r));
        n -= rest;
        row++;
    }
    struct layout__rect left = {row, d->rect.row1, d->rect.col0, d->rect.col1};
    while (n > 0) { /* whole rows, then the beginning of one */
        struct layout__rect r = take(&left, n);
        DT_TRY(send(c, from, d->to, &r));
        n -= elements_of(&r);
    }
    return DT_OK;
}

static int deal_class(struct copy *c, const struct class *k)
{
    int64_t h = 0, left = k->sends[0];
    for (int64_t i = 0; i < k->count; i++) {
        const struct demand *d = &c->demands[k->first + i];
        for (int64_t start = 0, size = elements_of(&d->rect); start < size;) {
            while (left == 0)
                left = k->sends[++h];
            int64_t n = layout__min(left, size - start);
            DT_TRY(send_part(c, d, d->cell->holders[h].box, start, n));
            start += n;
            left -= n;
        }
    }
    return DT_OK;
}

/* By pair of workers before place: which pieces join must not depend on whose part of the move is
 * made. */
static int by_place(const void *a, const void *b)
{
    const struct dt_piece *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to_at > y->to_at) - (x->to_at < y->to_at);
}

/* One piece where two stand side by side (or, `below`, one under the other) on both ends. */
static bool join(struct dt_piece *a, const struct dt_piece *b, bool below)
{
    if (a->tensor != b->tensor || a->from != b->from || a->to != b->to ||
        a->from_ld != b->from_ld || a->to_ld != b->to_ld)
        return false;
    int64_t from_step = below ? a->rows * a->from_ld : a->cols;
    int64_t to_step = below ? a->rows * a->to_ld : a->cols;
    if (b->from_at != a->from_at + from_step || b->to_at != a->to_at + to_step ||
        (below ? a->cols != b->cols : a->rows != b->rows))
        return false;
    *(below ? &a->rows : &a->cols) += below ? b->rows : b->cols;
    return true;
}

static void join_all(struct dt_move *m, bool below)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < m->count; i++)
        if (kept == 0 || !join(&m->pieces[kept - 1], &m->pieces[i], below))
            m->pieces[kept++] = m->pieces[i];
    m->count = kept;
}

static int make_pieces(struct copy *c)
{
    struct dt_move *m = c->list.move;
    for (int64_t k = 0; k < c->class_count; k++)
        DT_TRY(deal_class(c, &c->classes[k]));
    if (m->count)
        qsort(m->pieces, (size_t)m->count, sizeof *m->pieces, by_place);
    join_all(m, false);
    join_all(m, true);
    return DT_OK;
}

static void free_copy(struct copy *c)
{
    for (int64_t i = 0; i < c->cell_count; i++) {
        free(c->cells[i]->holders);
        free(c->cells[i]);
    }
    free(c->cells);
    free(c->demands);
    free(c->classes);
    free(c->sends);
    free(c->load);
}

int dt_move_copy(const struct dt_space *s, const struct dt_compute *from,
                 const struct dt_compute *to, int32_t rank, struct dt_move *out)
{
    int rc;
    int32_t owners = 1;
    const struct dt_box **sources = NULL, **wanted = NULL;
    struct copy c = {.space = s, .rank = rank, .list = {.move = out}};
    *out = (struct dt_move){0};
    for (int64_t b = 0; b < from->count; b++)
        owners = from->boxes[b].owner < owners ? owners : from->boxes[b].owner + 1;
    DT_CHECK(done, rc, DT_NEW(&c.load, owners));
    DT_CHECK(done, rc, sort_boxes(from, &sources));
    DT_CHECK(done, rc, sort_boxes(to, &wanted));
    DT_CHECK(done, rc, make_demands(&c, sources, from->count, wanted, to->count));
    DT_CHECK(done, rc, make_classes(&c));
    DT_CHECK(done, rc, balance(&c, owners));
    DT_CHECK(done, rc, make_pieces(&c));
done:
    free(sources);
    free(wanted);
    free_copy(&c);
    if (rc < 0)
        dt_move_free(out);
    return rc;
}
