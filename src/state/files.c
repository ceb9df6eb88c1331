/* save and load: moves between home and files.
 *
 * In a checkpoint the trained tensors stand in space order, so a file's data is itself a home
 * layout of one owner: one contiguous range a home interval. Frozen tensors follow in their own
 * dtype. A model directory from elsewhere has tensors in any order, dtype and file; there each
 * tensor is read by name. */
#include "state/state.h"

#include "base/error.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Copy what is mapped and forget the pages, so that a model being loaded does not count twice. */
static void take(float *to, const struct dt_stored *from, int64_t rows, int64_t cols)
{
    dt_k->copy(to, DT_F32, cols, from->data, from->dtype, cols, rows, cols);
    uintptr_t begin = ((uintptr_t)from->data + 4095) & ~(uintptr_t)4095;
    uintptr_t end = ((uintptr_t)from->data + from->bytes) & ~(uintptr_t)4095;
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
static int check_tied_head(const struct dt_state *s, const struct dt_tensor_set *set,
                           const struct dt_stored *head)
{
    int64_t embed = dt_arch_tensor(s->arch, -1, DT_EMBED_W);
    for (size_t i = 0; i < set->count; i++) {
        bool buffer;
        const struct dt_stored *t = &set->tensors[i];
        if (t != head && dt_arch_tensor_by_name(s->arch, t->name, &buffer) == embed) {
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

int dt_state_load_model(struct dt_state *s, const struct dt_tensor_set *set)
{
    bool *seen;
    int rc;
    DT_TRY(DT_NEW(&seen, s->arch->tensor_count));
    for (size_t k = 0; k < set->count; k++) {
        const struct dt_stored *from = &set->tensors[k];
        bool buffer = false;
        if (s->arch->tied && is_head(from->name)) {
            DT_CHECK(done, rc, check_tied_head(s, set, from));
            continue;
        }
        int64_t i = dt_arch_tensor_by_name(s->arch, from->name, &buffer);
        if (buffer)
            continue;
        if (i < 0) {
            rc = DT_FAIL(DT_E_MODEL,
                         "%s holds '%s', which a %s model of this config.json does not have",
                         set->files[from->file].path, from->name, dt_family_name(s->arch->family));
            goto done;
        }
        if (seen[i]) {
            rc = DT_FAIL(DT_E_MODEL, "%s holds '%s' twice, with and without prefix", set->path,
                         from->name);
            goto done;
        }
        DT_CHECK(done, rc, check_shape(&s->arch->tensors[i], from));
        take(dt_state_tensor(s, i), from, s->arch->tensors[i].rows, s->arch->tensors[i].cols);
        s->frozen_dtype[i] = from->dtype;
        seen[i] = true;
    }
    rc = DT_OK;
    for (int64_t i = 0; i < s->arch->tensor_count; i++)
        if (!seen[i]) {
            rc = DT_FAIL(DT_E_MODEL, "%s lacks tensor '%s' that config.json asks for", set->path,
                         s->arch->tensors[i].name);
            break;
        }
done:
    free(seen);
    return rc;
}

/* Moments of the trained tensors, by name. A tensor that was frozen when the checkpoint was written
 * has none: it starts from zero, as at the beginning of a run. */
static int load_moments(struct dt_part *p, const struct dt_tensor_set *set, float *to,
                        int64_t *without)
{
    *without = 0;
    for (int64_t i = 0; i < p->space.count; i++) {
        const struct dt_tensor *t = &p->space.arch->tensors[p->space.tensor[i]];
        const struct dt_stored *from = dt_tensors_find(set, t->name);
        if (!from) {
            dt_k->zero(to + p->space.offset[i], (size_t)(t->rows * t->cols) * sizeof *to);
            ++*without;
            continue;
        }
        DT_TRY(check_shape(t, from));
        take(to + p->space.offset[i], from, t->rows, t->cols);
    }
    return DT_OK;
}

int dt_state_load_checkpoint(struct dt_state *s, const struct dt_checkpoint *c)
{
    DT_TRY(dt_state_load_model(s, &c->model));
    for (int64_t k = 0; k < s->part_count && s->kind == DT_STATE_TRAIN; k++) {
        struct dt_part *p = &s->parts[k];
        int64_t first, second;
        DT_TRY(load_moments(p, &c->exp_avg, p->exp_avg, &first));
        DT_TRY(load_moments(p, &c->exp_avg_sq, p->exp_avg_sq, &second));
        if (first != second)
            return DT_FAIL(DT_E_CHECKPOINT, "%s: the two moments do not name the same tensors",
                           c->path);
        if (first > 0)
            dt_warn("%lld tensors were frozen in %s and train now: their moments start from zero",
                    (long long)first, c->path);
        p->stamp = c->step;
    }
    return DT_OK;
}

/* ---- Saving ---- */

static struct dt_tensor_spec spec_of(const struct dt_tensor *t, enum dt_dtype dtype)
{
    struct dt_tensor_spec spec = {.name = t->name, .dtype = dtype, .rank = t->rank};
    spec.shape[0] = t->rank == 1 ? t->cols : t->rows;
    spec.shape[1] = t->cols;
    return spec;
}

/* Trained tensors in space order, then (with_frozen) the others. Returns how many. */
static size_t list_specs(const struct dt_state *s, bool with_frozen, struct dt_tensor_spec *specs)
{
    size_t n = 0;
    for (int64_t k = 0; k < s->part_count; k++)
        for (int64_t i = 0; i < s->parts[k].space.count; i++)
            specs[n++] = spec_of(&s->arch->tensors[s->parts[k].space.tensor[i]], DT_F32);
    for (int64_t i = 0; i < s->arch->tensor_count && with_frozen; i++)
        if (!s->trainable[i])
            specs[n++] = spec_of(&s->arch->tensors[i], s->frozen_dtype[i]);
    return n;
}

static int plan_file(const struct dt_state *s, bool with_frozen, const char *stem,
                     struct dt_tensor_plan *out)
{
    struct dt_tensor_spec *specs;
    DT_TRY(DT_NEW(&specs, s->arch->tensor_count));
    size_t n = list_specs(s, with_frozen, specs);
    int rc = dt_tensors_plan(specs, n, stem, 0, out);
    free(specs);
    return rc;
}

/* home -> file: the file's layout is a home whose elements stand where the plan puts the space's
 * first tensor. */
static int save_array(const struct dt_part *p, const float *array, size_t data_start,
                      struct dt_checkpoint_writer *w, int file)
{
    struct dt_interval whole = {.begin = 0, .end = p->space.elements};
    struct dt_home in_file = {.count = 1, .intervals = &whole};
    struct dt_move move;
    DT_TRY(dt_move_migrate(&p->space, &p->home, &in_file, &move));
    int rc = DT_OK;
    for (int64_t i = 0; i < move.count && rc >= 0; i++)
        rc = dt_checkpoint_write(w, file, data_start + (size_t)move.pieces[i].to_at * sizeof(float),
                                 array + move.pieces[i].from_at,
                                 (size_t)move.pieces[i].cols * sizeof(float));
    dt_move_free(&move);
    return rc;
}

/* Frozen tensors go back to the type they came in, which is exact, through a bounded buffer. */
static int save_frozen(const struct dt_state *s, const struct dt_tensor_plan *plan, size_t next,
                       struct dt_checkpoint_writer *w, int file)
{
    enum { CHUNK = 1 << 18 };
    float *buffer;
    int rc = DT_NEW(&buffer, CHUNK);
    for (int64_t i = 0; i < s->arch->tensor_count && rc >= 0; i++) {
        if (s->trainable[i])
            continue;
        int64_t n = s->arch->tensors[i].rows * s->arch->tensors[i].cols;
        size_t size = dt_dtype_size(s->frozen_dtype[i]);
        for (int64_t at = 0; at < n && rc >= 0; at += CHUNK) {
            int64_t part = n - at < CHUNK ? n - at : CHUNK;
            dt_k->copy(buffer, s->frozen_dtype[i], part, s->frozen[i] + at, DT_F32, part, 1, part);
            rc = dt_checkpoint_write(w, file, plan->offset[next] + (size_t)at * size, buffer,
                                     (size_t)part * size);
        }
        next++;
    }
    free(buffer);
    return rc;
}

static int save_file(const struct dt_state *s, struct dt_checkpoint_writer *w, const char *folder,
                     const char *stem)
{
    bool model = strcmp(stem, "model") == 0;
    struct dt_tensor_plan plan;
    int file, rc;
    DT_TRY(plan_file(s, model, stem, &plan));
    DT_CHECK(done, rc, dt_checkpoint_add_tensors(w, folder, &plan, &file));
    size_t tensor = 0;
    for (int64_t k = 0; k < s->part_count; k++) {
        const struct dt_part *p = &s->parts[k];
        const float *array = model                          ? p->master
                             : strcmp(stem, "exp_avg") == 0 ? p->exp_avg
                                                            : p->exp_avg_sq;
        DT_CHECK(done, rc, save_array(p, array, plan.offset[tensor], w, file));
        tensor += (size_t)p->space.count;
    }
    if (model)
        DT_CHECK(done, rc, save_frozen(s, &plan, tensor, w, file));
done:
    dt_tensor_plan_free(&plan);
    return rc;
}

int dt_state_save(const struct dt_state *s, struct dt_checkpoint_writer *w)
{
    DT_TRY(save_file(s, w, "", "model"));
    DT_TRY(save_file(s, w, "optimizer", "exp_avg"));
    return save_file(s, w, "optimizer", "exp_avg_sq");
}
