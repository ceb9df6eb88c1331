/* Checkpoints on disk: the protocol of names, fsyncs and renames that makes a save happen whole or
 * not at all, whatever is killed, full or read-only in between. Independent of how tensors are held
 * in memory: writers hand over byte ranges of planned files.
 *
 *     checkpoints/                     `dir` in all functions below
 *       step-00000100/                 a checkpoint iff its manifest.json is whole and fits the
 * files .tmp-ID-step-00000200/         a save in progress, or what a killed one left
 *       .old-ID-step-00000100/         the one that a second save of a step replaces, for a moment
 *       .del-ID-step-00000050/         being deleted
 *
 * manifest.json is written last and lists every file's size and, for ranges that tile the file
 * exactly, (offset, length, XXH3); it ends with a checksum of itself. Writers hash each range from
 * memory as they write it, so nothing is read again and any number of writers may share a file.
 *
 * Order at a start: dt_run_lock, dt_checkpoint_clean, dt_checkpoint_newest. At a save:
 * dt_checkpoint_begin, add/put/copy/write, dt_checkpoint_commit, dt_checkpoint_retain. */
#ifndef DT_STATE_CHECKPOINT_H
#define DT_STATE_CHECKPOINT_H

#include "base/file.h"
#include "base/safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_CHECKPOINT_CHUNK ((size_t)4 << 20) /* the most that one checksum covers */

/* ---- The run's directory has one user at a time ---- */
struct dt_run_lock {
    int fd;
    char path[DT_PATH];
};
/* Creates `output` when missing. DT_E_BUSY names the holder's host and process. The file stays; a
 * dead process holds nothing, since the kernel keeps the lock. */
int dt_run_lock(const char *output, struct dt_run_lock *out);
void dt_run_unlock(struct dt_run_lock *lock);

/* ---- Writing ---- */
struct dt_checkpoint_writer;

/* Makes `dir` and a temporary directory in it. */
int dt_checkpoint_begin(const char *dir, int64_t step, struct dt_checkpoint_writer **out);
/* A data file of `size` bytes; `name` is relative, with '/' between folders. *file is its handle.
 * Space is reserved at once, so a full disk shows before anything is written. Like put and copy:
 * from one thread, and not while others write. */
int dt_checkpoint_add(struct dt_checkpoint_writer *w, const char *name, size_t size, int *file);
/* The files of a plan in `folder` ("" or "optimizer"), their headers and the index written. Handles
 * are *first, *first + 1, ... in the plan's order. */
int dt_checkpoint_add_tensors(struct dt_checkpoint_writer *w, const char *folder,
                              const struct dt_tensor_plan *plan, int *first);
/* Bytes of a file that nobody else writes. From any thread, in any order, any cut. A failure is
 * remembered: commit will refuse. */
int dt_checkpoint_write(struct dt_checkpoint_writer *w, int file, size_t offset, const void *data,
                        size_t bytes);
/* Small whole files. */
int dt_checkpoint_put(struct dt_checkpoint_writer *w, const char *name, const void *data,
                      size_t bytes);
int dt_checkpoint_put_json(struct dt_checkpoint_writer *w, const char *name, const json_t *value);
int dt_checkpoint_copy(struct dt_checkpoint_writer *w, const char *path, const char *name);

/* Where the files of this save stand until it is committed. */
const char *dt_checkpoint_temp(const struct dt_checkpoint_writer *w);
/* A range that somebody else has written and synced (dt_checkpoint_part). */
int dt_checkpoint_claim(struct dt_checkpoint_writer *w, int file, size_t offset, size_t length,
                        uint64_t hash);

/* ---- One of several writers: it writes ranges of data files that another process added, and hands
 * over what it wrote. No two writers may touch one page of a file: clients of network disks write
 * back whole pages. ---- */
struct dt_checkpoint_range {
    int32_t file; /* in the order of `names` */
    size_t offset, length;
    uint64_t hash; /* XXH3 of the range */
};
struct dt_checkpoint_part;

/* names: [count], relative to temp. */
int dt_checkpoint_part_open(const char *temp, const char *const *names, int count,
                            struct dt_checkpoint_part **out);
int dt_checkpoint_part_write(struct dt_checkpoint_part *p, int file, size_t offset,
                             const void *data, size_t bytes);
/* fsync of all: only then may the ranges be claimed. */
int dt_checkpoint_part_sync(struct dt_checkpoint_part *p);
const struct dt_checkpoint_range *dt_checkpoint_part_ranges(const struct dt_checkpoint_part *p,
                                                            size_t *count);
void dt_checkpoint_part_close(struct dt_checkpoint_part *p);

/* fsync of all, manifest, fsync, rename, fsync. Frees the writer in any case. After a failure older
 * checkpoints are as they were and nothing of this save is left (if only the last fsync failed, it
 * stands whole). `path` (may be NULL) gets the final directory. */
int dt_checkpoint_commit(struct dt_checkpoint_writer *w, char path[DT_PATH]);
/* Removes the temporary directory and frees the writer; keeps the error that led here. */
void dt_checkpoint_abort(struct dt_checkpoint_writer *w);

/* ---- What there is ---- */
struct dt_checkpoint_entry {
    int64_t step;
    char path[DT_PATH];
    bool complete;     /* manifest whole, every file there with its size */
    char problem[512]; /* why not; "" when complete */
    char created[32];  /* "2026-01-02T03:04:05Z"; "" when unknown */
    size_t files, bytes;
};
struct dt_checkpoint_list {
    struct dt_checkpoint_entry *entries; /* ascending by step */
    size_t count;
    size_t leftovers; /* temporary directories of saves and deletions */
};
/* A missing `dir` is an empty list. */
int dt_checkpoint_scan(const char *dir, struct dt_checkpoint_list *out);
void dt_checkpoint_list_free(struct dt_checkpoint_list *list);

/* `path` as a user gives it: a run's directory, its checkpoints/, or one checkpoint. */
int dt_checkpoint_dir(char out[DT_PATH], const char *path);

/* Every checksum of one checkpoint. DT_E_CHECKPOINT with the first bad file and range. */
int dt_checkpoint_verify(const char *path);
/* The same without the optimizer's files: enough for who takes only the model. */
int dt_checkpoint_verify_model(const char *path);

/* The newest checkpoint whose checksums all hold; falls back to older ones and warns of each that
 * does not. *step -1 and path "" when there are none at all. DT_E_CHECKPOINT when there are some
 * and none validates: a run must not start over then (`ductile train --start-over` calls
 * dt_checkpoint_set_aside). */
int dt_checkpoint_newest(const char *dir, char path[DT_PATH], int64_t *step);

/* Finishes what a killed run left: puts back a checkpoint that was moved aside for one that never
 * came, removes temporary directories. Only while the run's lock is held. */
int dt_checkpoint_clean(const char *dir);

/* Deletes complete checkpoints that are neither among the newest `keep` complete ones (0: keep all)
 * nor at a step divisible by `keep_every` (0: none), after verifying the newest. Never touches
 * broken ones. `deleted` (may be NULL) counts. With `dry` nothing is deleted, only counted. */
int dt_checkpoint_retain(const char *dir, int64_t keep, int64_t keep_every, bool dry,
                         size_t *deleted);

/* Renames `dir` to a new name beside it, returned in `moved` ("" when there was nothing). Deletes
 * nothing. */
int dt_checkpoint_set_aside(const char *dir, char moved[DT_PATH]);

/* ---- Reading ---- */
struct dt_checkpoint {
    char path[DT_PATH];
    int64_t step;
    json_t *trainer;                          /* trainer.json */
    struct dt_tensor_set model;               /* all tensors; trained ones are fp32 masters */
    struct dt_tensor_set exp_avg, exp_avg_sq; /* trained ones, same names and shapes, F32 */
};
/* Checks completeness and that moments fit the model; checksums are dt_checkpoint_verify's. */
int dt_checkpoint_open(const char *path, struct dt_checkpoint *out);
void dt_checkpoint_close(struct dt_checkpoint *c);

#endif
