/* One of several writers of a save. What it writes it hashes from memory and remembers; the
 * coordinator makes one manifest of what all have written. */
#include "state/checkpoint.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>
#include <unistd.h>

struct dt_checkpoint_part {
    int count;
    int *fds;               /* [count] */
    char (*paths)[DT_PATH]; /* [count] for messages */
    struct dt_checkpoint_range *ranges;
    size_t range_count, room;
};

int dt_checkpoint_part_open(const char *temp, const char *const *names, int count,
                            struct dt_checkpoint_part **out)
{
    struct dt_checkpoint_part *p;
    int rc;
    *out = NULL;
    DT_TRY(DT_NEW(&p, 1));
    DT_CHECK(fail, rc, DT_NEW(&p->fds, count));
    DT_CHECK(fail, rc, DT_NEW(&p->paths, count));
    for (; p->count < count; p->count++) {
        DT_CHECK(fail, rc, dt_path_join(p->paths[p->count], temp, names[p->count]));
        DT_CHECK(fail, rc, dt_fd_open_write(p->paths[p->count], &p->fds[p->count]));
    }
    *out = p;
    return DT_OK;
fail:
    dt_checkpoint_part_close(p);
    return rc;
}

static int remember(struct dt_checkpoint_part *p, struct dt_checkpoint_range range)
{
    if (p->range_count == p->room) {
        size_t room = p->room ? 2 * p->room : 64;
        struct dt_checkpoint_range *more = realloc(p->ranges, room * sizeof *more);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold %zu ranges of a checkpoint", room);
        p->ranges = more;
        p->room = room;
    }
    p->ranges[p->range_count++] = range;
    return DT_OK;
}

int dt_checkpoint_part_write(struct dt_checkpoint_part *p, int file, size_t offset,
                             const void *data, size_t bytes)
{
    const unsigned char *from = data;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < DT_CHECKPOINT_CHUNK ? bytes - done : DT_CHECKPOINT_CHUNK;
        DT_TRY(dt_fd_write_at(p->fds[file], p->paths[file], from + done, n, offset + done));
        DT_TRY(remember(
            p, (struct dt_checkpoint_range){file, offset + done, n, dt_hash(from + done, n)}));
    }
    return DT_OK;
}

int dt_checkpoint_part_sync(struct dt_checkpoint_part *p)
{
    for (int i = 0; i < p->count; i++)
        DT_TRY(dt_fd_sync(p->fds[i], p->paths[i]));
    return DT_OK;
}

const struct dt_checkpoint_range *dt_checkpoint_part_ranges(const struct dt_checkpoint_part *p,
                                                            size_t *count)
{
    *count = p->range_count;
    return p->ranges;
}

void dt_checkpoint_part_close(struct dt_checkpoint_part *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->count; i++)
        close(p->fds[i]);
    free(p->fds);
    free(p->paths);
    free(p->ranges);
    free(p);
}
