/* Files: one wording of errors, one place for the loops around short reads and writes.
 *
 * Whatever stores something durable (checkpoints above all) calls the functions of this header
 * and nothing else, so that a test that counts, kills or fails file operations meets all of them.
 *
 * Failures are DT_E_IO (DT_E_NOT_FOUND when a path does not exist) and say the path, the system's
 * words, and for a full or read-only disk what to do. Paths are plain strings of at most
 * DT_PATH - 1 bytes. Nothing here is atomic unless it says so. */
#ifndef DT_BASE_FILE_H
#define DT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_PATH 4096

/* DT_E_IO or DT_E_NOT_FOUND with "cannot VERB PATH: words of errno (advice)". */
int dt_file_fail(const char *verb, const char *path);

/* ---- Paths: "a/b" + "c" -> "a/b/c"; an absolute `name` stands alone. ---- */
int dt_path_join(char out[DT_PATH], const char *dir, const char *name);
int dt_path_dirname(char out[DT_PATH], const char *path); /* "." when there is no slash */
const char *dt_path_basename(const char *path);           /* after the last slash */
bool dt_path_ends_with(const char *path, const char *suffix);

/* ---- Reading ---- */
bool dt_file_exists(const char *path); /* anything of that name; links are followed */
bool dt_file_is_dir(const char *path);
int dt_file_size(const char *path, size_t *out); /* refuses directories and devices */

/* The whole file, with a NUL after it that `size` does not count; free() it. A file of more than
 * `limit` bytes is refused, as is anything that is not a plain file (a pipe may be read). */
int dt_file_read(const char *path, size_t limit, char **out, size_t *size);

/* Read-only mapping. An empty file maps to data "" and size 0. The file must not shrink while it
 * is mapped (the process would get SIGBUS): ours are only ever replaced whole by rename. */
struct dt_map {
    const unsigned char *data;
    size_t size;
};
int dt_file_map(const char *path, struct dt_map *out);
void dt_file_unmap(struct dt_map *m);
/* Gives the pages that were read back to the system; they come again from its cache when they are
 * read again. So a file of any size costs memory only while it is looked at. */
void dt_map_forget(const struct dt_map *m);
/* dt_hash of the whole, forgetting as it goes. */
int dt_map_hash(const struct dt_map *m, uint64_t *out);

/* ---- Descriptors. `path` is for messages only. ---- */
int dt_fd_open(const char *path, int *out);   /* for reading */
int dt_fd_open_write(const char *path, int *out); /* an existing file, for writing */
int dt_fd_create(const char *path, int *out); /* for reading and writing, new or emptied */
int dt_fd_close(int fd, const char *path);
int dt_fd_sync(int fd, const char *path);
int dt_fd_read_at(int fd, const char *path, void *to, size_t bytes, size_t offset);
int dt_fd_write_at(int fd, const char *path, const void *from, size_t bytes, size_t offset);
int dt_fd_append(int fd, const char *path, const void *from, size_t bytes);
/* Room on the disk for `bytes` (the file has that size then), so that a full disk shows before the
 * work is done. Where the file system cannot reserve, only the size is set. */
int dt_fd_reserve(int fd, const char *path, size_t bytes);

/* ---- Directories and names ---- */
int dt_mkdir(const char *path);  /* one new directory; an existing one is an error */
int dt_mkdirs(const char *path); /* with parents; existing ones are fine */
int dt_rename(const char *from, const char *to);
/* Both names exist and change places in one atomic step. DT_E_UNSUPPORTED where the file system
 * cannot. */
int dt_rename_exchange(const char *a, const char *b);
int dt_unlink(const char *path);
int dt_sync_dir(const char *path); /* makes creations, renames and removals in it durable */
/* The tree below and including `path`, which must be a directory itself and no link to one. Links
 * inside are removed, never followed. A missing `path` is fine. */
int dt_remove_tree(const char *path);

/* Names in a directory, sorted bytewise, without "." and "..". */
struct dt_names {
    char **names;
    size_t count;
};
int dt_dir_list(const char *path, struct dt_names *out);
void dt_names_free(struct dt_names *n);

/* A small file, whole or not at all: temporary name beside it, fsync, rename, fsync of the
 * directory. */
int dt_file_write(const char *path, const void *data, size_t size);

#endif
