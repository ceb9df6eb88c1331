#include "base/file.h"

#include "base/error.h"
#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int dt_file_fail(const char *verb, const char *path)
{
    int e = errno;
    const char *advice = "";
    if (e == ENOSPC || e == EDQUOT)
        advice = e == ENOSPC ? " (the disk is full: free some space or write elsewhere)"
                             : " (your disk quota is used up: free some space or write elsewhere)";
    else if (e == EROFS)
        advice = " (the disk is mounted read-only: write elsewhere)";
    else if (e == EACCES || e == EPERM)
        advice = " (check the owner and the permissions)";
    else if (e == EMFILE || e == ENFILE)
        advice = " (raise the limit: ulimit -n)";
    int code = e == ENOENT ? DT_E_NOT_FOUND : DT_E_IO;
    return DT_FAIL(code, "cannot %s %s: %s%s", verb, path, strerror(e), advice);
}

/* ---- Paths ---- */

int dt_path_join(char out[DT_PATH], const char *dir, const char *name)
{
    size_t n = strlen(dir);
    bool alone = name[0] == '/' || n == 0;
    const char *slash = alone || dir[n - 1] == '/' ? "" : "/";
    int used = snprintf(out, DT_PATH, "%s%s%s", alone ? "" : dir, slash, name);
    if (used < 0 || used >= DT_PATH)
        return DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s.../%.60s", DT_PATH - 1, dir,
                       name);
    return DT_OK;
}

int dt_path_dirname(char out[DT_PATH], const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n >= DT_PATH)
        return DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s...", DT_PATH - 1, path);
    memcpy(out, n ? path : ".", n ? n : 1);
    out[n ? n : 1] = '\0';
    return DT_OK;
}

const char *dt_path_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool dt_path_ends_with(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && memcmp(path + n - m, suffix, m) == 0;
}

/* ---- Reading ---- */

bool dt_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool dt_file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int refuse_other(const char *path, const struct stat *st)
{
    if (S_ISDIR(st->st_mode))
        return DT_FAIL(DT_E_DATA, "%s is a directory, a file was expected", path);
    if (!S_ISREG(st->st_mode))
        return DT_FAIL(DT_E_DATA, "%s is not a plain file", path);
    return DT_OK;
}

int dt_file_size(const char *path, size_t *out)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return dt_file_fail("read", path);
    DT_TRY(refuse_other(path, &st));
    *out = (size_t)st.st_size;
    return DT_OK;
}

static int too_large(const char *path, size_t limit)
{
    return DT_FAIL(DT_E_DATA, "%s is larger than the %zu bytes that such a file may have", path,
                   limit);
}

/* Reads to the end, whatever size was promised: pipes have none and files may grow. */
static int read_rest(int fd, const char *path, size_t limit, char **out, size_t *size, size_t room)
{
    char *text = malloc(room);
    size_t used = 0;
    for (;;) {
        if (text && used + 1 == room) {
            room *= 2;
            char *more = realloc(text, room);
            if (!more)
                free(text);
            text = more;
        }
        if (!text)
            return DT_FAIL(DT_E_MEMORY, "cannot allocate %zu bytes to read %s", room, path);
        ssize_t n = read(fd, text + used, room - used - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || (n > 0 && used + (size_t)n > limit)) {
            free(text);
            return n < 0 ? dt_file_fail("read", path) : too_large(path, limit);
        }
        if (n == 0)
            break;
        used += (size_t)n;
    }
    text[used] = '\0';
    *out = text;
    *size = used;
    return DT_OK;
}

int dt_file_read(const char *path, size_t limit, char **out, size_t *size)
{
    int fd, rc;
    struct stat st;
    DT_TRY(dt_fd_open(path, &fd));
    if (fstat(fd, &st) != 0) {
        rc = dt_file_fail("read", path);
        goto done;
    }
    if (!S_ISFIFO(st.st_mode))
        DT_CHECK(done, rc, refuse_other(path, &st));
    if (st.st_size > 0 && (size_t)st.st_size > limit) {
        rc = too_large(path, limit);
        goto done;
    }
    DT_CHECK(done, rc, read_rest(fd, path, limit, out, size, (size_t)st.st_size + 4096));
done:
    close(fd);
    return rc;
}

int dt_file_map(const char *path, struct dt_map *out)
{
    *out = (struct dt_map){0};
    int fd, rc = DT_OK;
    struct stat st;
    DT_TRY(dt_fd_open(path, &fd));
    if (fstat(fd, &st) != 0) {
        rc = dt_file_fail("read", path);
        goto done;
    }
    DT_CHECK(done, rc, refuse_other(path, &st));
    out->data = (const unsigned char *)"";
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = dt_file_fail("map", path);
        else
            *out = (struct dt_map){.data = p, .size = (size_t)st.st_size};
    }
done:
    close(fd);
    return rc;
}

void dt_file_unmap(struct dt_map *m)
{
    if (m->size)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct dt_map){0};
}

void dt_map_forget(const struct dt_map *m)
{
    if (m->size)
        madvise((void *)(uintptr_t)m->data, m->size,
                MADV_DONTNEED); /* only advice: failing does no harm */
}

int dt_map_hash(const struct dt_map *m, uint64_t *out)
{
    const size_t chunk = (size_t)4 << 20;
    struct dt_hasher *h = dt_hasher_new();
    if (!h)
        return DT_FAIL(DT_E_MEMORY, "cannot make a checksum: out of memory");
    for (size_t at = 0; at < m->size; at += chunk) {
        struct dt_map part = {m->data + at, m->size - at < chunk ? m->size - at : chunk};
        dt_hasher_add(h, part.data, part.size);
        dt_map_forget(&part);
    }
    *out = dt_hasher_value(h);
    dt_hasher_free(h);
    return DT_OK;
}

/* ---- Descriptors ---- */

static int open_retry(const char *path, int flags, const char *verb, int *out)
{
    do
        *out = open(path, flags | O_CLOEXEC, 0666);
    while (*out < 0 && errno == EINTR);
    return *out < 0 ? dt_file_fail(verb, path) : DT_OK;
}

int dt_fd_open(const char *path, int *out)
{
    return open_retry(path, O_RDONLY, "open", out);
}

int dt_fd_open_write(const char *path, int *out)
{
    return open_retry(path, O_WRONLY, "open", out);
}

int dt_fd_create(const char *path, int *out)
{
    return open_retry(path, O_RDWR | O_CREAT | O_TRUNC, "create", out);
}

int dt_fd_close(int fd, const char *path)
{
    /* After EINTR Linux has closed the descriptor all the same; again would hit another's. */
    if (close(fd) != 0 && errno != EINTR)
        return dt_file_fail("close", path);
    return DT_OK;
}

int dt_fd_sync(int fd, const char *path)
{
    int rc;
    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc != 0 ? dt_file_fail("flush", path) : DT_OK;
}

int dt_fd_read_at(int fd, const char *path, void *to, size_t bytes, size_t offset)
{
    unsigned char *p = to;
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, p + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dt_file_fail("read", path);
        if (n == 0)
            return DT_FAIL(DT_E_IO, "%s ends at byte %zu, %zu bytes were expected at %zu", path,
                           offset + done, bytes, offset);
        done += (size_t)n;
    }
    return DT_OK;
}

int dt_fd_write_at(int fd, const char *path, const void *from, size_t bytes, size_t offset)
{
    const unsigned char *p = from;
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pwrite(fd, p + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0) /* cannot happen for plain files; would loop for ever if it did */
            errno = EIO;
        if (n <= 0)
            return dt_file_fail("write", path);
        done += (size_t)n;
    }
    return DT_OK;
}

int dt_fd_append(int fd, const char *path, const void *from, size_t bytes)
{
    const unsigned char *p = from;
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = write(fd, p + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return dt_file_fail("write", path);
        done += (size_t)n;
    }
    return DT_OK;
}

int dt_fd_reserve(int fd, const char *path, size_t bytes)
{
    int rc;
    if (bytes == 0)
        return DT_OK;
    do
        rc = fallocate(fd, 0, 0, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        rc = ftruncate(fd, (off_t)bytes);
    return rc != 0 ? dt_file_fail("reserve space for", path) : DT_OK;
}

/* ---- Directories and names ---- */

int dt_mkdir(const char *path)
{
    return mkdir(path, 0777) != 0 ? dt_file_fail("create directory", path) : DT_OK;
}

int dt_mkdirs(const char *path)
{
    char part[DT_PATH];
    size_t n = strlen(path);
    if (n == 0 || n >= DT_PATH)
        return DT_FAIL(DT_E_USAGE, "path has %zu bytes, 1 to %d are possible", n, DT_PATH - 1);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) == 0 || errno == EEXIST)
            continue;
        int e = errno; /* EROFS and EACCES may come before EEXIST is looked at */
        if (dt_file_is_dir(part))
            continue;
        errno = e;
        return dt_file_fail("create directory", part);
    }
    if (!dt_file_is_dir(path))
        return DT_FAIL(DT_E_IO, "%s is a file, a directory was expected", path);
    return DT_OK;
}

int dt_rename(const char *from, const char *to)
{
    return rename(from, to) != 0 ? dt_file_fail("rename to", to) : DT_OK;
}

int dt_rename_exchange(const char *a, const char *b)
{
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0)
        return DT_OK;
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
        return DT_FAIL(DT_E_UNSUPPORTED, "%s: this file system cannot exchange two names", b);
    return dt_file_fail("rename to", b);
}

int dt_unlink(const char *path)
{
    return unlink(path) != 0 ? dt_file_fail("remove", path) : DT_OK;
}

int dt_sync_dir(const char *path)
{
    int fd;
    DT_TRY(open_retry(path, O_RDONLY | O_DIRECTORY, "open directory", &fd));
    int rc = dt_fd_sync(fd, path);
    close(fd);
    return rc;
}

static int remove_below(int parent, const char *name, const char *shown);

static int remove_entries(int fd, const char *shown)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return dt_file_fail("list", shown);
    }
    int rc = DT_OK;
    struct dirent *entry;
    while (rc == DT_OK && (errno = 0, entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        rc = remove_below(dirfd(dir), entry->d_name, shown);
    }
    if (rc == DT_OK && errno)
        rc = dt_file_fail("list", shown);
    closedir(dir);
    return rc;
}

/* Works from descriptor to descriptor and opens with O_NOFOLLOW: a link that somebody slips in
 * between looking and removing is removed itself. ENOENT means that somebody was faster. */
static int remove_below(int parent, const char *name, const char *shown)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return DT_OK;
    if (errno != EISDIR && errno != EPERM) /* POSIX says EPERM for a directory, Linux EISDIR */
        return dt_file_fail("remove a file in", shown);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return dt_file_fail("remove a file in", shown);
    DT_TRY(remove_entries(fd, shown));
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return dt_file_fail("remove a directory in", shown);
    return DT_OK;
}

int dt_remove_tree(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? DT_OK : dt_file_fail("remove directory", path);
    DT_TRY(remove_entries(fd, path));
    if (rmdir(path) != 0 && errno != ENOENT)
        return dt_file_fail("remove directory", path);
    return DT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(struct dt_names *n, size_t *room, const char *name)
{
    if (n->count == *room) {
        *room = *room ? 2 * *room : 16;
        char **more = realloc(n->names, *room * sizeof *more);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold %zu file names", *room);
        n->names = more;
    }
    n->names[n->count] = strdup(name);
    if (!n->names[n->count])
        return DT_FAIL(DT_E_MEMORY, "cannot hold %zu file names", n->count);
    n->count++;
    return DT_OK;
}

int dt_dir_list(const char *path, struct dt_names *out)
{
    *out = (struct dt_names){0};
    DIR *dir = opendir(path);
    if (!dir)
        return dt_file_fail("list directory", path);
    size_t room = 0;
    int rc = DT_OK;
    struct dirent *entry;
    while (rc == DT_OK && (errno = 0, entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = add_name(out, &room, entry->d_name);
    if (rc == DT_OK && errno)
        rc = dt_file_fail("list directory", path);
    closedir(dir);
    if (rc < 0)
        dt_names_free(out);
    else if (out->count)
        qsort(out->names, out->count, sizeof *out->names, compare_names);
    return rc;
}

void dt_names_free(struct dt_names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->names[i]);
    free(n->names);
    *n = (struct dt_names){0};
}

int dt_file_write(const char *path, const void *data, size_t size)
{
    char temp[DT_PATH], dir[DT_PATH];
    int fd, rc;
    int used = snprintf(temp, sizeof temp, "%s.tmp-%ld", path, (long)getpid());
    if (used < 0 || used >= DT_PATH)
        return DT_FAIL(DT_E_USAGE, "path is longer than %d bytes: %.60s...", DT_PATH - 1, path);
    DT_TRY(dt_path_dirname(dir, path));
    DT_TRY(dt_fd_create(temp, &fd));
    rc = dt_fd_append(fd, temp, data, size);
    if (rc == DT_OK)
        rc = dt_fd_sync(fd, temp);
    if (close(fd) != 0 && rc == DT_OK && errno != EINTR)
        rc = dt_file_fail("close", temp);
    if (rc == DT_OK)
        rc = dt_rename(temp, path);
    if (rc < 0) {
        unlink(temp);
        return rc;
    }
    return dt_sync_dir(dir);
}
