/* What crosses the files of layout/. */
#ifndef DT_LAYOUT_PRIVATE_H
#define DT_LAYOUT_PRIVATE_H

#include "layout/layout.h"

/* The block edge nearest to element i; the lower one when two are equally near. */
int64_t layout__nearest_edge(const struct dt_space *s, int64_t i);

static inline int64_t layout__max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t layout__min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
