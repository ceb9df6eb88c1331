/* The safetensors header, and directories of index and shards.
 *
 * The first byte chooses how the rest becomes a file, so that mutations spend their time where they
 * matter: 'H' the rest is a header, up to a NUL, then data (the length in front is made to fit);
 * 'I' an index, then shards, separated by NULs, each a header to which 16 bytes of data are added;
 * anything else: raw bytes.
 *
 * covers: src/base/safetensors.c */
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

/* What a reader does with a set: look at the ends of all data, find every name. */
static void use(struct dt_tensor_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct dt_stored *t = &set->tensors[i], *found;
        char shown[24];
        if (t->bytes)
            sink = (unsigned char)(t->data[0] ^ t->data[t->bytes - 1]);
        if (dt_tensors_find(set, t->name) != t || dt_tensors_need(set, t->name, &found) != DT_OK)
            abort();
        if (t->bytes != (size_t)t->elements * dt_dtype_size(t->dtype))
            abort();
        dt_shape_shown(t->rank, t->shape, shown, sizeof shown);
    }
    const struct dt_stored *nearest;
    dt_tensors_need(set, "model.a", &nearest);
    if (set->file_count)
        dt_tensors_metadata(set, 0, "format");
    dt_tensors_close(set);
}

static void parse(const uint8_t *file, size_t size)
{
    struct dt_tensor_set set;
    uint8_t *copy = malloc(size ? size : 1); /* exact: a byte too far is seen */
    if (!copy)
        return;
    memcpy(copy, file, size);
    if (dt_tensors_parse(copy, size, "f", &set) == DT_OK)
        use(&set);
    free(copy);
}

/* Length, header, data. */
static uint8_t *frame(const uint8_t *header, size_t n, const uint8_t *rest, size_t m, size_t *size)
{
    uint8_t *file = malloc(8 + n + m);
    if (!file)
        abort();
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    if (m)
        memcpy(file + 8 + n, rest, m);
    *size = 8 + n + m;
    return file;
}

/* Up to the next NUL; moves on behind it. */
static size_t token(const uint8_t **p, size_t *left)
{
    const uint8_t *nul = memchr(*p, 0, *left);
    size_t n = nul ? (size_t)(nul - *p) : *left;
    *p += n + (nul != NULL);
    *left -= n + (nul != NULL);
    return n;
}

static void put(const char *dir, const char *name, const uint8_t *data, size_t size)
{
    char path[DT_PATH];
    int fd;
    if (dt_path_join(path, dir, name) < 0 || dt_fd_create(path, &fd) < 0)
        abort();
    if (dt_fd_append(fd, path, data, size) < 0)
        abort();
    close(fd);
}

static char dir[64];

static void leave(void)
{
    dt_remove_tree(dir);
}

static void parse_directory(const uint8_t *p, size_t left)
{
    static const char *const shards[] = {"a.safetensors", "b.safetensors"};
    static const uint8_t zeros[64];
    struct dt_tensor_set set;
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/dt_fuzz_XXXXXX");
        if (!mkdtemp(dir))
            abort();
        atexit(leave);
    }
    const uint8_t *start = p;
    size_t n = token(&p, &left), size;
    put(dir, "model.safetensors.index.json", start, n);
    for (int i = 0; i < 2; i++) {
        start = p;
        n = token(&p, &left);
        /* The seeds describe 16 bytes a shard. */
        uint8_t *file = frame(start, n, zeros, 16, &size);
        put(dir, shards[i], file, size);
        free(file);
    }
    if (dt_tensors_open(dir, &set) == DT_OK)
        use(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == 'I') {
        parse_directory(data + 1, size - 1);
    } else if (size && data[0] == 'H') {
        const uint8_t *p = data + 1;
        size_t left = size - 1, n = token(&p, &left), total;
        uint8_t *file = frame(data + 1, n, p, left, &total);
        parse(file, total);
        free(file);
    } else {
        parse(data, size);
    }
    return 0;
}
