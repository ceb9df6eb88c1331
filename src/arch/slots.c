/* Slots: every activation buffer of a segment, once. And the FLOPs of a sequence.
 *
 * Who keeps what for backward, in which precision, is a property of the model and of the compute
 * type, never of a plan: the arena, `estimate` and the executor all read this table. */
#include "arch/arch.h"

#define LOGITS_AT_ONCE ((int64_t)64 << 20) /* elements: 256 MiB of fp32 logits */
#define CHUNK_STEP 128

enum { KEPT = 1, GEMM_INPUT = 2, DOUBLE = 4, CHUNKED = 8 };

static const struct {
    const char *name;
    int flags;
} slots[DT_SLOTS] = {
    [DT_SLOT_X] = {"x", KEPT},
    [DT_SLOT_RSTD1] = {"rstd1", KEPT},
    [DT_SLOT_MEAN1] = {"mean1", KEPT},
    [DT_SLOT_N1] = {"n1", KEPT | GEMM_INPUT},
    [DT_SLOT_QKV] = {"qkv", KEPT},
    [DT_SLOT_QKR] = {"qkr", KEPT},
    [DT_SLOT_QK_RSTD] = {"qk_rstd", KEPT},
    [DT_SLOT_ATT] = {"att", KEPT},
    [DT_SLOT_LSE] = {"lse", KEPT},
    [DT_SLOT_XM] = {"xm", KEPT},
    [DT_SLOT_RSTD2] = {"rstd2", KEPT},
    [DT_SLOT_MEAN2] = {"mean2", KEPT},
    [DT_SLOT_N2] = {"n2", KEPT | GEMM_INPUT},
    [DT_SLOT_GU] = {"gu", KEPT},
    [DT_SLOT_ACT] = {"act", GEMM_INPUT},
    [DT_SLOT_DX] = {"dx", 0},
    [DT_SLOT_DN] = {"dn", 0},
    [DT_SLOT_DQKV] = {"dqkv", 0},
    [DT_SLOT_DATT] = {"datt", 0},
    [DT_SLOT_DGU] = {"dgu", 0},
    [DT_SLOT_DACT] = {"dact", 0},
    [DT_SLOT_XF] = {"xf", 0},
    [DT_SLOT_RSTDF] = {"rstdf", 0},
    [DT_SLOT_MEANF] = {"meanf", 0},
    [DT_SLOT_NF] = {"nf", GEMM_INPUT},
    [DT_SLOT_LOGITS] = {"logits", CHUNKED},
    [DT_SLOT_LOSS] = {"loss", DOUBLE},
};

static int64_t width(const struct dt_arch *a, enum dt_slot slot)
{
    switch (slot) {
    case DT_SLOT_RSTD1:
    case DT_SLOT_RSTD2:
    case DT_SLOT_RSTDF:
    case DT_SLOT_LOSS:
        return 1;
    case DT_SLOT_MEAN1:
    case DT_SLOT_MEAN2:
    case DT_SLOT_MEANF:
        return a->layer_norm ? 1 : 0;
    case DT_SLOT_QKV:
    case DT_SLOT_DQKV:
        return (a->H + 2 * a->K) * a->D;
    case DT_SLOT_QKR:
        return a->qk_norm ? (a->H + a->K) * a->D : 0;
    case DT_SLOT_QK_RSTD:
        return a->qk_norm ? a->H + a->K : 0;
    case DT_SLOT_ATT:
    case DT_SLOT_DATT:
        return a->H * a->D;
    case DT_SLOT_LSE:
        return a->H;
    case DT_SLOT_GU:
    case DT_SLOT_DGU:
        return a->gated ? 2 * a->F : a->F;
    case DT_SLOT_ACT:
    case DT_SLOT_DACT:
        return a->F;
    case DT_SLOT_LOGITS:
        return a->V;
    default: /* the residual stream and what has its shape */
        return a->C;
    }
}

struct dt_slot_info dt_arch_slot(const struct dt_arch *a, enum dt_slot slot, enum dt_dtype compute)
{
    int flags = slots[slot].flags;
    struct dt_slot_info info = {slots[slot].name, width(a, slot), DT_F32, (flags & KEPT) != 0,
                                (flags & CHUNKED) != 0};
    if (flags & DOUBLE)
        info.dtype = DT_F64;
    else if ((flags & GEMM_INPUT) && compute == DT_BF16)
        info.dtype = DT_BF16;
    return info;
}

int64_t dt_arch_loss_chunk(const struct dt_arch *a, int64_t T)
{
    int64_t rows = LOGITS_AT_ONCE / a->V / CHUNK_STEP * CHUNK_STEP;
    if (rows < CHUNK_STEP)
        rows = CHUNK_STEP;
    return rows < T ? rows : T;
}

double dt_arch_forward_flops(const struct dt_arch *a, int64_t s)
{
    double used = (double)a->V * (double)a->C; /* the head, tied or not; a look-up costs nothing */
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const struct dt_tensor *t = &a->tensors[i];
        if (t->layer >= 0 && t->rank == 2)
            used += (double)t->rows * (double)t->cols;
    }
    double attention = 4.0 * (double)a->L * (double)a->H * (double)a->D;
    return 2.0 * used * (double)s + attention * (double)s * (double)s;
}
