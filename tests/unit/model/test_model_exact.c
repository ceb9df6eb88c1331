/* `reduction: exact`: what the sequences of a batch add to the accumulators, pass down and lose has
 * the same bits however they were packed, ordered and threaded; and it is the gradient. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"
#include "model/model.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE = 40, LIMIT = 58, MOST = 8 /* sequences */ };

/* ---- a model with memory ---- */

struct rig {
    struct dt_arch *arch;
    struct dt_model m;
    struct dt_arena arena;
    float **owned; /* [tensor_count] weights */
};

static int64_t elements(const struct dt_arch *a, int64_t i)
{
    return a->tensors[i].rows * a->tensors[i].cols;
}

static void *memory(int64_t count, size_t size)
{
    void *p = malloc((size_t)count * size);
    assert_non_null(p);
    return memset(p, 0x5a, (size_t)count * size); /* nothing counts on zeros */
}

static void rig_memory(struct rig *r, const struct dt_model_options *o)
{
    struct dt_arena count = {.name = "count"};
    assert_int_equal(dt_model_open(&r->m, r->arch), 0);
    dt_model_carve(&r->m, r->arch, o, &count);
    assert_int_equal(dt_arena_open(&r->arena, "test", count.used), 0);
    dt_model_carve(&r->m, r->arch, o, &r->arena);
    assert_int_equal(r->arena.used, count.used);
    dt_model_prepare(&r->m, o);
}

static void rig_open(struct rig *r, struct dt_arch *arch, enum dt_dtype compute, int64_t tokens,
                     bool exact)
{
    struct dt_model_options o = {.compute = compute,
                                 .max_tokens = tokens,
                                 .positions = arch->positions,
                                 .rope_length = arch->positions,
                                 .train = true,
                                 .exact = exact};
    *r = (struct rig){.arch = arch, .owned = calloc((size_t)arch->tensor_count, sizeof(float *))};
    rig_memory(r, &o);
    for (int64_t i = 0; i < arch->tensor_count; i++) {
        int64_t n = elements(arch, i);
        r->m.weight[i] = r->owned[i] = memory(n, sizeof(float));
        dt_k->fill_normal(r->owned[i], n, 0, 7, (uint64_t)i, arch->tensors[i].rank == 1 ? 1 : 0.2f);
        if (exact)
            r->m.fixed[i] = memory(n, sizeof(int64_t));
        else
            r->m.gradient[i] = memory(n, sizeof(float));
    }
    r->m.fixed_scale = SCALE;
    r->m.fixed_limit = LIMIT;
}

static void rig_close(struct rig *r)
{
    for (int64_t i = 0; i < r->arch->tensor_count; i++) {
        free(r->owned[i]);
        free(r->m.fixed[i]);
        free(r->m.gradient[i]);
    }
    free(r->owned);
    dt_model_close(&r->m);
    dt_arena_close(&r->arena);
}

/* ---- sequences, and how they are packed ---- */

struct order {
    int n;
    int64_t length[MOST]; /* of sequence 0, 1, ... */
    int place[MOST];      /* which comes first, second, ... */
    int64_t tokens;       /* most of a micro-batch */
};

static uint32_t mixed(uint32_t sequence, uint32_t t)
{
    uint32_t x = sequence * 2654435761u + t * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

/* What a pass leaves of each sequence: its loss, and what it passes below the embedding. */
struct trace {
    double loss[MOST];
    float *dx[MOST]; /* [length, C] */
};

struct packed {
    struct dt_microbatch b;
    int32_t *start, *ids, *targets, *position;
};

static void packed_open(struct packed *p, int64_t tokens)
{
    p->start = memory(MOST + 1, sizeof(int32_t));
    p->ids = memory(tokens, sizeof(int32_t));
    p->targets = memory(tokens, sizeof(int32_t));
    p->position = memory(tokens, sizeof(int32_t));
    p->b = (struct dt_microbatch){
        .start = p->start, .ids = p->ids, .targets = p->targets, .position = p->position};
}

static void packed_close(struct packed *p)
{
    free(p->start);
    free(p->ids);
    free(p->targets);
    free(p->position);
}

static void packed_add(struct packed *p, int sequence, int64_t length, int64_t V)
{
    p->start[p->b.sequences++] = (int32_t)p->b.T;
    for (int64_t t = 0; t < length; t++) {
        uint32_t here = mixed((uint32_t)sequence, (uint32_t)t);
        int64_t row = p->b.T++;
        p->ids[row] = (int32_t)(here % (uint32_t)V);
        p->targets[row] = here % 5 == 0
                              ? -1
                              : (int32_t)(mixed((uint32_t)sequence, (uint32_t)t + 1) % (uint32_t)V);
        p->position[row] = (int32_t)t;
    }
    p->start[p->b.sequences] = (int32_t)p->b.T;
}

static void step(struct dt_model *m, bool first)
{
    int64_t L = m->arch->L;
    dt_model_forward(m, DT_SEG_EMBED, -1);
    for (int64_t l = 0; l < L; l++) {
        dt_model_forward(m, DT_SEG_ATTENTION, l);
        dt_model_forward(m, DT_SEG_MLP, l);
    }
    dt_model_forward(m, DT_SEG_HEAD, -1);
    dt_model_backward(m, DT_SEG_HEAD, -1, first);
    for (int64_t l = L - 1; l >= 0; l--) {
        dt_model_backward(m, DT_SEG_MLP, l, first);
        dt_model_backward(m, DT_SEG_ATTENTION, l, first);
    }
    dt_model_backward(m, DT_SEG_EMBED, -1, first);
}

static void keep(const struct rig *r, const struct order *o, int from, struct trace *trace)
{
    int64_t C = r->arch->C;
    const float *dx = r->m.slot[DT_SLOT_DX * (r->arch->L + 1)]; /* [T, C] */
    for (int64_t s = 0; s < r->m.batch.sequences; s++) {
        int who = o->place[from + s];
        trace->loss[who] = dt_model_sequence_loss(&r->m, s);
        trace->dx[who] = memory(o->length[who] * C, sizeof(float));
        memcpy(trace->dx[who], dx + r->m.batch.start[s] * C,
               (size_t)(o->length[who] * C) * sizeof(float));
    }
}

/* Forward and backward of all sequences, in micro-batches of at most o->tokens. */
static void pass(struct rig *r, const struct order *o, struct trace *trace)
{
    struct packed p;
    for (int i = 0, next; i < o->n; i = next) {
        packed_open(&p, o->tokens);
        for (next = i; next < o->n && p.b.T + o->length[o->place[next]] <= o->tokens; next++)
            packed_add(&p, o->place[next], o->length[o->place[next]], r->arch->V);
        assert_true(next > i);
        r->m.batch = p.b;
        step(&r->m, i == 0);
        keep(r, o, i, trace);
        packed_close(&p);
    }
}

static void trace_close(struct trace *t)
{
    for (int i = 0; i < MOST; i++)
        free(t->dx[i]);
    *t = (struct trace){0};
}

/* Tensors whose accumulators (or gradients) differ, losses and gradients passed down included. */
static int differences(const struct rig *a, const struct trace *ta, const struct rig *b,
                       const struct trace *tb, const struct order *o)
{
    int count = 0;
    for (int64_t i = 0; i < a->arch->tensor_count; i++) {
        size_t n = (size_t)elements(a->arch, i);
        count += a->m.exact ? memcmp(a->m.fixed[i], b->m.fixed[i], n * sizeof(int64_t)) != 0
                            : memcmp(a->m.gradient[i], b->m.gradient[i], n * sizeof(float)) != 0;
    }
    for (int s = 0; s < o->n; s++) {
        size_t n = (size_t)(o->length[s] * a->arch->C);
        assert_true(ta->dx[s] && tb->dx[s]); /* every sequence took part */
        count += memcmp(&ta->loss[s], &tb->loss[s], sizeof(double)) != 0;
        count += memcmp(ta->dx[s], tb->dx[s], n * sizeof(float)) != 0;
    }
    return count;
}

static const struct order plain = {
    .n = 7,
    .length = {37, 1, 96, 64, 5, 83, 65},
    .place = {0, 1, 2, 3, 4, 5, 6},
    .tokens = 400,
};

static struct order ordered(const struct order *o, int64_t tokens, int stride)
{
    struct order x = *o;
    x.tokens = tokens;
    for (int i = 0; i < o->n; i++) /* stride and n have no common factor */
        x.place[i] = (i * stride + stride / 2) % o->n;
    return x;
}

static struct dt_arch *load(const char *name)
{
    char path[512];
    struct dt_arch *a = NULL;
    snprintf(path, sizeof path, "%s/golden/models/%s", DT_TEST_DIR, name);
    assert_int_equal(dt_arch_load(path, &a), 0);
    return a;
}

/* ---- the bits ---- */

/* The same batch: packed whole, a sequence at a time, otherwise; orders; teams. */
static void same_bits(struct dt_arch *arch, enum dt_dtype compute, const struct order *base)
{
    static const struct {
        int64_t tokens; /* 0: the longest sequence */
        int stride, threads;
    } ways[] = {{0, 1, 1}, {400, 6, 2}, {170, 3, 1}, {170, 1, 5}, {0, 5, 2}, {2000, 2, 5}};
    struct rig want, got;
    struct trace tw = {0}, tg = {0};
    int64_t longest = 0;
    for (int i = 0; i < base->n; i++)
        longest = base->length[i] > longest ? base->length[i] : longest;
    dt_ops_set_threads(1);
    rig_open(&want, arch, compute, base->tokens, true);
    pass(&want, base, &tw);
    assert_int_equal(want.m.fixed_flags, 0);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int64_t tokens = ways[w].tokens > longest ? ways[w].tokens : longest;
        struct order o = ordered(base, tokens, ways[w].stride);
        dt_ops_set_threads(ways[w].threads);
        rig_open(&got, arch, compute, tokens, true);
        pass(&got, &o, &tg);
        int bad = differences(&want, &tw, &got, &tg, base);
        if (bad || got.m.fixed_flags)
            fail_msg("%s, %s, way %zu: %d tensors or sequences differ, flags %d", dt_k->name,
                     dt_family_name(arch->family), w, bad, got.m.fixed_flags);
        trace_close(&tg);
        rig_close(&got);
    }
    dt_ops_set_threads(1);
    trace_close(&tw);
    rig_close(&want);
}

static const char *const models[] = {"gpt2", "llama_mqa", "llama_tied", "qwen2", "qwen3_window"};
enum { MODELS = sizeof models / sizeof *models };

static void packing_order_and_team_do_not_show(void **state)
{
    (void)state;
    static const char *const sets[] = {"portable", "avx2", "avx512", "avx512bf16"};
    for (int set = 0; set < 4; set++) {
        if (!dt_kernels_find(sets[set]))
            continue;
        dt_kernels_select(sets[set]);
        for (int i = 0; i < MODELS; i++) {
            struct dt_arch *arch = load(models[i]);
            same_bits(arch, DT_F32, &plain);
            same_bits(arch, DT_BF16, &plain);
            dt_arch_free(arch);
        }
    }
    dt_kernels_select("reference");
    struct order few = plain;
    few.length[2] = few.length[5] = 20; /* plain loops are slow */
    struct dt_arch *arch = load("qwen3_window");
    same_bits(arch, DT_F32, &few);
    dt_arch_free(arch);
    dt_kernels_select("auto");
}

static struct dt_arch *parse(const char *json)
{
    struct dt_arch *a = NULL;
    assert_int_equal(dt_arch_parse(json, strlen(json), "test", &a), 0);
    return a;
}

/* ---- the values ---- */

/* ‖exact - float‖ <= 1e-6 (‖g_t‖ + ‖g‖): numerics.md, gradients of one step */
static void compare_with_float(struct dt_arch *arch, const struct order *o)
{
    struct rig fixed, plain_rig;
    struct trace tf = {0}, tp = {0};
    rig_open(&fixed, arch, DT_F32, o->tokens, true);
    rig_open(&plain_rig, arch, DT_F32, o->tokens, false);
    pass(&fixed, o, &tf);
    pass(&plain_rig, o, &tp);
    double all = 0, off[512], norm[512];
    assert_true(arch->tensor_count <= 512);
    for (int64_t i = 0; i < arch->tensor_count; i++) {
        int64_t n = elements(arch, i);
        float *g = memory(n, sizeof *g);
        dt_k->fixed_get(g, fixed.m.fixed[i], n, SCALE, 1);
        off[i] = norm[i] = 0;
        for (int64_t k = 0; k < n; k++) {
            double want = (double)plain_rig.m.gradient[i][k];
            off[i] += ((double)g[k] - want) * ((double)g[k] - want);
            norm[i] += want * want;
        }
        all += norm[i];
        free(g);
    }
    assert_true(all > 0);
    for (int64_t i = 0; i < arch->tensor_count; i++)
        if (!(sqrt(off[i]) <= 1e-6 * (sqrt(norm[i]) + sqrt(all))))
            fail_msg("%s: off by %g, norm %g, all %g", arch->tensors[i].name, sqrt(off[i]),
                     sqrt(norm[i]), sqrt(all));
    for (int s = 0; s < o->n; s++) /* what goes down and the loss do not pass accumulators */
        assert_true(tf.loss[s] == tp.loss[s]);
    trace_close(&tf);
    trace_close(&tp);
    rig_close(&fixed);
    rig_close(&plain_rig);
}

static void it_is_the_gradient(void **state)
{
    (void)state;
    struct order pieces = ordered(&plain, 170, 3);
    for (int i = 0; i < MODELS; i++) {
        struct dt_arch *arch = load(models[i]);
        compare_with_float(arch, &plain);
        compare_with_float(arch, &pieces);
        dt_arch_free(arch);
    }
}

/* Weights that the tile does not hold whole, stored either way. */
static void boxes_join_without_a_seam(void **state)
{
    (void)state;
    static const char *const wide[] = {
        "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_layer\": 1, "
        "\"n_embd\": 1040, \"n_inner\": 1100, \"n_head\": 13, \"n_positions\": 32, "
        "\"vocab_size\": 1031, \"activation_function\": \"gelu_new\", "
        "\"layer_norm_epsilon\": 1e-5}",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
        "\"num_hidden_layers\": 1, \"hidden_size\": 1040, \"intermediate_size\": 1100, "
        "\"num_attention_heads\": 13, \"num_key_value_heads\": 1, "
        "\"max_position_embeddings\": 32, \"vocab_size\": 1031, \"hidden_act\": \"silu\", "
        "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}",
    };
    struct order o = plain;
    for (int s = 0; s < o.n; s++)
        o.length[s] = o.length[s] / 9 + 1;
    o.tokens = 60;
    for (int i = 0; i < 2; i++) {
        struct dt_arch *arch = parse(wide[i]);
        same_bits(arch, DT_F32, &o);
        compare_with_float(arch, &o);
        dt_arch_free(arch);
    }
}

/* A vocabulary that makes the head cut its addends: after 128 rows of a sequence. */
static void a_large_vocabulary_is_cut_by_the_sequence(void **state)
{
    (void)state;
    struct dt_arch *arch =
        parse("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
              "\"num_hidden_layers\": 1, \"hidden_size\": 8, \"intermediate_size\": 8, "
              "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
              "\"max_position_embeddings\": 300, \"vocab_size\": 300000, "
              "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, "
              "\"tie_word_embeddings\": true}");
    assert_int_equal(dt_arch_loss_chunk(arch, INT64_MAX), 128);
    struct order o = {.n = 3, .length = {40, 270, 20}, .place = {0, 1, 2}, .tokens = 330};
    struct order alone = ordered(&o, 270, 2), together = ordered(&o, 330, 1);
    struct rig want, got;
    struct trace tw = {0}, tg = {0};
    rig_open(&want, arch, DT_F32, 270, true);
    pass(&want, &alone, &tw);
    rig_open(&got, arch, DT_F32, 330, true);
    pass(&got, &together, &tg);
    assert_int_equal(differences(&want, &tw, &got, &tg, &o), 0);
    trace_close(&tw);
    trace_close(&tg);
    rig_close(&want);
    rig_close(&got);
    compare_with_float(arch, &o);
    dt_arch_free(arch);
}

/* Without fixed point the packing does show: the comparison sees what it is there to see. */
static void floats_show_the_packing(void **state)
{
    (void)state;
    struct dt_arch *arch = load("gpt2");
    struct order back = ordered(&plain, 170, 6);
    struct rig a, b;
    struct trace ta = {0}, tb = {0};
    rig_open(&a, arch, DT_F32, 400, false);
    rig_open(&b, arch, DT_F32, 170, false);
    pass(&a, &plain, &ta);
    pass(&b, &back, &tb);
    assert_true(differences(&a, &ta, &b, &tb, &plain) > 10);
    trace_close(&ta);
    trace_close(&tb);
    rig_close(&a);
    rig_close(&b);
    dt_arch_free(arch);
}

static void frozen_tensors_change_nothing_else(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct dt_arch *arch = load(models[i]);
        struct rig want, got;
        struct trace tw = {0}, tg = {0};
        rig_open(&want, arch, DT_F32, 400, true);
        rig_open(&got, arch, DT_F32, 400, true);
        for (int64_t t = 0; t < arch->tensor_count; t += 2) {
            free(got.m.fixed[t]);
            got.m.fixed[t] = NULL;
        }
        pass(&want, &plain, &tw);
        pass(&got, &plain, &tg);
        for (int64_t t = 1; t < arch->tensor_count; t += 2)
            assert_memory_equal(want.m.fixed[t], got.m.fixed[t],
                                (size_t)elements(arch, t) * sizeof(int64_t));
        for (int s = 0; s < plain.n; s++)
            assert_memory_equal(tw.dx[s], tg.dx[s],
                                (size_t)(plain.length[s] * arch->C) * sizeof(float));
        trace_close(&tw);
        trace_close(&tg);
        rig_close(&want);
        rig_close(&got);
        dt_arch_free(arch);
    }
}

/* ---- the flags ---- */

static int flags_of(struct dt_arch *arch, int scale, int limit, float first_weight)
{
    struct rig r;
    struct trace t = {0};
    rig_open(&r, arch, DT_F32, 400, true);
    r.m.fixed_scale = scale;
    r.m.fixed_limit = limit;
    if (first_weight != 0)
        r.owned[arch->tensor_count - 1][0] = first_weight;
    pass(&r, &plain, &t);
    int flags = r.m.fixed_flags;
    trace_close(&t);
    rig_close(&r);
    return flags;
}

static void infinity_and_overflow_raise_their_flags(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct dt_arch *arch = load(models[i]);
        assert_int_equal(flags_of(arch, SCALE, LIMIT, 0), 0);
        assert_true(flags_of(arch, SCALE, LIMIT, INFINITY) & DT_FIXED_NONFINITE);
        assert_true(flags_of(arch, SCALE, LIMIT, NAN) & DT_FIXED_NONFINITE);
        assert_int_equal(flags_of(arch, 90, LIMIT, 0), DT_FIXED_OVERFLOW);
        assert_int_equal(flags_of(arch, SCALE, 20, 0), DT_FIXED_OVERFLOW);
        assert_int_equal(flags_of(arch, SCALE - 12, LIMIT, 0), 0);
        dt_arch_free(arch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_order_and_team_do_not_show),
        cmocka_unit_test(it_is_the_gradient),
        cmocka_unit_test(boxes_join_without_a_seam),
        cmocka_unit_test(a_large_vocabulary_is_cut_by_the_sequence),
        cmocka_unit_test(floats_show_the_packing),
        cmocka_unit_test(frozen_tensors_change_nothing_else),
        cmocka_unit_test(infinity_and_overflow_raise_their_flags),
    };
    dt_kernels_select("auto");
    dt_ops_set_threads(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
