/* Who writes which bytes of a checkpoint's file.
 *
 * Clients of network file systems cache whole pages: two of them that write different bytes of one
 * page can lose each other's. So the cuts between writers are those of the home, moved down to page
 * edges. An element never straddles a page, since its size divides the page and the position of
 * element 0; blocks do. */
#include "layout/private.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdlib.h>

static int check(const struct dt_space *s, const struct dt_save_file *f, int32_t workers)
{
    if (workers < 1 || f->element_bytes == 0 || f->page == 0 || f->page % f->element_bytes ||
        f->data_start % f->element_bytes)
        return DT_FAIL(DT_E_INTERNAL,
                       "cannot cut a file for %d writers at pages of %zu: elements of %zu bytes "
                       "begin at byte %zu",
                       (int)workers, f->page, f->element_bytes, f->data_start);
    if (f->file_bytes < f->data_start ||
        (f->file_bytes - f->data_start) / f->element_bytes < (size_t)s->elements)
        return DT_FAIL(DT_E_INTERNAL, "%lld elements do not fit from byte %zu to %zu",
                       (long long)s->elements, f->data_start, f->file_bytes);
    return DT_OK;
}

/* The element that stands at the page edge at or below element i; 0 when that edge lies before the
 * elements. */
static int64_t page_edge(const struct dt_save_file *f, int64_t i)
{
    size_t byte = f->data_start + (size_t)i * f->element_bytes;
    size_t edge = byte - byte % f->page;
    return edge <= f->data_start ? 0 : (int64_t)((edge - f->data_start) / f->element_bytes);
}

static int round_home(const struct dt_space *s, const struct dt_home *home,
                      const struct dt_save_file *f, struct dt_home *out)
{
    DT_TRY(DT_NEW(&out->intervals, home->count));
    for (int64_t i = 0; i < home->count; i++) {
        const struct dt_interval *in = &home->intervals[i];
        int64_t begin = page_edge(f, in->begin);
        int64_t end = in->end == s->elements ? in->end : page_edge(f, in->end);
        struct dt_interval *last = out->count ? &out->intervals[out->count - 1] : NULL;
        if (last && last->owner == in->owner)
            last->end = end;
        else if (begin < end)
            out->intervals[out->count++] =
                (struct dt_interval){.begin = begin, .end = end, .owner = in->owner, .at = begin};
    }
    return DT_OK;
}

/* Bytes that follow those already given. */
static void give(struct dt_byte_range *ranges, int64_t *count, int32_t owner, size_t end)
{
    size_t begin = *count ? ranges[*count - 1].end : 0;
    if (end <= begin)
        return;
    if (*count && ranges[*count - 1].owner == owner)
        ranges[*count - 1].end = end;
    else
        ranges[(*count)++] = (struct dt_byte_range){owner, begin, end};
}

int dt_home_save(const struct dt_space *s, const struct dt_home *home,
                 const struct dt_save_file *file, int32_t workers, struct dt_home *out,
                 struct dt_byte_range **ranges, int64_t *count)
{
    int rc;
    *out = (struct dt_home){0};
    *ranges = NULL;
    *count = 0;
    DT_CHECK(fail, rc, check(s, file, workers));
    DT_CHECK(fail, rc, round_home(s, home, file, out));
    DT_CHECK(fail, rc, DT_NEW(ranges, out->count + workers + 1));
    for (int64_t i = 0; i < out->count; i++)
        give(*ranges, count, out->intervals[i].owner,
             file->data_start + (size_t)out->intervals[i].end * file->element_bytes);
    /* The last page of the elements is begun: its writer finishes it. */
    size_t used = *count ? (*ranges)[*count - 1].end : 0;
    size_t pages = used / file->page + (used % file->page > 0);
    size_t all = file->file_bytes / file->page + (file->file_bytes % file->page > 0);
    if (out->count)
        give(*ranges, count, out->intervals[out->count - 1].owner,
             pages < all ? pages * file->page : file->file_bytes);
    for (int32_t w = 0; w < workers; w++) {
        size_t upto = pages + (all - pages) / (size_t)workers * ((size_t)w + 1) +
                      (all - pages) % (size_t)workers * ((size_t)w + 1) / (size_t)workers;
        give(*ranges, count, w, upto < all ? upto * file->page : file->file_bytes);
    }
    return DT_OK;
fail:
    dt_home_free(out);
    free(*ranges);
    *ranges = NULL;
    return rc;
}
