/* PURE. Parameter spaces, who keeps an element (home), who uses it (compute), and moves.
 *
 * A *space* is the concatenation of trainable tensors in execution order; every element has one
 * index in it and knows nothing of devices. The *home* layout deals the space out as sorted
 * intervals, cut on block edges. The *compute* layout is a list of boxes (row range x column range
 * of a tensor) that follows from a plan; each says what its gradient is. A *move* is the
 * intersection of two layouts as a list of rectangular pieces; gather, reduce, save, load, migrate
 * are all moves, executed by state/. */
#ifndef DT_LAYOUT_LAYOUT_H
#define DT_LAYOUT_LAYOUT_H

#include "arch/arch.h"

struct dt_space {
    const struct dt_arch *arch;
    int64_t count;    /* tensors */
    int64_t *tensor;  /* [count] index into arch->tensors, ascending */
    int64_t *offset;  /* [count + 1] first element of each; the last is `elements` */
    int64_t *of_arch; /* [arch->tensor_count] position in this space, -1: in no space (frozen) */
    int64_t elements;
};

/* trainable: [arch->tensor_count]. DT_E_CONFIG when nothing trains. */
int dt_space_new(const struct dt_arch *arch, const bool *trainable, struct dt_space *out);
void dt_space_free(struct dt_space *s);
/* Position in the space of the tensor that holds element i, 0 <= i < elements. */
int64_t dt_space_at(const struct dt_space *s, int64_t i);
/* The nearest block edge at or below element i (a block is 1024 elements of one tensor); `elements`
 * is an edge. */
int64_t dt_space_block_edge(const struct dt_space *s, int64_t i);

/* What is gathered and reduced as one: the tensors of one (segment, layer). */
struct dt_bucket {
    enum dt_segment_kind segment;
    int64_t layer;
    int64_t first, count; /* tensors of the space */
    int64_t begin, end;   /* elements of the space */
};

/* In execution order; together they are the space. The caller frees *out. */
int dt_space_buckets(const struct dt_space *s, struct dt_bucket **out, int64_t *count);

struct dt_interval {
    int64_t begin, end; /* elements of the space */
    int32_t owner;      /* worker, or file */
    int64_t at;         /* element of the owner's storage where `begin` stands */
};

/* Sorted by begin. A home covers the space exactly once. */
struct dt_home {
    int64_t count;
    struct dt_interval *intervals;
};

/* Deals every bucket out over all workers, in proportion to share[workers] (NULL: equal), cut on
 * block edges, so that a bucket's gather and reduce load all of them evenly. What rounding takes
 * from a worker in one bucket it gets in the next ones: in all a worker is within two blocks of
 * its share. A worker may get nothing; one of share 0 gets nothing. Storage of a worker: its
 * intervals one after the other. */
int dt_home_buckets(const struct dt_space *s, int32_t workers, const double *share,
                    struct dt_home *out);
/* What one owner keeps. */
int64_t dt_home_elements(const struct dt_home *h, int32_t owner);
void dt_home_free(struct dt_home *h);

/* A file that holds the space (as elements in space order, from data_start to elements later) and
 * after it other bytes, the frozen tensors. */
struct dt_save_file {
    size_t data_start;    /* byte of element 0, a multiple of element_bytes */
    size_t element_bytes; /* divides page */
    size_t file_bytes;
    size_t page; /* no two writers touch one page of this size */
};

struct dt_byte_range {
    int32_t owner;
    size_t begin, end;
};

/* Who writes what of a file: the cuts of `home`, each moved down to the edge of a file page.
 * *out: the home of the trained elements; at: elements after data_start. *ranges (the caller frees
 * it): all bytes of the file in order, every owner's pages its own; what stands before the
 * trained elements goes with the first of them, what follows is dealt out evenly over `workers`. */
int dt_home_save(const struct dt_space *s, const struct dt_home *home,
                 const struct dt_save_file *file, int32_t workers, struct dt_home *out,
                 struct dt_byte_range **ranges, int64_t *count);

struct dt_box {
    int32_t owner;
    int64_t tensor; /* position in the space */
    int64_t row0, row1, col0, col1;
    enum dt_gradient gradient;
    int64_t at; /* element of the owner's storage of the box's first element */
    int64_t ld; /* storage elements between rows */
};

struct dt_compute {
    int64_t count;
    struct dt_box *boxes;
};

/* Every worker holds every tensor whole: the plan of data parallelism, and of one worker. Storage
 * is in space order without gaps. */
int dt_compute_whole(const struct dt_space *s, int32_t workers, struct dt_compute *out);
/* A home seen as boxes: an interval is at most three a tensor. Their gradient is `none`. */
int dt_compute_home(const struct dt_space *s, const struct dt_home *home, struct dt_compute *out);
void dt_compute_free(struct dt_compute *c);

/* A rectangle of one tensor that stands on `from` and is wanted on `to`. */
struct dt_piece {
    int32_t from, to;
    int64_t tensor; /* position in the space */
    int64_t rows, cols;
    int64_t from_at, from_ld;
    int64_t to_at, to_ld;
};

struct dt_move {
    int64_t count;
    struct dt_piece *pieces; /* in space order, then by owner */
};

/* Of every move: rank -1 makes all of it, else the pieces that `rank` sends or receives, at the
 * cost of those alone. Their order is that of the whole move, so sender and receiver see one order.
 */

/* Every element of every box, from the home that keeps it. */
int dt_move_gather(const struct dt_space *s, const struct dt_home *home,
                   const struct dt_compute *to, int32_t rank, struct dt_move *out);
/* Every part of every element's gradient to its home: `partial` boxes all send, of `same` boxes the
 * first in the list that holds the element sends, `none` sends nothing. */
int dt_move_reduce(const struct dt_space *s, const struct dt_compute *from,
                   const struct dt_home *home, int32_t rank, struct dt_move *out);
/* home -> home': also save (home -> file intervals) and load. */
int dt_move_migrate(const struct dt_space *s, const struct dt_home *from, const struct dt_home *to,
                    int32_t rank, struct dt_move *out);
/* compute -> compute', where an element may stand on several workers: what the receiver holds is a
 * piece from itself, all else is sent once, by a holder chosen so that the busiest sender sends as
 * little as possible. DT_E_INTERNAL when nobody holds an element. */
int dt_move_copy(const struct dt_space *s, const struct dt_compute *from,
                 const struct dt_compute *to, int32_t rank, struct dt_move *out);
void dt_move_free(struct dt_move *m);
int64_t dt_move_elements(const struct dt_move *m);

#endif
