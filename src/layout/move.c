/* Moves: where two layouts meet.
 *
 * An interval of the space, seen inside one tensor, is at most three rectangles: the rest of its
 * first row, whole rows, the beginning of its last row. Clipping each to a box gives the pieces of
 * interval x box; interval x interval is one run of elements, a rectangle of one row. Both layouts
 * are sorted by where they stand in the space, so a move is one sweep.
 *
 * With thousands of workers nobody can afford the whole move. Of a rank's part, its own boxes meet
 * the whole home, and all other boxes only the rank's own intervals. */
#include "layout/private.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

int layout__push(struct layout__list *l, struct dt_piece piece)
{
    if (l->move->count == l->capacity) {
        int64_t capacity = l->capacity ? 2 * l->capacity : 64;
        struct dt_piece *grown = realloc(l->move->pieces, (size_t)capacity * sizeof *grown);
        if (!grown)
            return DT_FAIL(DT_E_MEMORY, "cannot hold a move of %lld pieces", (long long)capacity);
        l->move->pieces = grown;
        l->capacity = capacity;
    }
    l->move->pieces[l->move->count++] = piece;
    return DT_OK;
}

int layout__rectangles(const struct dt_space *s, const struct dt_interval *in, int64_t tensor,
                       struct layout__rect out[3])
{
    int n = 0;
    int64_t cols = s->arch->tensors[s->tensor[tensor]].cols;
    int64_t base = s->offset[tensor];
    int64_t begin = layout__max(in->begin, base) - base;
    int64_t end = layout__min(in->end, s->offset[tensor + 1]) - base;
    if (begin >= end)
        return 0;
    int64_t first = begin / cols, last = (end - 1) / cols;
    int64_t head = begin % cols, tail = (end - 1) % cols + 1;
    if (first == last) {
        out[n++] = (struct layout__rect){first, first + 1, head, tail};
        return n;
    }
    if (head) {
        out[n++] = (struct layout__rect){first, first + 1, head, cols};
        first++;
    }
    int64_t whole = tail < cols ? last : last + 1;
    if (first < whole)
        out[n++] = (struct layout__rect){first, whole, 0, cols};
    if (tail < cols)
        out[n++] = (struct layout__rect){last, last + 1, 0, tail};
    return n;
}

/* A rectangle that stands in the interval, clipped to the box. */
static int clip(struct layout__list *l, const struct dt_space *s, const struct dt_interval *in,
                const struct dt_box *box, const struct layout__rect *part, bool to_home)
{
    int64_t r0 = layout__max(part->row0, box->row0), r1 = layout__min(part->row1, box->row1);
    int64_t c0 = layout__max(part->col0, box->col0), c1 = layout__min(part->col1, box->col1);
    if (r0 >= r1 || c0 >= c1)
        return DT_OK;
    int64_t cols = s->arch->tensors[s->tensor[box->tensor]].cols;
    int64_t element = s->offset[box->tensor] + r0 * cols + c0;
    int64_t home_at = in->at + (element - in->begin);
    int64_t box_at = box->at + (r0 - box->row0) * box->ld + (c0 - box->col0);
    struct dt_piece p = {.tensor = box->tensor, .rows = r1 - r0, .cols = c1 - c0};
    if (to_home) {
        p.from = box->owner, p.from_at = box_at, p.from_ld = box->ld;
        p.to = in->owner, p.to_at = home_at, p.to_ld = cols;
    } else {
        p.from = in->owner, p.from_at = home_at, p.from_ld = cols;
        p.to = box->owner, p.to_at = box_at, p.to_ld = box->ld;
    }
    return layout__push(l, p);
}

/* All of interval x box. */
static int meet(struct layout__list *l, const struct dt_space *s, const struct dt_interval *in,
                const struct dt_box *box, bool to_home)
{
    struct layout__rect parts[3];
    int n = layout__rectangles(s, in, box->tensor, parts);
    for (int i = 0; i < n; i++)
        DT_TRY(clip(l, s, in, box, &parts[i], to_home));
    return DT_OK;
}

/* The first interval that ends after element i. */
static int64_t first_interval(const struct dt_home *h, int64_t i)
{
    int64_t lo = 0, hi = h->count;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (h->intervals[mid].end <= i)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int with_home(struct layout__list *l, const struct dt_space *s, const struct dt_home *home,
                     const struct dt_box *box, bool to_home)
{
    for (int64_t i = first_interval(home, s->offset[box->tensor]);
         i < home->count && home->intervals[i].begin < s->offset[box->tensor + 1]; i++)
        DT_TRY(meet(l, s, &home->intervals[i], box, to_home));
    return DT_OK;
}

/* The intervals of one owner: the sorted list is all that with_home asks for. */
static int of_owner(const struct dt_home *h, int32_t owner, struct dt_home *out)
{
    int64_t n = 0;
    *out = (struct dt_home){0};
    for (int64_t i = 0; i < h->count; i++)
        n += h->intervals[i].owner == owner;
    DT_TRY(DT_NEW(&out->intervals, n));
    for (int64_t i = 0; i < h->count; i++)
        if (h->intervals[i].owner == owner)
            out->intervals[out->count++] = h->intervals[i];
    return DT_OK;
}

/* Boxes against a home, in either direction. send: [boxes] which take part, NULL: all. */
static int boxes_and_home(const struct dt_space *s, const struct dt_compute *c, const bool *send,
                          const struct dt_home *home, int32_t rank, bool to_home,
                          struct dt_move *out)
{
    int rc;
    struct dt_home own = {0};
    struct layout__list l = {.move = out};
    DT_CHECK(done, rc, of_owner(home, rank, &own));
    for (int64_t b = 0; b < c->count; b++) {
        const struct dt_box *box = &c->boxes[b];
        const struct dt_home *h = rank < 0 || box->owner == rank ? home : &own;
        if (!send || send[b])
            DT_CHECK(done, rc, with_home(&l, s, h, box, to_home));
    }
done:
    dt_home_free(&own);
    if (rc < 0)
        dt_move_free(out);
    return rc;
}

int dt_move_gather(const struct dt_space *s, const struct dt_home *home,
                   const struct dt_compute *to, int32_t rank, struct dt_move *out)
{
    *out = (struct dt_move){0};
    return boxes_and_home(s, to, NULL, home, rank, false, out);
}

static bool same_box(const struct dt_box *a, const struct dt_box *b)
{
    return a->tensor == b->tensor && a->row0 == b->row0 && a->row1 == b->row1 &&
           a->col0 == b->col0 && a->col1 == b->col1;
}

static bool overlap(const struct dt_box *a, const struct dt_box *b)
{
    return a->tensor == b->tensor && a->row0 < b->row1 && b->row0 < a->row1 && a->col0 < b->col1 &&
           b->col0 < a->col1;
}

/* Equal boxes side by side, in the order of the list. */
static int by_extent(const void *a, const void *b)
{
    const struct dt_box *x = *(const struct dt_box *const *)a;
    const struct dt_box *y = *(const struct dt_box *const *)b;
    int64_t p[] = {x->tensor, x->row0, x->row1, x->col0, x->col1};
    int64_t q[] = {y->tensor, y->row0, y->row1, y->col0, y->col1};
    for (int i = 0; i < 5; i++)
        if (p[i] != q[i])
            return p[i] < q[i] ? -1 : 1;
    return (x > y) - (x < y);
}

/* Of `same` boxes the first of every extent sends. Boxes with equal gradients are replicas, hence
 * equal in extent or disjoint; anything between is a plan that arch did not make. */
static int choose_same(const struct dt_compute *c, const struct dt_box **same, int64_t count,
                       bool *send)
{
    int64_t kept = 0;
    if (count)
        qsort(same, (size_t)count, sizeof *same, by_extent);
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || !same_box(same[kept - 1], same[i]))
            same[kept++] = same[i];
    for (int64_t i = 0; i < kept; i++) {
        send[same[i] - c->boxes] = true;
        for (int64_t j = i + 1;
             j < kept && same[j]->tensor == same[i]->tensor && same[j]->row0 < same[i]->row1; j++)
            if (overlap(same[i], same[j]))
                return DT_FAIL(DT_E_INTERNAL, "boxes %lld and %lld of tensor %lld overlap in part",
                               (long long)(same[i] - c->boxes), (long long)(same[j] - c->boxes),
                               (long long)same[i]->tensor);
    }
    return DT_OK;
}

int dt_move_reduce(const struct dt_space *s, const struct dt_compute *from,
                   const struct dt_home *home, int32_t rank, struct dt_move *out)
{
    int rc;
    int64_t count = 0;
    bool *send = NULL;
    const struct dt_box **same = NULL;
    *out = (struct dt_move){0};
    DT_CHECK(done, rc, DT_NEW(&send, from->count));
    DT_CHECK(done, rc, DT_NEW(&same, from->count));
    for (int64_t b = 0; b < from->count; b++) {
        send[b] = from->boxes[b].gradient == DT_GRAD_PARTIAL;
        if (from->boxes[b].gradient == DT_GRAD_SAME)
            same[count++] = &from->boxes[b];
    }
    DT_CHECK(done, rc, choose_same(from, same, count, send));
    DT_CHECK(done, rc, boxes_and_home(s, from, send, home, rank, true, out));
done:
    free(same);
    free(send);
    return rc;
}

int dt_move_migrate(const struct dt_space *s, const struct dt_home *from, const struct dt_home *to,
                    int32_t rank, struct dt_move *out)
{
    int rc;
    *out = (struct dt_move){0};
    struct layout__list l = {.move = out};
    for (int64_t i = 0, j = 0; i < from->count && j < to->count;) {
        const struct dt_interval *a = &from->intervals[i], *b = &to->intervals[j];
        int64_t begin = layout__max(a->begin, b->begin), end = layout__min(a->end, b->end);
        bool part = rank < 0 || a->owner == rank || b->owner == rank;
        while (part &&
               begin < end) { /* one piece a tensor: a tensor is what the receiver can name */
            int64_t tensor = dt_space_at(s, begin);
            int64_t stop = layout__min(end, s->offset[tensor + 1]);
            DT_CHECK(fail, rc,
                     layout__push(&l, (struct dt_piece){.from = a->owner,
                                                        .to = b->owner,
                                                        .tensor = tensor,
                                                        .rows = 1,
                                                        .cols = stop - begin,
                                                        .from_at = a->at + (begin - a->begin),
                                                        .from_ld = stop - begin,
                                                        .to_at = b->at + (begin - b->begin),
                                                        .to_ld = stop - begin}));
            begin = stop;
        }
        if (a->end <= b->end)
            i++;
        else
            j++;
    }
    return DT_OK;
fail:
    dt_move_free(out);
    return rc;
}

void dt_move_free(struct dt_move *m)
{
    free(m->pieces);
    *m = (struct dt_move){0};
}

int64_t dt_move_elements(const struct dt_move *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->count; i++)
        n += m->pieces[i].rows * m->pieces[i].cols;
    return n;
}
