/* config.json: what is refused and by which name, what is a mistake, which spellings are equal. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/error.h"
#include "base/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2}";
static const char mistral[] =
    "{\"model_type\":\"mistral\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":8}";
static const char qwen2[] =
    "{\"model_type\":\"qwen2\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2}";
static const char qwen3[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2}";
static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":16,\"n_layer\":2,"
                           "\"n_head\":4,\"n_positions\":32}";

/* `base` with the keys of `changes` put over it; a key set to "absent" is removed. */
static int parse(const char *base, const char *changes, struct dt_arch **a)
{
    json_t *root = json_loads(base, 0, NULL), *over = json_loads(changes, 0, NULL), *value;
    const char *key;
    assert_non_null(root);
    assert_non_null(over);
    json_object_foreach(over, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "absent") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *text = json_dumps(root, 0);
    int rc = dt_arch_parse(text, strlen(text), "dir/config.json", a);
    free(text);
    json_decref(root);
    json_decref(over);
    return rc;
}

static struct dt_arch *accept(const char *base, const char *changes)
{
    struct dt_arch *a;
    if (parse(base, changes, &a) < 0)
        fail_msg("%s: %s", changes, dt_error_message());
    return a;
}

static void reject(const char *base, const char *changes, int code, const char *words)
{
    struct dt_arch *a;
    int rc = parse(base, changes, &a);
    if (rc >= 0)
        fail_msg("%s was accepted", changes);
    assert_null(a);
    if (rc != code || !strstr(dt_error_message(), words) ||
        !strstr(dt_error_message(), "dir/config.json"))
        fail_msg("%s: %s: %s", changes, dt_error_name(rc), dt_error_message());
}

struct sample {
    const char *base, *changes, *words;
};

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct sample samples[] = {
        {llama, "{\"model_type\":\"gemma2\"}", "supported: llama, mistral, qwen2, qwen3, gpt2"},
        {llama, "{\"quantization_config\":{\"bits\":4}}", "'quantization_config'"},
        {llama, "{\"num_local_experts\":8}", "'num_local_experts' is 8: mixture of experts"},
        {qwen3, "{\"num_experts\":128}", "'num_experts'"},
        {llama, "{\"attn_logit_softcapping\":50.0}", "'attn_logit_softcapping'"},
        {llama, "{\"final_logit_softcapping\":30.0}", "'final_logit_softcapping'"},
        {llama, "{\"embedding_multiplier\":12.0}", "'embedding_multiplier'"},
        {llama, "{\"logits_scaling\":8}", "'logits_scaling'"},
        {llama, "{\"scale_emb\":12}", "'scale_emb'"},
        {llama, "{\"pretraining_tp\":2}", "'pretraining_tp' is 2"},
        {llama, "{\"partial_rotary_factor\":0.5}", "'partial_rotary_factor'"},
        {llama, "{\"sliding_window\":128}", "'sliding_window'"},
        {llama, "{\"use_qk_norm\":true}", "'use_qk_norm'"},
        {llama, "{\"is_causal\":false}", "'is_causal'"},
        {llama, "{\"position_embedding_type\":\"alibi\"}", "'position_embedding_type'"},
        {llama, "{\"pruned_heads\":{\"1\":[0]}}", "'pruned_heads'"},
        {llama, "{\"vision_config\":{\"depth\":2}}", "'vision_config'"},
        {llama, "{\"hidden_act\":\"relu2\"}", "'hidden_act' is 'relu2'"},
        {gpt2, "{\"activation_function\":\"mish\"}", "'activation_function' is 'mish'"},
        {gpt2, "{\"add_cross_attention\":true}", "'add_cross_attention'"},
        {gpt2, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "'rope_scaling'"},
        {mistral, "{\"attention_bias\":true}", "'attention_bias'"},
        {qwen2, "{\"attention_bias\":false}", "'attention_bias'"},
        {qwen3, "{\"mlp_bias\":true}", "'mlp_bias'"},
        {llama, "{\"architectures\":[\"LlamaForSequenceClassification\"]}", "'architectures'"},
        {gpt2, "{\"architectures\":[\"GPT2DoubleHeadsModel\"]}", "'architectures'"},
        {llama, "{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", "'longrope'"},
        {llama, "{\"rope_scaling\":{\"rope_type\":\"su\"}}", "'su'"},
        {llama, "{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}",
         "'partial_rotary_factor' is 0.25"},
        {qwen2, "{\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1,1]}}",
         "'mrope_section'"},
        {qwen3, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
         "'full_attention'"},
        {qwen3, "{\"layer_types\":[\"full_attention\",\"chunked_attention\",\"full_attention\"]}",
         "'chunked_attention'"},
        {llama, "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "'layer_types'"},
        {mistral, "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "'layer_types'"},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        reject(samples[i].base, samples[i].changes, DT_E_UNSUPPORTED, samples[i].words);
}

static void names_mistakes(void **state)
{
    (void)state;
    static const struct sample samples[] = {
        {llama, "{\"model_type\":\"absent\"}", "'model_type' is absent, expected a string"},
        {llama, "{\"model_type\":7}", "'model_type' is 7"},
        {llama, "{\"hidden_size\":\"absent\"}", "'hidden_size' is absent"},
        {llama, "{\"hidden_size\":\"wide\"}", "'hidden_size' is \"wide\""},
        {llama, "{\"hidden_size\":16.5}", "'hidden_size' is 16.5"},
        {llama, "{\"hidden_size\":-16}", "'hidden_size' is -16"},
        {llama, "{\"vocab_size\":0}", "'vocab_size' is 0"},
        {llama, "{\"num_hidden_layers\":0}", "'num_hidden_layers'"},
        {llama, "{\"num_hidden_layers\":100000000}", "'num_hidden_layers'"},
        {llama, "{\"num_attention_heads\":3,\"num_key_value_heads\":3}", "not a multiple of the 3"},
        {llama, "{\"num_key_value_heads\":3}", "'num_key_value_heads' (3)"},
        {llama, "{\"hidden_size\":20}", "head size is 5"},
        {llama, "{\"head_dim\":7}", "head size is 7"},
        {llama, "{\"head_dim\":65536,\"num_attention_heads\":65536}", "too many"},
        {llama, "{\"head_dim\":4,\"vocab_size\":2147483648,\"hidden_size\":2147483648}", "2^48"},
        {llama, "{\"rms_norm_eps\":-1}", "'rms_norm_eps' is -1"},
        {llama, "{\"rms_norm_eps\":\"small\"}", "'rms_norm_eps'"},
        {llama, "{\"initializer_range\":-0.02}", "'initializer_range'"},
        {llama, "{\"eos_token_id\":\"</s>\"}", "'eos_token_id'"},
        {llama, "{\"tie_word_embeddings\":1}", "'tie_word_embeddings' is 1, expected true"},
        {llama, "{\"architectures\":[3]}", "'architectures'"},
        {llama, "{\"rope_theta\":0}", "'rope_theta' is 0"},
        {llama, "{\"rope_scaling\":[2]}", "'rope_scaling' is [2], expected an object"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\"}}",
         "rope_scaling: 'factor' is absent, expected a number"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":-2}}", "'factor' is -2"},
        {llama, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":0.5}}", "'factor' is 0.5"},
        {llama, "{\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
         "head size of at least 4"},
        {llama, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "'low_freq_factor'"},
        {llama,
         "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4}}",
         "rope_parameters: 'high_freq_factor'"},
        {llama, "{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8}}",
         "yarn needs more than 1"},
        {llama, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"attention_factor\":-1}}",
         "'attention_factor'"},
        {qwen2, "{\"layer_types\":[\"full_attention\"]}", "one a layer: 3"},
        {qwen2, "{\"layer_types\":[1,2,3]}", "'layer_types' holds"},
        {qwen2, "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
         "makes layer 1 slide"},
        {qwen2, "{\"use_sliding_window\":true,\"sliding_window\":0}", "'sliding_window' is 0"},
        {gpt2, "{\"n_embd\":\"absent\"}", "'n_embd' is absent"},
        {gpt2, "{\"hidden_size\":32}", "'n_embd' is 16, but 'hidden_size' is 32"},
        {gpt2, "{\"n_head\":3}", "not a multiple of the 3"},
        {gpt2, "{\"n_inner\":0}", "'n_inner' is 0"},
        {gpt2, "{\"resid_pdrop\":\"much\"}", "'resid_pdrop'"},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        reject(samples[i].base, samples[i].changes, DT_E_MODEL, samples[i].words);
}

static void needs_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "[]", "{", "{\"a\":1,\"a\":2}", "\xff", "7"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dt_arch *a;
        assert_int_equal(dt_arch_parse(texts[i], strlen(texts[i]), "dir/config.json", &a),
                         DT_E_MODEL);
        assert_non_null(strstr(dt_error_message(), "dir/config.json"));
    }
    struct dt_arch *a;
    assert_int_equal(dt_arch_load(DT_TEST_DIR "/golden/none", &a), DT_E_NOT_FOUND);
    assert_non_null(strstr(dt_error_message(), "config.json"));
}

static void same(const char *base, const char *one, const char *other)
{
    struct dt_arch *a = accept(base, one), *b = accept(base, other);
    if (a->hash != b->hash)
        fail_msg("%s and %s are not the same model", one, other);
    dt_arch_free(a);
    dt_arch_free(b);
}

static void both_spellings_are_one_model(void **state)
{
    (void)state;
    same(llama, "{\"rope_theta\":5e5}", "{\"rope_parameters\":{\"rope_theta\":500000}}");
    same(llama, "{\"rope_theta\":5e5,\"rope_scaling\":null,\"torch_dtype\":\"bfloat16\"}",
         "{\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"},\"dtype\":"
         "\"bfloat16\"}");
    same(llama, "{\"rope_theta\":100,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         "{\"rope_parameters\":{\"rope_theta\":100.0,\"rope_type\":\"linear\",\"factor\":2.0}}");
    same(llama, /* inside wins over outside, a non-empty rope_scaling over rope_parameters */
         "{\"rope_theta\":7,\"rope_scaling\":{\"rope_theta\":100,\"type\":\"x\",\"rope_type\":"
         "\"dynamic\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":9}}",
         "{\"rope_parameters\":{\"rope_theta\":100,\"rope_type\":\"dynamic\",\"factor\":2}}");
    same(llama, /* yarn's defaults; 0 is as good as absent */
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0,\"beta_slow\":null}}",
         "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":32,"
         "\"beta_slow\":1,\"truncate\":true,\"original_max_position_embeddings\":2048}}");
    same(llama, /* null: the ratio of the lengths; outside wins for the original length */
         "{\"original_max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":null,\"original_max_position_embeddings\":3}}",
         "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":512}}");
    same(llama, "{\"hidden_act\":\"swish\"}", "{\"initializer_range\":0.1,\"use_cache\":false}");
    same(llama, "{\"num_key_value_heads\":null}", "{\"num_key_value_heads\":4}");
    same(llama, "{\"head_dim\":null}", "{\"head_dim\":4}");
    same(qwen2, "{\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":2}",
         "{\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":[\"full_attention\","
         "\"full_attention\",\"sliding_attention\"]}");
    same(mistral, "{\"sliding_window\":4096}", "{\"num_key_value_heads\":8}");
    same(gpt2, "{\"n_inner\":64}",
         "{\"n_embd\":\"absent\",\"hidden_size\":16,\"num_attention_heads\":4,\"n_inner\":null}");
    struct dt_arch *a = accept(llama, "{}"), *b = accept(llama, "{\"rope_theta\":5e5}");
    assert_true(a->hash != b->hash);
    dt_arch_free(b);
    b = accept(llama, "{\"mlp_bias\":true}");
    assert_true(a->hash != b->hash);
    dt_arch_free(b);
    dt_arch_free(a);
}

static void harmless_keys_pass(void **state)
{
    (void)state;
    dt_arch_free(accept(llama, "{\"use_cache\":true,\"auto_map\":{},\"pad_token_id\":null,"
                               "\"transformers_version\":\"9\",\"unheard_of\":[1,{\"x\":2}],"
                               "\"pretraining_tp\":1,\"quantization_config\":null,"
                               "\"pruned_heads\":{},\"num_experts\":0,\"is_causal\":true,"
                               "\"architectures\":[\"LlamaForCausalLM\",\"LlamaModel\"],"
                               "\"position_embedding_type\":\"rope\",\"attention_dropout\":0.1}"));
    dt_arch_free(accept(gpt2, "{\"n_ctx\":32,\"reorder_and_upcast_attn\":true,"
                              "\"position_embedding_type\":\"absolute\","
                              "\"architectures\":[\"GPT2LMHeadModel\"]}"));
}

static void defaults_are_transformers(void **state)
{
    (void)state;
    struct dt_arch *a = accept(llama, "{}");
    assert_false(a->tied);
    assert_int_equal(a->positions, 2048);
    assert_int_equal(a->bos, 1);
    assert_int_equal(a->eos, 2);
    assert_true(a->norm_eps == 1e-6);
    assert_true(a->rope.theta == 10000.0 && a->rope.kind == DT_ROPE_DEFAULT && a->rope.half == 2);
    dt_arch_free(a);
    a = accept(mistral, "{\"eos_token_id\":[9,3]}");
    assert_int_equal(a->K, 8);
    assert_int_equal(a->window[0], 4096);
    assert_int_equal(a->eos, 9);
    dt_arch_free(a);
    a = accept(mistral, "{\"sliding_window\":null,\"eos_token_id\":[],\"bos_token_id\":null}");
    assert_int_equal(a->window[1], 0);
    assert_int_equal(a->eos, -1);
    assert_int_equal(a->bos, -1);
    dt_arch_free(a);
    a = accept(qwen3, "{\"use_sliding_window\":true,\"max_window_layers\":1}");
    assert_int_equal(a->D, 128);
    assert_true(a->qk_norm);
    assert_int_equal(a->window[0], 0);
    assert_int_equal(a->window[1], 4096);
    dt_arch_free(a);
    a = accept(gpt2, "{\"scale_attn_by_inverse_layer_idx\":true}");
    assert_true(a->tied && a->layer_norm && a->learned_positions);
    assert_int_equal(a->F, 64);
    assert_int_equal(a->act, DT_ARCH_GELU_TANH);
    assert_true(a->scale[0] == 0.5 && a->scale[1] == 0.25);
    assert_int_equal(a->eos, -1); /* 50256 is beyond this vocabulary */
    dt_arch_free(a);
    a = accept(gpt2, "{\"scale_attn_weights\":false,\"tie_word_embeddings\":false}");
    assert_true(a->scale[1] == 1.0);
    assert_true(dt_arch_tensor(a, -1, DT_HEAD_W) == a->tensor_count - 1);
    dt_arch_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_by_name),    cmocka_unit_test(names_mistakes),
        cmocka_unit_test(needs_json),         cmocka_unit_test(both_spellings_are_one_model),
        cmocka_unit_test(harmless_keys_pass), cmocka_unit_test(defaults_are_transformers),
    };
    dt_log_set_level(DT_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
