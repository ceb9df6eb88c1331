/* A save, from the temporary directory to the rename. See state/checkpoint.h for the names. */
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
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SMALL_FILE ((size_t)1 << 30)
#define FOLDERS 8

struct dt_checkpoint_writer {
    char dir[DT_PATH], temp[DT_PATH], final[DT_PATH];
    char folders[FOLDERS][DT_PATH]; /* made inside temp, to be synced */
    size_t folder_count;
    struct dt_manifest manifest;
    int *fds;              /* of manifest.files; -1 once closed */
    pthread_mutex_t mutex; /* guards ranges and `failed` while writers run */
    bool failed;
};

int dt_checkpoint_begin(const char *dir, int64_t step, struct dt_checkpoint_writer **out)
{
    struct dt_checkpoint_writer *w;
    char parent[DT_PATH];
    int rc;
    *out = NULL;
    DT_TRY(DT_NEW(&w, 1));
    pthread_mutex_init(&w->mutex, NULL);
    w->manifest.step = step;
    dt_save_id(w->manifest.save_id);
    time_t now = time(NULL);
    struct tm tm;
    strftime(w->manifest.created, sizeof w->manifest.created, "%Y-%m-%dT%H:%M:%SZ",
             gmtime_r(&now, &tm));
    if (snprintf(w->dir, sizeof w->dir, "%s", dir) >= DT_PATH) {
        rc = DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s...", DT_PATH - 1, dir);
        goto fail;
    }
    DT_CHECK(fail, rc, dt_step_path(w->final, dir, "", "", step));
    DT_CHECK(fail, rc, dt_step_path(w->temp, dir, DT_NAME_TEMP, w->manifest.save_id, step));
    if (!dt_file_is_dir(dir)) {
        DT_CHECK(fail, rc, dt_mkdirs(dir));
        DT_CHECK(fail, rc, dt_path_dirname(parent, dir));
        DT_CHECK(fail, rc, dt_sync_dir(parent));
    }
    DT_CHECK(fail, rc, dt_mkdir(w->temp));
    *out = w;
    return DT_OK;
fail:
    pthread_mutex_destroy(&w->mutex);
    free(w);
    return rc;
}

const char *dt_checkpoint_temp(const struct dt_checkpoint_writer *w)
{
    return w->temp;
}

int dt_checkpoint_claim(struct dt_checkpoint_writer *w, int file, size_t offset, size_t length,
                        uint64_t hash)
{
    if (file < 0 || (size_t)file >= w->manifest.count)
        return DT_FAIL(DT_E_INTERNAL, "a writer claims file %d of %zu", file, w->manifest.count);
    pthread_mutex_lock(&w->mutex);
    int rc = dt_manifest_add_range(&w->manifest.files[file], offset, length, hash);
    w->failed |= rc < 0;
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

/* Makes the folders that lead to `name`. */
static int make_folders(struct dt_checkpoint_writer *w, const char *name)
{
    char part[DT_PATH], full[DT_PATH];
    for (const char *p = strchr(name, '/'); p; p = strchr(p + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(p - name), name);
        DT_TRY(dt_path_join(full, w->temp, part));
        if (dt_file_is_dir(full))
            continue;
        if (w->folder_count == FOLDERS)
            return DT_FAIL(DT_E_INTERNAL, "a checkpoint has more than %d folders", FOLDERS);
        DT_TRY(dt_mkdir(full));
        memcpy(w->folders[w->folder_count++], full, sizeof full);
    }
    return DT_OK;
}

int dt_checkpoint_add(struct dt_checkpoint_writer *w, const char *name, size_t size, int *file)
{
    char path[DT_PATH];
    DT_TRY(dt_path_join(path, w->temp, name));
    DT_TRY(make_folders(w, name));
    int *more = realloc(w->fds, (w->manifest.count + 1) * sizeof *more);
    if (!more)
        return DT_FAIL(DT_E_MEMORY, "cannot hold %zu files of a checkpoint", w->manifest.count + 1);
    w->fds = more;
    DT_TRY(dt_manifest_add_file(&w->manifest, name, size));
    *file = (int)w->manifest.count - 1;
    w->fds[*file] = -1;
    DT_TRY(dt_fd_create(path, &w->fds[*file]));
    return dt_fd_reserve(w->fds[*file], path, size);
}

int dt_checkpoint_write(struct dt_checkpoint_writer *w, int file, size_t offset, const void *data,
                        size_t bytes)
{
    const unsigned char *p = data;
    struct dt_manifest_file *f = &w->manifest.files[file];
    char path[DT_PATH];
    int rc = dt_path_join(path, w->temp, f->name);
    for (size_t done = 0, n; done < bytes && rc == DT_OK; done += n) {
        n = bytes - done < DT_CHECKPOINT_CHUNK ? bytes - done : DT_CHECKPOINT_CHUNK;
        uint64_t hash = dt_hash(p + done, n);
        rc = dt_fd_write_at(w->fds[file], path, p + done, n, offset + done);
        pthread_mutex_lock(&w->mutex);
        if (rc == DT_OK)
            rc = dt_manifest_add_range(f, offset + done, n, hash);
        w->failed |= rc < 0;
        pthread_mutex_unlock(&w->mutex);
    }
    return rc < 0 ? dt_error_context(rc, "checkpoint of step %" PRId64, w->manifest.step) : DT_OK;
}

int dt_checkpoint_put(struct dt_checkpoint_writer *w, const char *name, const void *data,
                      size_t bytes)
{
    int file;
    DT_TRY(dt_checkpoint_add(w, name, bytes, &file));
    return dt_checkpoint_write(w, file, 0, data, bytes);
}

int dt_checkpoint_put_json(struct dt_checkpoint_writer *w, const char *name, const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text)
        return DT_FAIL(DT_E_MEMORY, "cannot write %s: out of memory", name);
    size_t n = strlen(text);
    text[n] = '\n';
    int rc = dt_checkpoint_put(w, name, text, n + 1);
    free(text);
    return rc;
}

int dt_checkpoint_copy(struct dt_checkpoint_writer *w, const char *path, const char *name)
{
    char *text;
    size_t size;
    DT_TRY(dt_file_read(path, SMALL_FILE, &text, &size));
    int rc = dt_checkpoint_put(w, name, text, size);
    free(text);
    return rc;
}

int dt_checkpoint_add_tensors(struct dt_checkpoint_writer *w, const char *folder,
                              const struct dt_tensor_plan *plan, int *first)
{
    char name[DT_PATH];
    int file;
    *first = (int)w->manifest.count;
    for (size_t i = 0; i < plan->file_count; i++) {
        const struct dt_planned_file *f = &plan->files[i];
        DT_TRY(dt_path_join(name, folder, f->name));
        DT_TRY(dt_checkpoint_add(w, name, f->size, &file));
        DT_TRY(dt_checkpoint_write(w, file, 0, f->header, f->header_size));
    }
    if (!plan->index)
        return DT_OK;
    /* "model-00001-of-00003.safetensors" -> "model.safetensors.index.json" */
    size_t stem = strlen(plan->files[0].name) - strlen("-00001-of-00003.safetensors");
    char index[256];
    snprintf(index, sizeof index, "%.*s.safetensors.index.json", (int)stem, plan->files[0].name);
    DT_TRY(dt_path_join(name, folder, index));
    return dt_checkpoint_put(w, name, plan->index, strlen(plan->index));
}

/* ---- Commit ---- */

static void close_files(struct dt_checkpoint_writer *w)
{
    for (size_t i = 0; i < w->manifest.count; i++)
        if (w->fds[i] >= 0)
            close(w->fds[i]);
}

static void free_writer(struct dt_checkpoint_writer *w)
{
    dt_manifest_free(&w->manifest);
    pthread_mutex_destroy(&w->mutex);
    free(w->fds);
    free(w);
}

static int sync_files(struct dt_checkpoint_writer *w)
{
    for (size_t i = 0; i < w->manifest.count; i++) {
        DT_TRY(dt_manifest_check_tiles(&w->manifest.files[i]));
        DT_TRY(dt_fd_sync(w->fds[i], w->manifest.files[i].name));
        int fd = w->fds[i];
        w->fds[i] = -1;
        DT_TRY(dt_fd_close(fd, w->manifest.files[i].name));
    }
    for (size_t i = w->folder_count; i-- > 0;)
        DT_TRY(dt_sync_dir(w->folders[i]));
    return DT_OK;
}

static int write_manifest(struct dt_checkpoint_writer *w)
{
    char path[DT_PATH];
    char *text;
    size_t size;
    int fd = -1, rc;
    DT_TRY(dt_manifest_text(&w->manifest, &text, &size));
    DT_CHECK(done, rc, dt_path_join(path, w->temp, "manifest.json"));
    DT_CHECK(done, rc, dt_fd_create(path, &fd));
    DT_CHECK(done, rc, dt_fd_append(fd, path, text, size));
    DT_CHECK(done, rc, dt_fd_sync(fd, path));
    rc = dt_fd_close(fd, path);
    fd = -1;
    DT_CHECK(done, rc, rc);
    DT_CHECK(done, rc, dt_sync_dir(w->temp));
done:
    free(text);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Put the complete save in its place. An older save of the same step is swapped out in one atomic
 * exchange; where the file system cannot do that, it steps aside under a name from which
 * dt_checkpoint_clean brings it back if we die before the new one stands. Afterwards `gone` names
 * what is to be deleted ("" if nothing). */
static int take_place(struct dt_checkpoint_writer *w, char gone[DT_PATH])
{
    gone[0] = '\0';
    if (!dt_file_exists(w->final))
        return dt_rename(w->temp, w->final);
    int rc = dt_rename_exchange(w->temp, w->final);
    if (rc == DT_OK) {
        memcpy(gone, w->temp, DT_PATH);
        return DT_OK;
    }
    if (rc != DT_E_UNSUPPORTED)
        return rc;
    char old[DT_PATH];
    DT_TRY(dt_step_path(old, w->dir, DT_NAME_OLD, w->manifest.save_id, w->manifest.step));
    DT_TRY(dt_rename(w->final, old));
    rc = dt_rename(w->temp, w->final);
    if (rc < 0) {
        struct dt_error_state why;
        dt_error_save(rc, &why);
        if (dt_rename(old, w->final) < 0) /* clean will do it at the next start */
            dt_warn("%s", dt_error_message());
        return dt_error_restore(&why);
    }
    memcpy(gone, old, DT_PATH);
    return DT_OK;
}

static int commit(struct dt_checkpoint_writer *w)
{
    char gone[DT_PATH];
    if (w->failed)
        return DT_FAIL(DT_E_SAVE,
                       "the checkpoint of step %" PRId64 " is not written: a write failed "
                       "before",
                       w->manifest.step);
    DT_TRY(sync_files(w));
    DT_TRY(write_manifest(w));
    DT_TRY(take_place(w, gone));
    w->temp[0] = '\0'; /* whatever has this name now is no longer ours to throw away */
    DT_TRY(dt_sync_dir(w->dir));
    if (gone[0] && dt_checkpoint_discard(w->dir, gone) < 0)
        dt_warn("the replaced checkpoint is not removed: %s", dt_error_message());
    return DT_OK;
}

int dt_checkpoint_commit(struct dt_checkpoint_writer *w, char path[DT_PATH])
{
    int rc = commit(w);
    if (rc < 0) {
        dt_error_pass(rc, __FILE__, __LINE__);
        dt_checkpoint_abort(w);
        return rc;
    }
    if (path)
        memcpy(path, w->final, DT_PATH);
    free_writer(w);
    return DT_OK;
}

void dt_checkpoint_abort(struct dt_checkpoint_writer *w)
{
    struct dt_error_state why;
    dt_error_save(0, &why);
    close_files(w);
    if (w->temp[0] && dt_remove_tree(w->temp) < 0) /* the next start removes it */
        dt_debug("%s", dt_error_message());
    dt_error_restore(&why);
    free_writer(w);
}
