/* save: home -> files, by several writers at once.
 *
 * A file is a header, the trained elements in space order, then frozen tensors in their own dtype.
 * Its bytes are cut where the homes are cut, moved down to page edges (dt_home_save), so that no
 * two writers touch one page. What a writer then writes but is not home of, a few elements at each
 * cut, comes over comm first. Header bytes and frozen tensors every worker has. A writer that
 * cannot write still gives the others what they need: the save fails as a whole afterwards, and
 * nobody hangs. */
#include "state/state.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One file while it is written. */
struct file {
    const struct dt_state *s;
    struct dt_checkpoint_part *part; /* NULL: only give */
    int index;                       /* of DT_STATE_FILES */
    const struct dt_tensor_plan *plan;
    const float *array; /* [elements] home storage, NULL when nothing trains */
    struct dt_home cut; /* of the trained elements */
    struct dt_byte_range *ranges;
    int64_t range_count;
    size_t trained_begin; /* byte of the first trained element */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- The elements at the cuts ---- */

struct border {
    struct dt_move move;
    struct dt_comm_request *requests; /* [move.count] */
    float *received;                  /* one piece after another */
};

/* The how-manieth piece between its two workers, in the order of the move, which both share. */
static uint64_t key_of(const struct file *f, const struct border *b, int64_t piece)
{
    const struct dt_piece *p = b->move.pieces;
    uint64_t ordinal = 0;
    for (int64_t i = 0; i < piece; i++)
        ordinal += p[i].from == p[piece].from && p[i].to == p[piece].to;
    return (uint64_t)f->index << 32 | ordinal;
}

/* Sends and receives of this worker; returns when all are over. */
static int exchange(const struct file *f, struct border *b)
{
    struct dt_comm *c = f->s->comm;
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < b->move.count; i++) {
        const struct dt_piece *p = &b->move.pieces[i];
        size_t bytes = (size_t)p->cols * sizeof(float);
        if (p->from == p->to)
            continue;
        if (p->from == f->s->rank)
            dt_comm_send(c, &b->requests[n++], p->to, DT_COMM_MOVE, key_of(f, b, i),
                         f->array + p->from_at, bytes);
        else
            dt_comm_recv(c, &b->requests[n++], p->from, DT_COMM_MOVE, key_of(f, b, i),
                         b->received + at, bytes);
        at += p->to == f->s->rank ? p->cols : 0;
    }
    return n > 0 ? dt_comm_wait_all(c, b->requests, n,
                                    "state at the borders of a checkpoint's writers")
                 : DT_OK;
}

static int write_pieces(const struct file *f, const struct border *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->move.count; i++) {
        const struct dt_piece *p = &b->move.pieces[i];
        bool own = p->from == f->s->rank;
        if (p->to != f->s->rank)
            continue;
        DT_TRY(dt_checkpoint_part_write(
            f->part, f->index, f->trained_begin + (size_t)p->to_at * sizeof(float),
            own ? f->array + p->from_at : b->received + at, (size_t)p->cols * sizeof(float)));
        at += own ? 0 : p->cols;
    }
    return DT_OK;
}

static int write_trained(const struct file *f)
{
    const struct dt_part *p = &f->s->parts[0];
    struct border b = {0};
    int64_t received = 0;
    int rc;
    DT_TRY(dt_move_migrate(&p->space, &p->home, &f->cut, f->s->rank, &b.move));
    for (int64_t i = 0; i < b.move.count; i++)
        if (b.move.pieces[i].from != f->s->rank)
            received += b.move.pieces[i].cols;
    DT_CHECK(done, rc, DT_NEW(&b.requests, b.move.count + 1));
    DT_CHECK(done, rc, DT_NEW(&b.received, received + 1));
    DT_CHECK(done, rc, exchange(f, &b));
    if (f->part)
        DT_CHECK(done, rc, write_pieces(f, &b));
done:
    free(b.received);
    free(b.requests);
    dt_move_free(&b.move);
    return rc;
}

/* ---- Header and frozen tensors ---- */

static int write_header(const struct file *f, const struct dt_byte_range *r)
{
    const struct dt_planned_file *planned = &f->plan->files[0];
    size_t end = min_size(r->end, planned->header_size);
    if (r->begin >= end)
        return DT_OK;
    return dt_checkpoint_part_write(f->part, f->index, r->begin,
                                    (const unsigned char *)planned->header + r->begin,
                                    end - r->begin);
}

/* Bytes [begin, end) of a frozen tensor that stands at `start`: back to the type it came in, which
 * is exact, through a bounded buffer. Cuts fall on page edges, hence between elements. */
static int write_frozen_tensor(const struct file *f, int64_t tensor, size_t start, size_t begin,
                               size_t end)
{
    enum { CHUNK = 1 << 16 };
    enum dt_dtype type = f->s->frozen_dtype[tensor];
    size_t size = dt_dtype_size(type);
    float *buffer;
    DT_TRY(DT_NEW(&buffer, CHUNK));
    int rc = DT_OK;
    for (size_t at = begin; at < end && rc >= 0;) {
        int64_t first = (int64_t)((at - start) / size);
        int64_t n = min64(CHUNK, (int64_t)((end - at + size - 1) / size));
        dt_k->copy(buffer, type, n, f->s->frozen[tensor] + first, DT_F32, n, 1, n);
        rc = dt_checkpoint_part_write(f->part, f->index, at, buffer, (size_t)n * size);
        at += (size_t)n * size;
    }
    free(buffer);
    return rc;
}

static int write_frozen(const struct file *f, const struct dt_byte_range *r)
{
    size_t k = f->s->part_count > 0 ? (size_t)f->s->parts[0].space.count : 0;
    for (int64_t i = 0; i < f->s->arch->tensor_count; i++) {
        if (f->s->trainable[i])
            continue;
        size_t start = f->plan->offset[k], end = start + f->plan->bytes[k];
        k++;
        if (max_size(start, r->begin) < min_size(end, r->end))
            DT_TRY(
                write_frozen_tensor(f, i, start, max_size(start, r->begin), min_size(end, r->end)));
    }
    return DT_OK;
}

/* ---- One file ---- */

static int cut_file(struct file *f)
{
    const struct dt_part *p = &f->s->parts[0];
    f->trained_begin = f->plan->offset[0];
    struct dt_save_file shape = {.data_start = f->trained_begin,
                                 .element_bytes = sizeof(float),
                                 .file_bytes = f->plan->files[0].size,
                                 .page = DT_STATE_PAGE};
    return dt_home_save(&p->space, &p->home, &shape, f->s->workers, &f->cut, &f->ranges,
                        &f->range_count);
}

static int save_file(const struct dt_state *s, struct dt_checkpoint_part *part, int index,
                     const struct dt_tensor_plan *plan, const float *array)
{
    struct file f = {.s = s, .part = part, .index = index, .plan = plan, .array = array};
    int rc;
    DT_CHECK(done, rc, cut_file(&f));
    DT_CHECK(done, rc, write_trained(&f));
    for (int64_t i = 0; i < f.range_count; i++) {
        if (!part || f.ranges[i].owner != s->rank)
            continue;
        DT_CHECK(done, rc, write_header(&f, &f.ranges[i]));
        if (index == 0)
            DT_CHECK(done, rc, write_frozen(&f, &f.ranges[i]));
    }
done:
    dt_home_free(&f.cut);
    free(f.ranges);
    return rc;
}

int dt_state_save(const struct dt_state *s, struct dt_checkpoint_part *part)
{
    struct dt_state_file files[DT_STATE_FILES];
    const struct dt_part *p = &s->parts[0];
    const float *arrays[DT_STATE_FILES] = {p->master, p->exp_avg, p->exp_avg_sq};
    DT_TRY(dt_state_files(s->arch, s->trainable, s->frozen_dtype, files));
    struct dt_error_state first = {0};
    for (int k = 0; k < DT_STATE_FILES; k++) {
        int rc = save_file(s, first.code < 0 ? NULL : part, k, &files[k].plan, arrays[k]);
        if (rc < 0 && first.code >= 0)
            dt_error_save(rc, &first);
        if (rc == DT_E_PEER || rc == DT_E_EPOCH || rc == DT_E_TIMEOUT)
            break; /* the others are not there any more */
    }
    dt_state_files_free(files);
    return first.code < 0 ? dt_error_restore(&first) : DT_OK;
}
