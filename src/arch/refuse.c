/* What must not be ignored.
 *
 * A config.json may hold any key. Most say nothing about what is computed (cache switches, labels,
 * versions) and are passed over. This file lists the keys that do change the computation in some
 * relative of the supported families, each with its neutral value: whoever sets one of them to
 * something else wants another model than the one that would be built, and is told so by name. */
#include "arch/internal.h"

#include "base/error.h"

#include <string.h>

#define LLAMA (1u << DT_LLAMA)
#define MISTRAL (1u << DT_MISTRAL)
#define QWEN2 (1u << DT_QWEN2)
#define QWEN3 (1u << DT_QWEN3)
#define GPT2 (1u << DT_GPT2)
#define ALL (LLAMA | MISTRAL | QWEN2 | QWEN3 | GPT2)

enum neutral {
    OFF,   /* null, false, 0, "", [] or {} */
    ON,    /* null or true */
    ONE,   /* null, 1 or an empty string */
    ROTARY /* a string that names what the family does anyway */
};

static const struct refusal {
    const char *key;
    enum neutral neutral;
    unsigned families;
    const char *what;
} refusals[] = {
    {"quantization_config", OFF, ALL, "quantised weights"},
    {"compression_config", OFF, ALL, "compressed weights"},
    {"num_experts", OFF, ALL, "mixture of experts"},
    {"num_local_experts", OFF, ALL, "mixture of experts"},
    {"num_experts_per_tok", OFF, ALL, "mixture of experts"},
    {"n_routed_experts", OFF, ALL, "mixture of experts"},
    {"n_shared_experts", OFF, ALL, "mixture of experts"},
    {"moe_intermediate_size", OFF, ALL, "mixture of experts"},
    {"shared_expert_intermediate_size", OFF, ALL, "mixture of experts"},
    {"attn_logit_softcapping", OFF, ALL, "soft-capped attention scores"},
    {"attn_logit_softcap", OFF, ALL, "soft-capped attention scores"},
    {"final_logit_softcapping", OFF, ALL, "soft-capped logits"},
    {"query_pre_attn_scalar", OFF, ALL, "another scale of attention scores"},
    {"attention_multiplier", OFF, ALL, "another scale of attention scores"},
    {"attn_temperature_tuning", OFF, ALL, "attention temperature"},
    {"attention_chunk_size", OFF, ALL, "chunked attention"},
    {"embedding_multiplier", ONE, ALL, "scaled embeddings"},
    {"residual_multiplier", ONE, ALL, "scaled residuals"},
    {"logits_scaling", ONE, ALL, "scaled logits"},
    {"logit_scale", ONE, ALL, "scaled logits"},
    {"scale_emb", ONE, ALL, "scaled embeddings"},
    {"scale_depth", OFF, ALL, "scaled residuals"},
    {"dim_model_base", OFF, ALL, "scaled logits"},
    {"pretraining_tp", ONE, ALL, "sums split as in pre-training"},
    {"partial_rotary_factor", ONE, ALL, "partial rotation of heads"},
    {"rotary_pct", ONE, ALL, "partial rotation of heads"},
    {"rotary_dim", OFF, ALL, "partial rotation of heads"},
    {"no_rope_layers", OFF, ALL, "layers without positions"},
    {"no_rope_layer_interval", OFF, ALL, "layers without positions"},
    {"rope_local_base_freq", OFF, ALL, "two sets of rotary frequencies"},
    {"alibi", OFF, ALL, "ALiBi positions"},
    {"position_embedding_type", ROTARY, ALL, "other positions"},
    {"add_cross_attention", OFF, ALL, "cross-attention"},
    {"cross_attention_hidden_size", OFF, ALL, "cross-attention"},
    {"is_encoder_decoder", OFF, ALL, "encoder and decoder"},
    {"is_causal", ON, ALL, "attention to later tokens"},
    {"use_bidirectional_attention", OFF, ALL, "attention to later tokens"},
    {"pruned_heads", OFF, ALL, "pruned heads"},
    {"clip_qkv", OFF, ALL, "clipped queries, keys and values"},
    {"kv_lora_rank", OFF, ALL, "latent attention"},
    {"q_lora_rank", OFF, ALL, "latent attention"},
    {"num_nextn_predict_layers", OFF, ALL, "multi-token prediction"},
    {"num_kv_shared_layers", OFF, ALL, "keys and values shared by layers"},
    {"use_parallel_residual", OFF, ALL, "parallel attention and feed-forward"},
    {"parallel_attn", OFF, ALL, "parallel attention and feed-forward"},
    {"vision_config", OFF, ALL, "images"},
    {"audio_config", OFF, ALL, "sound"},
    {"text_config", OFF, ALL, "a model inside a model"},
    {"use_mrope", OFF, ALL, "multimodal positions"},
    {"use_qk_norm", OFF, LLAMA | MISTRAL | QWEN2 | GPT2, "normalised queries and keys"},
    {"qk_norm", OFF, LLAMA | MISTRAL | QWEN2 | GPT2, "normalised queries and keys"},
    {"qk_layernorm", OFF, ALL, "normalised queries and keys"},
    {"sliding_window", OFF, LLAMA | GPT2, "a sliding window in this family"},
    {"use_sliding_window", OFF, LLAMA | GPT2, "a sliding window in this family"},
    {"attention_bias", OFF, MISTRAL | GPT2, "attention biases in this family"},
    {"attention_bias", ON, QWEN2, "this family without attention biases"},
    {"mlp_bias", OFF, MISTRAL | QWEN2 | QWEN3, "MLP biases in this family"},
    {"attention_out_bias", OFF, MISTRAL | QWEN2, "an output bias in this family"},
    {"rope_scaling", OFF, GPT2, "rotary positions in this family"},
    {"rope_parameters", OFF, GPT2, "rotary positions in this family"},
};

static bool empty(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_number(v) && json_number_value(v) == 0.0) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_neutral(const json_t *v, enum neutral neutral, enum dt_family family)
{
    if (!v || json_is_null(v))
        return true;
    switch (neutral) {
    case OFF:
        return empty(v);
    case ON:
        return json_is_true(v);
    case ONE:
        return json_is_number(v) && json_number_value(v) == 1.0;
    case ROTARY:
        return json_is_string(v) &&
               strcmp(json_string_value(v), family == DT_GPT2 ? "absolute" : "rope") == 0;
    }
    return false;
}

/* "LlamaForCausalLM" and "LlamaModel" are what is built; a classifier has another head. */
static int refuse_architectures(struct dt_json_in in)
{
    const json_t *list = NULL, *item;
    size_t i;
    DT_TRY(dt_json_get_array(in, "architectures", &list));
    static const char *const known[] = {"ForCausalLM", "LMHeadModel", "Model"};
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(item);
        if (!name)
            return DT_FAIL(in.code, "%s: 'architectures' holds something that is no string",
                           in.where);
        size_t length = strlen(name);
        bool fits = strstr(name, "DoubleHeads") == NULL;
        bool ends = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            size_t n = strlen(known[k]);
            ends = ends || (length >= n && strcmp(name + length - n, known[k]) == 0);
        }
        if (!fits || !ends)
            return DT_FAIL(DT_E_UNSUPPORTED,
                           "%s: 'architectures' names %.80s; only language models (...ForCausalLM, "
                           "GPT2LMHeadModel) can be trained",
                           in.where, name);
    }
    return DT_OK;
}

int dt_arch_refuse(struct dt_json_in in, enum dt_family family)
{
    char shown[96];
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        const json_t *v = json_object_get(in.object, r->key);
        if (!(r->families & (1u << family)) || is_neutral(v, r->neutral, family))
            continue;
        return DT_FAIL(DT_E_UNSUPPORTED, "%s: '%s' is %s: %s is not supported (model_type %s)",
                       in.where, r->key, dt_json_shown(v, shown, sizeof shown), r->what,
                       dt_family_name(family));
    }
    return refuse_architectures(in);
}
