/* One buffer that grows to the longest line; zlib reads plain files and gzip alike.
 *
 * The place where the search for a line's end stopped is kept, so a line of 100 MB costs one pass.
 */
#include "data/lines.h"

#include "base/error.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { READ_SIZE = 256 << 10 };
static const size_t longest_line = (size_t)1 << 30, longest_text = (size_t)64 << 30;

struct dt_lines {
    gzFile file;
    char *path, *buffer;
    size_t room, start, used,
        searched; /* buffer[start, used) is unread, [start, searched) has no end */
    int64_t number;
    bool end;
};

static int check_start(struct dt_lines *l);

int dt_lines_open(const char *path, struct dt_lines **out)
{
    size_t size;
    DT_TRY(dt_file_size(path, &size));
    int fd, rc;
    DT_TRY(dt_fd_open(path, &fd));
    struct dt_lines *l = calloc(1, sizeof *l);
    if (l) {
        l->path = strdup(path);
        l->file = gzdopen(fd, "rb");
    }
    if (!l || !l->path || !l->file) {
        if (!l || !l->file)
            close(fd);
        rc = DT_FAIL(DT_E_MEMORY, "cannot allocate a reader for %s", path);
        goto failed;
    }
    gzbuffer(l->file, READ_SIZE);
    DT_CHECK(failed, rc, check_start(l));
    *out = l;
    return DT_OK;
failed:
    dt_lines_close(l);
    return rc;
}

void dt_lines_close(struct dt_lines *l)
{
    if (!l)
        return;
    if (l->file)
        gzclose_r(l->file);
    free(l->path);
    free(l->buffer);
    free(l);
}

static int make_room(struct dt_lines *l, size_t limit)
{
    if (l->start > 0 && l->start >= l->used / 2) {
        memmove(l->buffer, l->buffer + l->start, l->used - l->start);
        l->used -= l->start;
        l->searched -= l->start;
        l->start = 0;
    }
    if (l->room - l->used >= READ_SIZE)
        return DT_OK;
    if (l->used - l->start > limit)
        return DT_FAIL(DT_E_DATA, "%s:%" PRId64 ": longer than %zu bytes; is it a file of lines?",
                       l->path, l->number + 1, limit);
    size_t room = l->room * 2 + READ_SIZE;
    char *more = realloc(l->buffer, room);
    if (!more)
        return DT_FAIL(DT_E_MEMORY, "%s: cannot allocate %zu bytes for a line", l->path, room);
    l->buffer = more;
    l->room = room;
    return DT_OK;
}

static int fill(struct dt_lines *l, size_t limit)
{
    DT_TRY(make_room(l, limit));
    int n = gzread(l->file, l->buffer + l->used, READ_SIZE);
    int code = Z_OK;
    const char *words = gzerror(l->file, &code);
    if (n < 0 || code == Z_BUF_ERROR) {
        if (code == Z_ERRNO)
            return dt_file_fail("read", l->path);
        return DT_FAIL(DT_E_DATA, "%s: damaged or cut off gzip data after line %" PRId64 " (%s)",
                       l->path, l->number, words && words[0] ? words : "unexpected end of file");
    }
    l->used += (size_t)n;
    l->end = n == 0;
    return DT_OK;
}

/* A byte order mark is skipped; one of UTF-16 is named, the JSON error would say nothing. */
static int check_start(struct dt_lines *l)
{
    while (!l->end && l->used < 3)
        DT_TRY(fill(l, longest_line));
    const unsigned char *p = (const unsigned char *)l->buffer;
    if (l->used >= 2 && ((p[0] == 0xff && p[1] == 0xfe) || (p[0] == 0xfe && p[1] == 0xff)))
        return DT_FAIL(DT_E_DATA,
                       "%s: is UTF-16, expected UTF-8; convert it with iconv -f UTF-16 -t "
                       "UTF-8",
                       l->path);
    if (l->used >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0)
        l->start = l->searched = 3;
    return DT_OK;
}

int dt_lines_next(struct dt_lines *l, const char **line, size_t *bytes, int64_t *number)
{
    char *found;
    for (;;) {
        found = l->used > l->searched ? memchr(l->buffer + l->searched, '\n', l->used - l->searched)
                                      : NULL;
        if (found || l->end)
            break;
        l->searched = l->used;
        DT_TRY(fill(l, longest_line));
    }
    *line = NULL;
    *bytes = 0;
    if (!found && l->start == l->used)
        return DT_OK;
    size_t stop = found ? (size_t)(found - l->buffer) : l->used;
    *line = l->buffer + l->start;
    *bytes = stop - l->start;
    if (*bytes > 0 && (*line)[*bytes - 1] == '\r')
        --*bytes;
    *number = ++l->number;
    l->start = l->searched = found ? stop + 1 : stop;
    return DT_OK;
}

int dt_lines_rest(struct dt_lines *l, const char **text, size_t *bytes)
{
    while (!l->end)
        DT_TRY(fill(l, longest_text));
    *text = l->buffer + l->start;
    *bytes = l->used - l->start;
    l->start = l->searched = l->used;
    return DT_OK;
}

size_t dt_lines_position(const struct dt_lines *l)
{
    z_off_t at = gzoffset(l->file);
    return at > 0 ? (size_t)at : 0;
}
