/* What crosses the files of layout/. */
#ifndef DT_LAYOUT_PRIVATE_H
#define DT_LAYOUT_PRIVATE_H

#include "layout/layout.h"

/* The block edge nearest to element i; the lower one when two are equally near. */
int64_t layout__nearest_edge(const struct dt_space *s, int64_t i);

struct layout__rect {
    int64_t row0, row1, col0, col1;
};

/* What an interval covers of a tensor, as at most three rectangles in order; their number. */
int layout__rectangles(const struct dt_space *s, const struct dt_interval *in, int64_t tensor,
                       struct layout__rect out[3]);

/* A move while it grows. */
struct layout__list {
    struct dt_move *move;
    int64_t capacity;
};
int layout__push(struct layout__list *l, struct dt_piece piece);

static inline int64_t layout__max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t layout__min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
