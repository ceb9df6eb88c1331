/* The two tables that everything downstream is made from: tensors and slots; and what is counted
 * from them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/error.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct dt_arch *arch(const char *json)
{
    struct dt_arch *a;
    if (dt_arch_parse(json, strlen(json), "config.json", &a) < 0)
        fail_msg("%s", dt_error_message());
    return a;
}

#define GPT2_124M                                                                                  \
    "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"   \
    "\"n_positions\":1024}"
#define QWEN3                                                                                      \
    "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":40,"     \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":6,"  \
    "\"tie_word_embeddings\":true}"

static const struct dt_tensor *tensor(const struct dt_arch *a, int64_t layer, enum dt_role role)
{
    int64_t t = dt_arch_tensor(a, layer, role);
    assert_true(t >= 0);
    return &a->tensors[t];
}

static void counts_gpt2(void **state)
{
    (void)state;
    struct dt_arch *a = arch(GPT2_124M);
    assert_int_equal(dt_arch_parameters(a), 124439808);
    /* A step of 256 tokens: 0.770 GFLOP a token, the figure of bench/step. */
    assert_true(fabs(3 * dt_arch_forward_flops(a, 256) / 256 / 0.770e9 - 1) < 1e-3);
    const struct dt_tensor *t = tensor(a, 3, DT_QKV_W);
    assert_string_equal(t->name, "transformer.h.3.attn.c_attn.weight");
    assert_true(t->rows == 768 && t->cols == 2304 && t->transposed && t->decay && !t->residual);
    assert_int_equal(t->split, DT_SPLIT_QKV_COLS);
    t = tensor(a, 3, DT_O_W);
    assert_true(t->transposed && t->residual && t->split == DT_SPLIT_ROWS);
    t = tensor(a, -1, DT_POSITION_W);
    assert_true(t->rows == 1024 && t->decay && !t->transposed && t->split == DT_SPLIT_NONE);
    assert_int_equal(t->replicated, DT_GRAD_SAME);
    assert_int_equal(dt_arch_tensor(a, -1, DT_HEAD_W), dt_arch_tensor(a, -1, DT_EMBED_W));
    assert_int_equal(dt_arch_tensor(a, 0, DT_GATE_W), -1);
    assert_int_equal(dt_arch_tensor(a, 12, DT_O_W), -1);
    assert_int_equal(dt_arch_tensor(a, -2, DT_O_W), -1);
    dt_arch_free(a);
}

/* Segments follow each other, and a layer's tensors stand together: the order of the space. */
static void execution_order(void **state)
{
    (void)state;
    static const char *const configs[] = {GPT2_124M, QWEN3};
    for (size_t c = 0; c < 2; c++) {
        struct dt_arch *a = arch(configs[c]);
        int64_t last = -1;
        for (int64_t i = 0; i < a->tensor_count; i++) {
            const struct dt_tensor *t = &a->tensors[i];
            int64_t place = t->segment == DT_SEG_EMBED  ? 0
                            : t->segment == DT_SEG_HEAD ? 2 * a->L + 1
                                                        : 2 * t->layer + (int64_t)t->segment;
            assert_true(place >= last);
            last = place;
            assert_int_equal(dt_arch_tensor(a, t->layer, t->role), i);
            assert_int_equal(dt_arch_tensor_by_name(a, t->name, NULL), i);
            assert_true(t->rank == 2 ? t->decay : t->rows == 1 && !t->decay);
        }
        dt_arch_free(a);
    }
}

static void gradient_kinds(void **state)
{
    (void)state;
    struct dt_arch *a = arch(QWEN3);
    assert_int_equal(tensor(a, 0, DT_NORM1_W)->replicated, DT_GRAD_SAME);
    assert_int_equal(tensor(a, 0, DT_Q_NORM)->replicated, DT_GRAD_PARTIAL); /* own heads only */
    assert_int_equal(tensor(a, 0, DT_K_W)->replicated, DT_GRAD_PARTIAL);
    assert_int_equal(tensor(a, 0, DT_Q_W)->split, DT_SPLIT_ROWS);
    assert_int_equal(tensor(a, 0, DT_O_W)->split, DT_SPLIT_COLS);
    assert_int_equal(tensor(a, 1, DT_DOWN_W)->split, DT_SPLIT_COLS);
    assert_int_equal(tensor(a, 1, DT_GATE_W)->unit, DT_UNIT_MLP);
    assert_int_equal(tensor(a, -1, DT_EMBED_W)->unit, DT_UNIT_VOCAB);
    assert_int_equal(tensor(a, 0, DT_Q_NORM)->cols, 6);
    dt_arch_free(a);
}

static void names_and_buffers(void **state)
{
    (void)state;
    struct dt_arch *g = arch(GPT2_124M), *q = arch(QWEN3);
    struct {
        const struct dt_arch *a;
        const char *name, *is; /* NULL: unknown */
        bool buffer;
    } samples[] = {
        {g, "wte.weight", "transformer.wte.weight", false},
        {g, "h.11.ln_1.bias", "transformer.h.11.ln_1.bias", false},
        {g, "lm_head.weight", "transformer.wte.weight", false},
        {g, "h.0.attn.bias", NULL, true},
        {g, "transformer.h.0.attn.masked_bias", NULL, true},
        {g, "h.12.ln_1.bias", NULL, false},
        {g, "h.01.ln_1.bias", NULL, false},
        {g, "h.+1.ln_1.bias", NULL, false},
        {g, "h..ln_1.bias", NULL, false},
        {g, "h.99999999999999999999.ln_1.bias", NULL, false},
        {g, "h.1ln_1.bias", NULL, false},
        {g, "transformer.lm_head.weight", NULL, false},
        {g, "transformer.transformer.wte.weight", NULL, false},
        {g, "", NULL, false},
        {q, "layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.k_norm.weight", false},
        {q, "embed_tokens.weight", "model.embed_tokens.weight", false},
        {q, "norm.weight", "model.norm.weight", false},
        {q, "lm_head.weight", "model.embed_tokens.weight", false},
        {q, "model.layers.0.self_attn.rotary_emb.inv_freq", NULL, true},
        {q, "model.rotary_emb.inv_freq", NULL, true},
        {q, "model.layers.0.self_attn.q_proj.bias", NULL, false},
        {q, "score.weight", NULL, false},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        bool buffer = !samples[i].buffer;
        int64_t t = dt_arch_tensor_by_name(samples[i].a, samples[i].name, &buffer);
        if ((t >= 0) != (samples[i].is != NULL) || buffer != samples[i].buffer)
            fail_msg("'%s' gave %lld, buffer %d", samples[i].name, (long long)t, buffer);
        if (t >= 0)
            assert_string_equal(samples[i].a->tensors[t].name, samples[i].is);
    }
    dt_arch_free(g);
    dt_arch_free(q);
}

static void slots(void **state)
{
    (void)state;
    struct dt_arch *g = arch(GPT2_124M), *q = arch(QWEN3);
    for (enum dt_slot s = 0; s < DT_SLOTS; s++) {
        struct dt_slot_info f = dt_arch_slot(q, s, DT_F32), b = dt_arch_slot(q, s, DT_BF16);
        assert_non_null(f.name);
        assert_true(s == DT_SLOT_LOSS ? f.dtype == DT_F64 : f.dtype == DT_F32);
        bool gemm = s == DT_SLOT_N1 || s == DT_SLOT_N2 || s == DT_SLOT_ACT || s == DT_SLOT_NF;
        assert_int_equal(b.dtype, gemm ? DT_BF16 : f.dtype);
        assert_int_equal(f.per_layer, s <= DT_SLOT_GU);
        assert_int_equal(f.chunked, s == DT_SLOT_LOGITS);
    }
    assert_int_equal(dt_arch_slot(q, DT_SLOT_QKV, DT_F32).width, 8 * 6);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_QKR, DT_F32).width, 6 * 6);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_QK_RSTD, DT_F32).width, 6);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_ATT, DT_F32).width, 24);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_GU, DT_F32).width, 80);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_MEAN1, DT_F32).width, 0);
    assert_int_equal(dt_arch_slot(q, DT_SLOT_LOGITS, DT_F32).width, 64);
    assert_int_equal(dt_arch_slot(g, DT_SLOT_GU, DT_F32).width, 3072);
    assert_int_equal(dt_arch_slot(g, DT_SLOT_DACT, DT_F32).width, 3072);
    assert_int_equal(dt_arch_slot(g, DT_SLOT_MEANF, DT_F32).width, 1);
    assert_int_equal(dt_arch_slot(g, DT_SLOT_QKR, DT_F32).width, 0);
    assert_int_equal(dt_arch_slot(g, DT_SLOT_LSE, DT_F32).width, 12);
    assert_int_equal(dt_arch_loss_chunk(g, 4096), 1280);
    assert_int_equal(dt_arch_loss_chunk(g, 100), 100);
    assert_int_equal(dt_arch_loss_chunk(q, 1 << 20), 1 << 20);
    dt_arch_free(g);
    dt_arch_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_gpt2),    cmocka_unit_test(execution_order),
        cmocka_unit_test(gradient_kinds), cmocka_unit_test(names_and_buffers),
        cmocka_unit_test(slots),
    };
    dt_log_set_level(DT_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
