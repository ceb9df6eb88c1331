/* load: files -> home, and what stands in the files of a checkpoint.
 *
 * In a checkpoint the trained tensors stand in space order, so a file's data is itself a home
 * layout: one contiguous range a home interval. A model directory from elsewhere has tensors in any
 * order, dtype and file. Both are read by name, of each tensor the runs that this worker is home
 * of; frozen ones whole. Every worker checks every tensor's name and shape all the same. */
#include "state/state.h"

#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Copy elements [first, first + n) of what is mapped and forget the pages, so that a model being
 * loaded does not count twice. */
static void take(float *to, const struct dt_stored *from, int64_t first, int64_t n)
{
    const unsigned char *p =
        (const unsigned char *)from->data + (size_t)first * dt_dtype_size(from->dtype);
    dt_k->copy(to, DT_F32, n, p, from->dtype, n, 1, n);
    uintptr_t begin = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
    uintptr_t end = ((uintptr_t)p + (size_t)n * dt_dtype_size(from->dtype)) & ~(uintptr_t)4095;
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static int check_shape(const struct dt_tensor *t, const struct dt_stored *from)
{
    char found[128], expected[128];
    int64_t shape[2] = {t->rank == 1 ? t->cols : t->rows, t->cols};
    if (from->rank != t->rank || from->shape[0] != shape[0] ||
        (t->rank == 2 && from->shape[1] != shape[1]))
        return DT_FAIL(DT_E_MODEL, "tensor '%s' has shape %s, config.json makes it %s", from->name,
                       dt_shape_shown(from->rank, from->shape, found, sizeof found),
                       dt_shape_shown(t->rank, shape, expected, sizeof expected));
    if (from->dtype != DT_F32 && from->dtype != DT_F16 && from->dtype != DT_BF16)
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "tensor '%s' has type %s; weights in F32, F16 or BF16 can be read",
                       from->name, dt_dtype_name(from->dtype));
    return DT_OK;
}

/* A tied model's file may carry lm_head all the same: then it must be the embedding. */
static int check_tied_head(const struct dt_arch *arch, const struct dt_tensor_set *set,
                           const struct dt_stored *head)
{
    int64_t embed = dt_arch_tensor(arch, -1, DT_EMBED_W);
    for (size_t i = 0; i < set->count; i++) {
        bool buffer;
        const struct dt_stored *t = &set->tensors[i];
        if (t != head && dt_arch_tensor_by_name(arch, t->name, &buffer) == embed) {
            if (t->bytes == head->bytes && memcmp(t->data, head->data, t->bytes) == 0)
                return DT_OK;
            break;
        }
    }
    return DT_FAIL(
        DT_E_MODEL,
        "config.json ties the head to the embedding, but '%s' in %s differs from it; set "
        "tie_word_embeddings to false or remove the tensor",
        head->name, set->path);
}

static bool is_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0;
}

/* The stored tensor of every arch tensor, checked: stored[tensor_count]. */
static int match(const struct dt_arch *arch, const struct dt_tensor_set *set,
                 const struct dt_stored **stored)
{
    for (size_t k = 0; k < set->count; k++) {
        const struct dt_stored *from = &set->tensors[k];
        bool buffer = false;
        if (arch->tied && is_head(from->name)) {
            DT_TRY(check_tied_head(arch, set, from));
            continue;
        }
        int64_t i = dt_arch_tensor_by_name(arch, from->name, &buffer);
        if (buffer)
            continue;
        if (i < 0)
            return DT_FAIL(DT_E_MODEL,
                           "%s holds '%s', which a %s model of this config.json does not have",
                           set->files[from->file].path, from->name, dt_family_name(arch->family));
        if (stored[i])
            return DT_FAIL(DT_E_MODEL, "%s holds '%s' twice, with and without prefix", set->path,
                           from->name);
        DT_TRY(check_shape(&arch->tensors[i], from));
        stored[i] = from;
    }
    for (int64_t i = 0; i < arch->tensor_count; i++)
        if (!stored[i])
            return DT_FAIL(DT_E_MODEL, "%s lacks tensor '%s' that config.json asks for", set->path,
                           arch->tensors[i].name);
    return DT_OK;
}

int dt_state_load_model(struct dt_state *s, const struct dt_tensor_set *set)
{
    const struct dt_stored **stored;
    DT_TRY(DT_NEW(&stored, s->arch->tensor_count));
    int rc = match(s->arch, set, stored);
    for (int64_t k = 0; k < s->part_count && rc >= 0; k++) {
        const struct dt_part *p = &s->parts[k];
        struct state__cursor c = {0};
        for (struct state__run r; state__next_run(s, p, &c, &r);)
            take(p->master + r.at, stored[p->space.tensor[r.tensor]], r.element, r.count);
    }
    for (int64_t i = 0; i < s->arch->tensor_count && rc >= 0; i++) {
        s->frozen_dtype[i] = stored[i]->dtype;
        if (s->frozen[i])
            take(s->frozen[i], stored[i], 0, s->arch->tensors[i].rows * s->arch->tensors[i].cols);
    }
    free(stored);
    return rc;
}

void dt_state_types(const struct dt_arch *arch, const struct dt_tensor_set *set,
                    enum dt_dtype *types)
{
    for (size_t k = 0; k < set->count; k++) {
        int64_t i = dt_arch_tensor_by_name(arch, set->tensors[k].name, NULL);
        if (i >= 0 && !(arch->tied && is_head(set->tensors[k].name)))
            types[i] = set->tensors[k].dtype;
    }
}

/* Moments of the trained tensors, by name. A tensor that was frozen when the checkpoint was written
 * has none: it starts from zero, as at the beginning of a run. */
static int load_moments(const struct dt_state *s, const struct dt_part *p,
                        const struct dt_tensor_set *set, float *to, int64_t *without)
{
    struct state__cursor c = {0};
    *without = 0;
    for (int64_t i = 0; i < p->space.count; i++) {
        const struct dt_tensor *t = &p->space.arch->tensors[p->space.tensor[i]];
        const struct dt_stored *from = dt_tensors_find(set, t->name);
        *without += from == NULL;
        if (from)
            DT_TRY(check_shape(t, from));
    }
    for (struct state__run r; state__next_run(s, p, &c, &r);) {
        const struct dt_tensor *t = &p->space.arch->tensors[p->space.tensor[r.tensor]];
        const struct dt_stored *from = dt_tensors_find(set, t->name);
        if (from)
            take(to + r.at, from, r.element, r.count);
        else
            dt_k->zero(to + r.at, (size_t)r.count * sizeof *to);
    }
    return DT_OK;
}

int dt_state_load_checkpoint(struct dt_state *s, const struct dt_checkpoint *c)
{
    DT_TRY(dt_state_load_model(s, &c->model));
    for (int64_t k = 0; k < s->part_count && s->kind == DT_STATE_TRAIN; k++) {
        struct dt_part *p = &s->parts[k];
        int64_t first, second;
        DT_TRY(load_moments(s, p, &c->exp_avg, p->exp_avg, &first));
        DT_TRY(load_moments(s, p, &c->exp_avg_sq, p->exp_avg_sq, &second));
        if (first != second)
            return DT_FAIL(DT_E_CHECKPOINT, "%s: the two moments do not name the same tensors",
                           c->path);
        if (first > 0 && s->rank == 0)
            dt_warn("%lld tensors were frozen in %s and train now: their moments start from zero",
                    (long long)first, c->path);
        p->stamp = c->step;
    }
    return DT_OK;
}

/* ---- What stands in a checkpoint ---- */

static struct dt_tensor_spec spec_of(const struct dt_tensor *t, enum dt_dtype dtype)
{
    struct dt_tensor_spec spec = {.name = t->name, .dtype = dtype, .rank = t->rank};
    spec.shape[0] = t->rank == 1 ? t->cols : t->rows;
    spec.shape[1] = t->cols;
    return spec;
}

static const struct {
    const char *folder, *name, *stem;
} data_files[DT_STATE_FILES] = {
    {"", "model.safetensors", "model"},
    {"optimizer", "exp_avg.safetensors", "exp_avg"},
    {"optimizer", "exp_avg_sq.safetensors", "exp_avg_sq"},
};

int dt_state_files(const struct dt_arch *arch, const bool *trainable,
                   const enum dt_dtype *frozen_dtype, struct dt_state_file files[DT_STATE_FILES])
{
    struct dt_tensor_spec *specs;
    size_t trained = 0, n;
    int rc = DT_OK;
    memset(files, 0, DT_STATE_FILES * sizeof *files);
    DT_TRY(DT_NEW(&specs, arch->tensor_count));
    for (int64_t i = 0; i < arch->tensor_count; i++)
        if (trainable[i])
            specs[trained++] = spec_of(&arch->tensors[i], DT_F32);
    n = trained;
    for (int64_t i = 0; i < arch->tensor_count; i++)
        if (!trainable[i])
            specs[n++] = spec_of(&arch->tensors[i], frozen_dtype[i]);
    for (int k = 0; k < DT_STATE_FILES && rc >= 0; k++) {
        files[k].folder = data_files[k].folder;
        files[k].name = data_files[k].name;
        rc = dt_tensors_plan(specs, k == 0 ? n : trained, data_files[k].stem, 0, &files[k].plan);
    }
    free(specs);
    return rc;
}

void dt_state_files_free(struct dt_state_file files[DT_STATE_FILES])
{
    for (int k = 0; k < DT_STATE_FILES; k++)
        dt_tensor_plan_free(&files[k].plan);
}

int dt_state_part_open(const char *temp, struct dt_checkpoint_part **out)
{
    const char *names[DT_STATE_FILES];
    char text[DT_STATE_FILES][64];
    for (int k = 0; k < DT_STATE_FILES; k++) {
        snprintf(text[k], sizeof text[k], "%s%s%s", data_files[k].folder,
                 data_files[k].folder[0] ? "/" : "", data_files[k].name);
        names[k] = text[k];
    }
    return dt_checkpoint_part_open(temp, names, DT_STATE_FILES, out);
}
