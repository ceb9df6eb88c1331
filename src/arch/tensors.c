/* The tensor table: every parameter of a model in execution order, under its Hugging Face name,
 * with what the rest of the house needs to know of it: shape as stored, where it is used, how a
 * tensor-parallel group divides it, and what its gradient is where every member holds it whole.
 *
 * One list of roles a family (below) gives names and shapes; nothing else in Ductile spells a
 * tensor's name. */
#include "arch/internal.h"

#include "base/arena.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETERS_MAX ((int64_t)1 << 48)

enum extent { ONE_ROW, EXT_V, EXT_P, EXT_C, EXT_3C, EXT_Q, EXT_KV, EXT_D, EXT_F };

struct form {
    enum dt_role role;
    const char *name;       /* without the prefix of the layer */
    enum extent rows, cols; /* as stored; ONE_ROW: rank 1 */
    enum dt_split split;
    enum dt_unit unit;
    enum dt_gradient replicated;
};

/* A norm, a position or an output bias acts on the whole residual stream, whose gradient every
 * member has in full: `same`. A weight of heads or of feed-forward columns that several members
 * hold has got on each only what that member's heads gave: `partial`. */
#define WHOLE DT_SPLIT_NONE, DT_UNIT_NONE, DT_GRAD_SAME
#define HEADS(split) DT_SPLIT_##split, DT_UNIT_ATTENTION, DT_GRAD_PARTIAL
#define MLP(split) DT_SPLIT_##split, DT_UNIT_MLP, DT_GRAD_PARTIAL
#define VOCAB DT_SPLIT_ROWS, DT_UNIT_VOCAB, DT_GRAD_SAME

static const struct form llama_layer[] = {
    {DT_NORM1_W, "input_layernorm.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_Q_W, "self_attn.q_proj.weight", EXT_Q, EXT_C, HEADS(ROWS)},
    {DT_Q_B, "self_attn.q_proj.bias", ONE_ROW, EXT_Q, HEADS(COLS)},
    {DT_K_W, "self_attn.k_proj.weight", EXT_KV, EXT_C, HEADS(ROWS)},
    {DT_K_B, "self_attn.k_proj.bias", ONE_ROW, EXT_KV, HEADS(COLS)},
    {DT_V_W, "self_attn.v_proj.weight", EXT_KV, EXT_C, HEADS(ROWS)},
    {DT_V_B, "self_attn.v_proj.bias", ONE_ROW, EXT_KV, HEADS(COLS)},
    {DT_Q_NORM, "self_attn.q_norm.weight", ONE_ROW, EXT_D, HEADS(NONE)},
    {DT_K_NORM, "self_attn.k_norm.weight", ONE_ROW, EXT_D, HEADS(NONE)},
    {DT_O_W, "self_attn.o_proj.weight", EXT_C, EXT_Q, HEADS(COLS)},
    {DT_O_B, "self_attn.o_proj.bias", ONE_ROW, EXT_C, WHOLE},
    {DT_NORM2_W, "post_attention_layernorm.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_GATE_W, "mlp.gate_proj.weight", EXT_F, EXT_C, MLP(ROWS)},
    {DT_GATE_B, "mlp.gate_proj.bias", ONE_ROW, EXT_F, MLP(COLS)},
    {DT_UP_W, "mlp.up_proj.weight", EXT_F, EXT_C, MLP(ROWS)},
    {DT_UP_B, "mlp.up_proj.bias", ONE_ROW, EXT_F, MLP(COLS)},
    {DT_DOWN_W, "mlp.down_proj.weight", EXT_C, EXT_F, MLP(COLS)},
    {DT_DOWN_B, "mlp.down_proj.bias", ONE_ROW, EXT_C, WHOLE},
};
static const struct form llama_ends[] = {
    {DT_EMBED_W, "model.embed_tokens.weight", EXT_V, EXT_C, VOCAB},
    {DT_FINAL_NORM_W, "model.norm.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_HEAD_W, "lm_head.weight", EXT_V, EXT_C, VOCAB},
};
static const struct form gpt2_layer[] = {
    {DT_NORM1_W, "ln_1.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_NORM1_B, "ln_1.bias", ONE_ROW, EXT_C, WHOLE},
    {DT_QKV_W, "attn.c_attn.weight", EXT_C, EXT_3C, HEADS(QKV_COLS)},
    {DT_QKV_B, "attn.c_attn.bias", ONE_ROW, EXT_3C, HEADS(QKV_COLS)},
    {DT_O_W, "attn.c_proj.weight", EXT_Q, EXT_C, HEADS(ROWS)},
    {DT_O_B, "attn.c_proj.bias", ONE_ROW, EXT_C, WHOLE},
    {DT_NORM2_W, "ln_2.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_NORM2_B, "ln_2.bias", ONE_ROW, EXT_C, WHOLE},
    {DT_UP_W, "mlp.c_fc.weight", EXT_C, EXT_F, MLP(COLS)},
    {DT_UP_B, "mlp.c_fc.bias", ONE_ROW, EXT_F, MLP(COLS)},
    {DT_DOWN_W, "mlp.c_proj.weight", EXT_F, EXT_C, MLP(ROWS)},
    {DT_DOWN_B, "mlp.c_proj.bias", ONE_ROW, EXT_C, WHOLE},
};
static const struct form gpt2_ends[] = {
    {DT_EMBED_W, "transformer.wte.weight", EXT_V, EXT_C, VOCAB},
    {DT_POSITION_W, "transformer.wpe.weight", EXT_P, EXT_C, WHOLE},
    {DT_FINAL_NORM_W, "transformer.ln_f.weight", ONE_ROW, EXT_C, WHOLE},
    {DT_FINAL_NORM_B, "transformer.ln_f.bias", ONE_ROW, EXT_C, WHOLE},
    {DT_HEAD_W, "lm_head.weight", EXT_V, EXT_C, VOCAB},
};

struct forms {
    const struct form *layer, *ends;
    size_t layer_count, end_count;
    const char *prefix; /* of the whole model; "" in files of the bare model */
    const char *layers; /* what stands before a layer's number */
};

static struct forms forms_of(const struct dt_arch *a)
{
    if (a->family == DT_GPT2)
        return (struct forms){gpt2_layer,
                              gpt2_ends,
                              sizeof gpt2_layer / sizeof *gpt2_layer,
                              sizeof gpt2_ends / sizeof *gpt2_ends,
                              "transformer.",
                              "h."};
    return (struct forms){llama_layer,
                          llama_ends,
                          sizeof llama_layer / sizeof *llama_layer,
                          sizeof llama_ends / sizeof *llama_ends,
                          "model.",
                          "layers."};
}

static bool has(const struct dt_arch *a, enum dt_role role, struct dt_biases b)
{
    switch (role) {
    case DT_Q_B:
    case DT_K_B:
    case DT_V_B:
        return b.qkv;
    case DT_O_B:
        return b.out;
    case DT_GATE_B:
    case DT_UP_B:
    case DT_DOWN_B:
        return b.mlp;
    case DT_Q_NORM:
    case DT_K_NORM:
        return a->qk_norm;
    case DT_HEAD_W:
        return !a->tied;
    default:
        return true;
    }
}

static int64_t extent(const struct dt_arch *a, enum extent e)
{
    switch (e) {
    case EXT_V:
        return a->V;
    case EXT_P:
        return a->positions;
    case EXT_C:
        return a->C;
    case EXT_3C:
        return 3 * a->C;
    case EXT_Q:
        return a->H * a->D;
    case EXT_KV:
        return a->K * a->D;
    case EXT_D:
        return a->D;
    case EXT_F:
        return a->F;
    default:
        return 1;
    }
}

static enum dt_segment_kind segment_of(enum dt_role role)
{
    if (role <= DT_POSITION_W)
        return DT_SEG_EMBED;
    if (role <= DT_O_B)
        return DT_SEG_ATTENTION;
    return role <= DT_DOWN_B ? DT_SEG_MLP : DT_SEG_HEAD;
}

static void append(struct dt_arch *a, const struct forms *f, const struct form *form, int64_t layer)
{
    struct dt_tensor *t = &a->tensors[a->tensor_count];
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "%s%s%lld.%s", f->prefix, f->layers, (long long)layer,
                 form->name);
    else
        snprintf(t->name, sizeof t->name, "%s", form->name);
    t->role = form->role;
    t->segment = segment_of(form->role);
    t->layer = layer;
    t->rank = form->rows == ONE_ROW ? 1 : 2;
    t->rows = extent(a, form->rows);
    t->cols = extent(a, form->cols);
    t->transposed = a->family == DT_GPT2 && layer >= 0 && t->rank == 2;
    t->decay = t->rank == 2;
    t->residual = form->role == DT_O_W || form->role == DT_DOWN_W;
    t->split = form->split;
    t->unit = form->unit;
    t->replicated = form->replicated;
    a->index[(layer + 1) * DT_ROLES + (int64_t)form->role] = a->tensor_count++;
}

/* Ends before the first layer stand in EMBED, the others in HEAD. */
static void append_ends(struct dt_arch *a, const struct forms *f, struct dt_biases biases,
                        bool embed)
{
    for (size_t i = 0; i < f->end_count; i++) {
        const struct form *form = &f->ends[i];
        if ((segment_of(form->role) == DT_SEG_EMBED) == embed && has(a, form->role, biases))
            append(a, f, form, -1);
    }
}

static int check_size(const struct dt_arch *a, const char *where)
{
    int64_t total = 0;
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const struct dt_tensor *t = &a->tensors[i];
        int64_t n;
        if (__builtin_mul_overflow(t->rows, t->cols, &n) || n > PARAMETERS_MAX ||
            (total += n) > PARAMETERS_MAX)
            return DT_FAIL(DT_E_MODEL, "%s: %s is [%lld, %lld], more than 2^48 parameters in all",
                           where, t->name, (long long)t->rows, (long long)t->cols);
    }
    return DT_OK;
}

int dt_arch_make_tensors(struct dt_arch *a, struct dt_biases biases, const char *where)
{
    struct forms f = forms_of(a);
    DT_TRY(DT_NEW(&a->tensors, a->L * (int64_t)f.layer_count + (int64_t)f.end_count));
    DT_TRY(DT_NEW(&a->index, (a->L + 1) * DT_ROLES));
    for (int64_t i = 0; i < (a->L + 1) * DT_ROLES; i++)
        a->index[i] = -1;
    append_ends(a, &f, biases, true);
    for (int64_t l = 0; l < a->L; l++) {
        for (size_t i = 0; i < f.layer_count; i++) {
            if (has(a, f.layer[i].role, biases))
                append(a, &f, &f.layer[i], l);
        }
    }
    append_ends(a, &f, biases, false);
    if (a->tied)
        a->index[DT_HEAD_W] = a->index[DT_EMBED_W];
    return check_size(a, where);
}

int64_t dt_arch_tensor(const struct dt_arch *a, int64_t layer, enum dt_role role)
{
    if (layer < -1 || layer >= a->L || (int)role < 0 || role >= DT_ROLES)
        return -1;
    return a->index[(layer + 1) * DT_ROLES + (int64_t)role];
}

/* Of a role list: the one whose name is `name`. */
static const struct form *form_named(const struct form *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    }
    return NULL;
}

/* Buffers that old versions of transformers saved: the causal mask and the rotary frequencies. */
static bool is_buffer(const struct dt_arch *a, const char *rest)
{
    if (a->family == DT_GPT2)
        return strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0;
    return strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0;
}

int64_t dt_arch_tensor_by_name(const struct dt_arch *a, const char *name, bool *known_buffer)
{
    struct forms f = forms_of(a);
    size_t prefix = strlen(f.prefix), layers = strlen(f.layers);
    bool buffer = false;
    int64_t found = -1;
    const char *rest = strncmp(name, f.prefix, prefix) == 0 ? name + prefix : name;
    if (strncmp(rest, f.layers, layers) == 0) {
        /* Only the one spelling of a number: no sign, no leading zero, at most five digits. */
        const char *digits = rest + layers, *end = digits;
        int64_t layer = 0;
        for (; *end >= '0' && *end <= '9' && end - digits < 6; end++)
            layer = layer * 10 + (*end - '0');
        bool plain = end > digits && *end == '.' && (digits[0] != '0' || end - digits == 1);
        if (plain && layer < a->L) {
            const struct form *form = form_named(f.layer, f.layer_count, end + 1);
            buffer = is_buffer(a, end + 1);
            found = form ? dt_arch_tensor(a, layer, form->role) : -1;
        }
    } else {
        char full[128];
        snprintf(full, sizeof full, "%s%.100s", f.prefix, rest);
        const struct form *form = form_named(f.ends, f.end_count, full);
        if (!form && rest == name) /* lm_head never has the prefix */
            form = form_named(f.ends, f.end_count, name);
        buffer = a->family != DT_GPT2 && strcmp(rest, "rotary_emb.inv_freq") == 0;
        found = form ? dt_arch_tensor(a, -1, form->role) : -1;
    }
    if (known_buffer)
        *known_buffer = buffer;
    return found;
}

int64_t dt_arch_parameters(const struct dt_arch *a)
{
    int64_t total = 0;
    for (int64_t i = 0; i < a->tensor_count; i++)
        total += a->tensors[i].rows * a->tensors[i].cols;
    return total;
}
