/* The model's memory: slots carved from an arena by the table in arch/, and the dispatch of
 * segments. */
#include "model/private.h"

#include "base/error.h"

#include <stdlib.h>

int dt_model_open(struct dt_model *m, const struct dt_arch *arch)
{
    int rc;
    *m = (struct dt_model){.arch = arch};
    DT_CHECK(fail, rc, DT_NEW(&m->weight, arch->tensor_count));
    DT_CHECK(fail, rc, DT_NEW(&m->gradient, arch->tensor_count));
    DT_CHECK(fail, rc, DT_NEW(&m->fixed, arch->tensor_count));
    DT_CHECK(fail, rc, DT_NEW(&m->slot, DT_SLOTS * (arch->L + 1)));
    return DT_OK;
fail:
    dt_model_close(m);
    return rc;
}

void dt_model_close(struct dt_model *m)
{
    free(m->weight);
    free(m->gradient);
    free(m->fixed);
    free(m->slot);
    *m = (struct dt_model){0};
}

static bool only_backward(enum dt_slot slot)
{
    return slot >= DT_SLOT_DX && slot <= DT_SLOT_DACT;
}

static void carve_slot(struct dt_model *m, const struct dt_model_options *o, enum dt_slot slot,
                       struct dt_arena *arena)
{
    struct dt_slot_info info = dt_arch_slot(m->arch, slot, m->compute);
    int64_t rows = info.chunked ? m->logits_rows : m->max_tokens;
    size_t bytes = (size_t)(rows * info.width) * dt_dtype_size(info.dtype);
    if (info.width == 0 || (only_backward(slot) && !o->train))
        return;
    /* Kept: a set a layer, for training without recomputation; with it only the block's input is.
     */
    bool many = info.per_layer && o->train && (!m->recompute || slot == DT_SLOT_X);
    int64_t L = m->arch->L;
    for (int64_t l = 0; l <= L; l++)
        m->slot[slot * (L + 1) + l] =
            l == 0 || (many && l < L) ? dt_arena_reserve(arena, bytes) : m->slot[slot * (L + 1)];
}

void dt_model_carve(struct dt_model *m, const struct dt_arch *arch,
                    const struct dt_model_options *o, struct dt_arena *arena)
{
    m->compute = o->compute;
    m->recompute = o->recompute;
    m->exact = o->exact && o->train;
    m->max_tokens = o->max_tokens;
    m->logits_rows = dt_arch_loss_chunk(arch, o->max_tokens);
    for (int slot = 0; slot < DT_SLOTS; slot++)
        carve_slot(m, o, (enum dt_slot)slot, arena);
    m->rope_positions = arch->rope.kind == DT_ROPE_NONE ? 0 : o->positions;
    m->rope = m->rope_positions
                  ? dt_arena_reserve(arena, (size_t)dt_arch_rope_elements(arch, o->positions) *
                                                sizeof(float))
                  : NULL;
    m->gemm_work = dt_arena_reserve(arena, dt_gemm_work_bytes());
    m->attention_work =
        dt_arena_reserve(arena, dt_attention_work_bytes(arch->H, arch->K, arch->D, o->max_tokens));
    m->tile = m->exact ? dt_arena_reserve(arena, (size_t)model__tile(arch) * sizeof(float)) : NULL;
}

void dt_model_prepare(struct dt_model *m, const struct dt_model_options *o)
{
    if (m->rope_positions)
        dt_arch_rope_table(m->arch, m->rope_positions, o->rope_length, (float *)(uintptr_t)m->rope);
}

void dt_model_forward(struct dt_model *m, enum dt_segment_kind segment, int64_t layer)
{
    switch (segment) {
    case DT_SEG_EMBED:
        model__embed_forward(m);
        break;
    case DT_SEG_ATTENTION:
        model__attention_forward(m, layer);
        break;
    case DT_SEG_MLP:
        model__mlp_forward(m, layer);
        break;
    case DT_SEG_HEAD:
        model__head_forward(m);
        break;
    }
}

void dt_model_backward(struct dt_model *m, enum dt_segment_kind segment, int64_t layer, bool first)
{
    switch (segment) {
    case DT_SEG_EMBED:
        model__embed_backward(m, first);
        break;
    case DT_SEG_ATTENTION:
        model__attention_backward(m, layer, first);
        break;
    case DT_SEG_MLP:
        model__mlp_backward(m, layer, first);
        break;
    case DT_SEG_HEAD:
        model__head_backward(m, first);
        break;
    }
}
