/* Tensors in files: the safetensors format, single files and sharded model directories.
 *
 * A file is 8 bytes of header length (little endian), a JSON header {"name": {"dtype", "shape",
 * "data_offsets": [begin, end]}, "__metadata__": {...}}, and the data. Reading is strict: lengths,
 * types, shapes and offsets are checked against the file before anything is handed out, and the
 * tensors must cover the data exactly, without holes and overlaps. What was read stays mapped.
 *
 * Writing is planned first: from the list of tensors follows every byte's place, so that any
 * number of writers may then fill ranges in any order (docs/formats.md). The header is padded
 * with spaces so that the data starts at a multiple of 8. */
#ifndef DT_BASE_SAFETENSORS_H
#define DT_BASE_SAFETENSORS_H

#include "base/dtype.h"
#include "base/file.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define DT_TENSOR_RANK 8
#define DT_SAFETENSORS_HEADER_MAX ((size_t)100000000)

struct dt_stored {
    const char *name;
    enum dt_dtype dtype;
    int rank;                      /* 0: a scalar */
    int64_t shape[DT_TENSOR_RANK]; /* outermost first, row-major */
    int64_t elements;
    const unsigned char *data; /* `bytes` bytes, mapped; foreign files do not align it: memcpy */
    size_t bytes;
    size_t file;   /* index into dt_tensor_set.files */
    size_t offset; /* of data, from the start of the file */
};

struct dt_tensor_file {
    char path[DT_PATH];
    struct dt_map map;
    bool borrowed;     /* the bytes are the caller's, not a mapping of ours */
    size_t data_start; /* 8 + length of the header */
    json_t *header;    /* names and metadata live here */
};

struct dt_tensor_set {
    char path[DT_PATH];         /* as given to open */
    struct dt_stored *tensors;  /* files in order of their names, tensors in order of their bytes */
    struct dt_stored **by_name; /* sorted */
    size_t count;
    struct dt_tensor_file *files;
    size_t file_count;
    size_t bytes; /* of all tensors */
};

/* `path`: a .safetensors file; an index (.index.json); or a directory with model.safetensors,
 * model.safetensors.index.json with its shards, or the same with adapter_model. Index and shards
 * must name the same tensors. DT_E_MODEL, DT_E_NOT_FOUND, DT_E_UNSUPPORTED (a dtype). */
int dt_tensors_open(const char *path, struct dt_tensor_set *out);
void dt_tensors_close(struct dt_tensor_set *set);

/* The same from memory; `name` is for messages. The bytes must outlive the set. */
int dt_tensors_parse(const void *data, size_t size, const char *name, struct dt_tensor_set *out);

const struct dt_stored *dt_tensors_find(const struct dt_tensor_set *set, const char *name);
/* Like find, but absence is DT_E_MODEL with the nearest name that there is. */
int dt_tensors_need(const struct dt_tensor_set *set, const char *name,
                    const struct dt_stored **out);
/* A value of __metadata__ of one file; NULL when absent. */
const char *dt_tensors_metadata(const struct dt_tensor_set *set, size_t file, const char *key);

/* "[4096, 11008]" for messages. */
const char *dt_shape_shown(int rank, const int64_t *shape, char *buffer, size_t size);

/* ---- Writing ---- */
struct dt_tensor_spec {
    const char *name;
    enum dt_dtype dtype;
    int rank;
    int64_t shape[DT_TENSOR_RANK];
};

struct dt_planned_file {
    char name[128];        /* "model.safetensors" or "model-00001-of-00003.safetensors" */
    unsigned char *header; /* `header_size` bytes with the length in front: the file's first */
    size_t header_size;
    size_t size;         /* of the file */
    size_t first, count; /* its tensors among the specs */
};

struct dt_tensor_plan {
    struct dt_planned_file *files;
    size_t file_count;
    size_t count;                     /* of tensors */
    size_t *file_of, *offset, *bytes; /* of each tensor: file, place from its start, length */
    char *index; /* text of STEM.safetensors.index.json; NULL with a single file */
};

/* `stem` is "model" in model.safetensors. Files take tensors in the given order and are cut before
 * the tensor that would carry the data beyond `shard_limit` bytes (0: never cut). */
int dt_tensors_plan(const struct dt_tensor_spec *specs, size_t count, const char *stem,
                    size_t shard_limit, struct dt_tensor_plan *out);
void dt_tensor_plan_free(struct dt_tensor_plan *plan);

/* One file in one go, whole or not at all: data[i] has the bytes of specs[i]. */
int dt_tensors_save(const char *path, const struct dt_tensor_spec *specs, const void *const *data,
                    size_t count);

#endif
