/* Dispatch and the instruction list: nothing forgotten, nothing before what it needs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static const char tiny[] = "{\"model_type\":\"llama\",\"hidden_size\":16,\"num_hidden_layers\":3,"
                           "\"num_attention_heads\":2,\"intermediate_size\":32,\"vocab_size\":64,"
                           "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";

static void plan_of(struct dt_arch **arch, bool recompute, int64_t tokens, int64_t frozen_below,
                    struct dt_plan *p)
{
    assert_int_equal(dt_arch_parse(tiny, sizeof tiny - 1, "tiny", arch), 0);
    bool *trainable = calloc((size_t)(*arch)->tensor_count, 1);
    for (int64_t i = 0; i < (*arch)->tensor_count; i++)
        trainable[i] =
            (*arch)->tensors[i].segment == DT_SEG_HEAD || (*arch)->tensors[i].layer >= frozen_below;
    dt_plan_data_parallel(*arch, trainable, recompute, tokens, 1, NULL, p);
    free(trainable);
}

static int64_t draw_below(uint64_t *draw, int64_t bound)
{
    return (int64_t)dt_rng_below((struct dt_rng_key){.seed = 3, .purpose = 98}, (*draw)++,
                                 (uint64_t)bound);
}

/* One worker's part: in the order of the batch, micro-batches full but for what did not fit. */
static void check_part(const struct dt_dispatch *d, const int64_t *length, int32_t rank,
                       int64_t limit)
{
    int64_t i = 0, tokens = 0;
    for (int64_t m = 0; m < d->microbatches; m++) {
        int64_t sum = 0;
        assert_int_equal(d->first[m], i);
        assert_true(d->first[m + 1] > i);
        for (; i < d->first[m + 1]; i++) {
            assert_int_equal(d->worker[d->sequence[i]], rank);
            assert_true(i == 0 || d->sequence[i] > d->sequence[i - 1]);
            sum += length[d->sequence[i]];
        }
        assert_int_equal(sum, d->microbatch_tokens[m]);
        assert_true(sum <= limit);
        assert_true(m == 0 ||
                    d->microbatch_tokens[m - 1] + length[d->sequence[d->first[m]]] > limit);
        tokens += sum;
    }
    assert_int_equal(i, d->sequences);
    assert_int_equal(tokens, d->tokens);
}

/* Every sequence goes to one worker; all workers compute the same answer; nobody gets more than the
 * bound that memory is sized by; unequal speed shows in the tokens. */
static void test_dispatch(void **state)
{
    (void)state;
    static const int64_t unequal[] = {1000000, 2000000, 1000000, 1500000, 3000000, 1000000};
    struct dt_arch *arch;
    struct dt_plan p;
    uint64_t draw = 0;
    plan_of(&arch, false, 64, -1, &p);
    for (int round = 0; round < 500; round++) {
        int64_t length[200], n = 0, total = 0, seen = 0, tokens = 0;
        uint64_t hash = 0;
        p.workers = (int32_t)draw_below(&draw, 6) + 1;
        p.rates = round % 2 ? unequal : NULL;
        int64_t wanted = draw_below(&draw, 1000) + 1;
        while (n < 200 && total < wanted)
            total += length[n++] = 1 + draw_below(&draw, 64);
        for (int32_t w = 0; w < p.workers; w++) {
            struct dt_dispatch d;
            int64_t most = dt_dispatch_most_tokens(&p, w, total, 64);
            assert_int_equal(dt_dispatch_new(&p, n, most, &d), 0);
            assert_int_equal(dt_dispatch_fill(&d, &p, w, length, n), 0);
            check_part(&d, length, w, 64);
            assert_true(d.tokens <= most);
            assert_true(w == 0 || d.hash == hash);
            hash = d.hash;
            seen += d.sequences;
            tokens += d.tokens;
            int64_t was = length[n / 2];
            length[n / 2] = was % 64 + 1;
            assert_int_equal(dt_dispatch_fill(&d, &p, w, length, n), 0);
            assert_true(d.hash != hash);
            length[n / 2] = was;
            dt_dispatch_free(&d);
        }
        assert_int_equal(seen, n);
        assert_int_equal(tokens, total);
    }
    dt_arch_free(arch);
}

static void test_dispatch_refuses(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_plan p;
    struct dt_dispatch d;
    int64_t long_one[] = {65};
    plan_of(&arch, false, 64, -1, &p);
    assert_int_equal(dt_dispatch_new(&p, 1, 65, &d), 0);
    assert_int_equal(dt_dispatch_fill(&d, &p, 0, long_one, 1), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "microbatch.tokens"));
    dt_dispatch_free(&d);
    dt_arch_free(arch);
}

/* Proportional: with rates 1, 2, 4 and many short sequences the parts are as 4 : 2 : 1. */
static void test_dispatch_rates(void **state)
{
    (void)state;
    static const int64_t rates[] = {1000000, 2000000, 4000000};
    struct dt_arch *arch;
    struct dt_plan p;
    struct dt_dispatch d;
    int64_t length[700];
    plan_of(&arch, false, 64, -1, &p);
    p.workers = 3, p.rates = rates;
    for (int i = 0; i < 700; i++)
        length[i] = 8;
    assert_int_equal(dt_dispatch_new(&p, 700, 5600, &d), 0);
    for (int32_t w = 0; w < 3; w++) {
        assert_int_equal(dt_dispatch_fill(&d, &p, w, length, 700), 0);
        assert_in_range(d.sequences,
                        (w == 0   ? 400
                         : w == 1 ? 200
                                  : 100) -
                            2,
                        (w == 0   ? 400
                         : w == 1 ? 200
                                  : 100) +
                            2);
    }
    dt_dispatch_free(&d);
    dt_arch_free(arch);
}

/* Runs the list against a model of what each segment needs: inputs in place, activations kept. */
static void check_list(const struct dt_plan *p, int64_t microbatches, int64_t lowest)
{
    struct dt_schedule s;
    int64_t L = p->layers;
    assert_int_equal(dt_schedule_new(p, microbatches, &s), 0);
    dt_schedule_fill(&s, p, microbatches, true);
    assert_true(s.count <= s.capacity);
    int64_t backward[64] = {0}, reduced[64] = {0}, gathered[64] = {0}, current = -1;
    bool settled = false;
    int64_t held_layer = -1; /* with recomputation: whose activations the shared slots hold */
    bool updated = false;
    for (int64_t i = 0; i < s.count; i++) {
        const struct dt_instruction *x = &s.list[i];
        int64_t id = x->segment == DT_SEG_EMBED  ? 0
                     : x->segment == DT_SEG_HEAD ? 2 * L + 1
                                                 : 1 + 2 * x->layer + (x->segment == DT_SEG_MLP);
        assert_false(updated);
        switch (x->op) {
        case DT_OP_GATHER:
            gathered[id] = 1;
            break;
        case DT_OP_GATHERED:
            assert_int_equal(gathered[id], 1);
            gathered[id] = 2;
            break;
        case DT_OP_ZERO:
            assert_int_equal(microbatches, 0);
            assert_int_equal(reduced[id], 0);
            break;
        case DT_OP_SETTLE:
            settled = true;
            break;
        case DT_OP_FORWARD:
            assert_int_equal(gathered[id], 2);
            if (x->segment == DT_SEG_EMBED)
                current = x->microbatch;
            assert_int_equal(x->microbatch, current);
            if (x->layer >= 0)
                held_layer = x->layer;
            break;
        case DT_OP_BACKWARD:
            assert_int_equal(x->microbatch, current);
            assert_int_equal(x->first, backward[id] == 0);
            assert_int_equal(reduced[id], 0);
            if (x->layer >= 0 && p->recompute)
                assert_int_equal(held_layer, x->layer);
            for (int64_t above = id + 1; above < 2 * L + 2; above++)
                assert_int_equal(backward[above], backward[id] + 1);
            backward[id]++;
            break;
        case DT_OP_REDUCE:
            assert_int_equal(backward[id], microbatches);
            reduced[id]++;
            break;
        case DT_OP_UPDATE:
            assert_true(settled);
            updated = true;
            break;
        default:
            break;
        }
    }
    for (int64_t id = 0; id < 2 * L + 2; id++) {
        int64_t layer = id == 0 ? -1 : id == 2 * L + 1 ? L : (id - 1) / 2;
        assert_int_equal(backward[id], layer >= lowest ? microbatches : 0);
        assert_int_equal(reduced[id], layer >= lowest ? 1 : 0);
    }
    assert_true(updated);
    dt_schedule_free(&s);
}

static void test_schedule(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++)
        for (int64_t lowest = -1; lowest <= 3; lowest++)
            for (int64_t m = 0; m < 5; m++) {
                struct dt_arch *arch;
                struct dt_plan p;
                plan_of(&arch, recompute, 64, lowest, &p);
                assert_int_equal(p.lowest_trainable, lowest);
                check_list(&p, m, lowest);
                dt_arch_free(arch);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch), cmocka_unit_test(test_dispatch_refuses),
        cmocka_unit_test(test_dispatch_rates), cmocka_unit_test(test_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
