/* What checkpoints there are, which of them can be trusted, and which may go. */
#include "state/checkpoint.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "state/manifest.h"
#include "state/names.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Listing ---- */

static void describe(struct dt_checkpoint_entry *e)
{
    struct dt_manifest m;
    int rc = dt_manifest_load(e->path, &m);
    if (rc == DT_OK) {
        memcpy(e->created, m.created, sizeof e->created);
        e->files = m.count;
        for (size_t i = 0; i < m.count; i++)
            e->bytes += m.files[i].size;
        if (m.step != e->step)
            rc = DT_FAIL(DT_E_CHECKPOINT, "%s was saved at step %" PRId64 ": it was renamed",
                         e->path, m.step);
        else
            rc = dt_manifest_check_sizes(e->path, &m);
        dt_manifest_free(&m);
    }
    e->complete = rc == DT_OK;
    if (rc < 0)
        snprintf(e->problem, sizeof e->problem, "%s", dt_error_message());
}

static int by_step(const void *a, const void *b)
{
    const struct dt_checkpoint_entry *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

static int fill_list(const char *dir, const struct dt_names *names, struct dt_checkpoint_list *out)
{
    DT_TRY(DT_NEW(&out->entries, names->count));
    for (size_t i = 0; i < names->count; i++) {
        int64_t step;
        const char *name = names->names[i];
        struct dt_checkpoint_entry *e = &out->entries[out->count];
        if (dt_step_parse(name, DT_NAME_TEMP, &step) || dt_step_parse(name, DT_NAME_OLD, &step) ||
            dt_step_parse(name, DT_NAME_DELETE, &step))
            out->leftovers++;
        if (!dt_step_parse(name, "", &e->step))
            continue;
        DT_TRY(dt_path_join(e->path, dir, name));
        describe(e);
        out->count++;
    }
    qsort(out->entries, out->count, sizeof *out->entries, by_step);
    return DT_OK;
}

int dt_checkpoint_scan(const char *dir, struct dt_checkpoint_list *out)
{
    struct dt_names names;
    *out = (struct dt_checkpoint_list){0};
    int rc = dt_dir_list(dir, &names);
    if (rc == DT_E_NOT_FOUND) {
        dt_error_clear();
        return DT_OK;
    }
    DT_TRY(rc);
    rc = fill_list(dir, &names, out);
    dt_names_free(&names);
    if (rc < 0)
        dt_checkpoint_list_free(out);
    return rc;
}

void dt_checkpoint_list_free(struct dt_checkpoint_list *list)
{
    free(list->entries);
    *list = (struct dt_checkpoint_list){0};
}

int dt_checkpoint_dir(char out[DT_PATH], const char *path)
{
    DT_TRY(dt_path_join(out, path, "checkpoints"));
    if (dt_file_is_dir(out))
        return DT_OK;
    if (!dt_file_is_dir(path))
        return DT_FAIL(DT_E_NOT_FOUND,
                       "%s is no directory; a run's directory, its checkpoints/ or "
                       "one checkpoint was expected",
                       path);
    return dt_path_join(out, "", path);
}

/* ---- Verifying ---- */

struct reader {
    struct dt_hasher *hasher;
    unsigned char *buffer; /* DT_CHECKPOINT_CHUNK bytes */
    struct dt_progress progress;
    size_t done;
};

static int verify_range(struct reader *r, int fd, const char *path,
                        const struct dt_manifest_range *range)
{
    dt_hasher_reset(r->hasher);
    for (size_t at = 0, n; at < range->length; at += n) {
        n = range->length - at;
        if (n > DT_CHECKPOINT_CHUNK)
            n = DT_CHECKPOINT_CHUNK;
        DT_TRY(dt_fd_read_at(fd, path, r->buffer, n, range->offset + at));
        dt_hasher_add(r->hasher, r->buffer, n);
        r->done += n;
        dt_progress_update(&r->progress, (double)r->done, NULL);
    }
    uint64_t found = dt_hasher_value(r->hasher);
    if (found != range->hash)
        return DT_FAIL(DT_E_CHECKPOINT,
                       "%s: bytes %zu to %zu do not match their checksum (found %016" PRIx64
                       ", expected %016" PRIx64
                       "): the file was changed or damaged after it was saved",
                       path, range->offset, range->offset + range->length - 1, found, range->hash);
    return DT_OK;
}

static int verify_files(struct reader *r, const char *dir, const struct dt_manifest *m)
{
    char path[DT_PATH];
    for (size_t i = 0; i < m->count; i++) {
        int fd, rc = DT_OK;
        DT_TRY(dt_path_join(path, dir, m->files[i].name));
        DT_TRY(dt_fd_open(path, &fd));
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        for (size_t k = 0; k < m->files[i].count && rc == DT_OK; k++)
            rc = verify_range(r, fd, path, &m->files[i].ranges[k]);
        close(fd);
        DT_TRY(rc);
    }
    return DT_OK;
}

/* Leaves what a model is made of. */
static void drop_optimizer(struct dt_manifest *m)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++) {
        if (strncmp(m->files[i].name, "optimizer/", 10) == 0) {
            free(m->files[i].name);
            free(m->files[i].ranges);
        } else {
            m->files[kept++] = m->files[i];
        }
    }
    m->count = kept;
}

static int verify(const char *path, bool model_only)
{
    struct dt_manifest m;
    struct reader r = {0};
    int rc;
    DT_TRY(dt_manifest_load(path, &m));
    if (model_only)
        drop_optimizer(&m);
    DT_CHECK(done, rc, dt_manifest_check_sizes(path, &m));
    DT_CHECK(done, rc, dt_new_bytes(&r.buffer, DT_CHECKPOINT_CHUNK));
    r.hasher = dt_hasher_new();
    if (!r.hasher) {
        rc = DT_FAIL(DT_E_MEMORY, "cannot verify %s: out of memory", path);
        goto done;
    }
    size_t total = 0;
    for (size_t i = 0; i < m.count; i++)
        total += m.files[i].size;
    dt_progress_begin(&r.progress, "verifying checkpoint", "bytes", (double)total);
    rc = verify_files(&r, path, &m);
    dt_progress_end(&r.progress);
done:
    dt_hasher_free(r.hasher);
    free(r.buffer);
    dt_manifest_free(&m);
    return rc;
}

int dt_checkpoint_verify(const char *path)
{
    return verify(path, false);
}

int dt_checkpoint_verify_model(const char *path)
{
    return verify(path, true);
}

/* An entry's trust: what scan saw, then its checksums. */
static int trust(const struct dt_checkpoint_entry *e)
{
    if (!e->complete)
        return DT_FAIL(DT_E_CHECKPOINT, "%s", e->problem);
    return dt_checkpoint_verify(e->path);
}

int dt_checkpoint_newest(const char *dir, char path[DT_PATH], int64_t *step)
{
    struct dt_checkpoint_list list;
    char first[512] = "";
    path[0] = '\0';
    *step = -1;
    DT_TRY(dt_checkpoint_scan(dir, &list));
    for (size_t i = list.count; i-- > 0 && *step < 0;) {
        if (trust(&list.entries[i]) == DT_OK) {
            *step = list.entries[i].step;
            memcpy(path, list.entries[i].path, DT_PATH);
            break;
        }
        if (!first[0])
            snprintf(first, sizeof first, "%s", dt_error_message());
        dt_warn("checkpoint of step %" PRId64 " cannot be used: %s", list.entries[i].step,
                dt_error_message());
    }
    size_t count = list.count;
    if (*step >= 0 && first[0])
        dt_warn("falling back to the checkpoint of step %" PRId64, *step);
    dt_checkpoint_list_free(&list);
    if (count && *step < 0)
        return DT_FAIL(
            DT_E_CHECKPOINT,
            "%s holds %zu checkpoint%s and none validates (newest: %s). This run will not "
            "start from step 0 by itself: put back a good copy, or use --start-over, which "
            "moves them aside and begins anew",
            dir, count, count == 1 ? "" : "s", first);
    return DT_OK;
}

/* ---- Tidying up ---- */

static int clean_entry(const char *dir, const char *name)
{
    char path[DT_PATH], final[DT_PATH];
    int64_t step;
    DT_TRY(dt_path_join(path, dir, name));
    if (dt_step_parse(name, DT_NAME_OLD, &step)) {
        DT_TRY(dt_step_path(final, dir, "", "", step));
        if (!dt_file_exists(final)) {
            dt_warn("putting back %s, which a save that never came to its end had moved aside",
                    final);
            return dt_rename(path, final);
        }
        return dt_checkpoint_discard(dir, path);
    }
    if (dt_step_parse(name, DT_NAME_TEMP, &step) || dt_step_parse(name, DT_NAME_DELETE, &step)) {
        dt_info("removing %s, left by a run that was killed", path);
        return dt_remove_tree(path);
    }
    return DT_OK;
}

int dt_checkpoint_clean(const char *dir)
{
    struct dt_names names;
    int rc = dt_dir_list(dir, &names);
    if (rc == DT_E_NOT_FOUND) {
        dt_error_clear();
        return DT_OK;
    }
    DT_TRY(rc);
    for (size_t i = 0; i < names.count && rc == DT_OK; i++)
        rc = clean_entry(dir, names.names[i]);
    dt_names_free(&names);
    DT_TRY(rc);
    return dt_sync_dir(dir);
}

int dt_checkpoint_retain(const char *dir, int64_t keep, int64_t keep_every, bool dry,
                         size_t *deleted)
{
    struct dt_checkpoint_list list;
    int rc = DT_OK;
    int64_t newer = 0; /* complete ones seen so far, newest first */
    size_t count = 0;
    bool verified = false;
    if (deleted)
        *deleted = 0;
    if (keep < 1)
        return DT_OK;
    DT_TRY(dt_checkpoint_scan(dir, &list));
    const struct dt_checkpoint_entry *newest = NULL;
    for (size_t i = list.count; i-- > 0 && rc == DT_OK;) {
        const struct dt_checkpoint_entry *e = &list.entries[i];
        if (!e->complete)
            continue;
        if (!newest)
            newest = e;
        if (newer++ < keep || (keep_every > 0 && e->step % keep_every == 0))
            continue;
        if (!verified)
            DT_CHECK(done, rc, dt_checkpoint_verify(newest->path));
        verified = true;
        if (!dry)
            rc = dt_checkpoint_discard(dir, e->path);
        count += rc == DT_OK;
    }
    if (rc == DT_OK && count && !dry)
        rc = dt_sync_dir(dir);
done:
    dt_checkpoint_list_free(&list);
    if (deleted)
        *deleted = count;
    return rc < 0 ? dt_error_context(rc, "older checkpoints are kept") : DT_OK;
}

int dt_checkpoint_set_aside(const char *dir, char moved[DT_PATH])
{
    char parent[DT_PATH];
    moved[0] = '\0';
    if (!dt_file_exists(dir))
        return DT_OK;
    for (int i = 1; i < 10000; i++) {
        if (snprintf(moved, DT_PATH, "%s.aside-%d", dir, i) >= DT_PATH)
            return DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s...", DT_PATH - 1, dir);
        if (dt_file_exists(moved))
            continue;
        DT_TRY(dt_rename(dir, moved));
        DT_TRY(dt_path_dirname(parent, dir));
        return dt_sync_dir(parent);
    }
    return DT_FAIL(DT_E_IO, "%s.aside-1 to -9999 exist already: remove some", dir);
}
