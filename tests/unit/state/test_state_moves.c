/* The state on one worker: home and compute kept apart give the bits of home and compute being one;
 * save and load are inverse; frozen tensors keep the type they came in. (Several workers:
 * test_state_workers.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "state/state.h"

#include <stdlib.h>
#include <string.h>

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":40,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":72,"
    "\"vocab_size\":90,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":false}";

static struct dt_arch *arch;
static char dir[256];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/ductile-state-XXXXXX");
    return dt_kernels_select("auto") < 0 || !mkdtemp(dir) ||
           dt_arch_parse(config, sizeof config - 1, "tiny", &arch) < 0;
}

static int teardown(void **state)
{
    (void)state;
    dt_arch_free(arch);
    return dt_remove_tree(dir);
}

static void fill_part(struct dt_part *p, float *array, float seed)
{
    for (int64_t i = 0; i < p->space.elements; i++)
        array[i] = seed + (float)(i % 977) * 0.25f;
}

static void test_block_is_one_thing(void **state)
{
    (void)state;
    struct dt_state s;
    struct dt_state_options o = {.kind = DT_STATE_TRAIN};
    assert_int_equal(dt_state_open(arch, &o, &s), 0);
    assert_int_equal(dt_space_block_edge(&s.parts[0].space, DT_BLOCK + 1), DT_BLOCK);
    assert_int_equal(dt_space_block_edge(&s.parts[0].space, DT_BLOCK - 1), 0);
    dt_state_close(&s);
}

/* Gather brings every weight to the model's addresses, reduce brings every gradient home, segment
 * by segment. */
static void test_apart_and_together(void **state)
{
    (void)state;
    struct dt_state s[2];
    for (int apart = 0; apart < 2; apart++) {
        struct dt_state_options o = {.kind = DT_STATE_TRAIN, .copy_compute = apart};
        assert_int_equal(dt_state_open(arch, &o, &s[apart]), 0);
        dt_state_init(&s[apart], 5);
        fill_part(&s[apart].parts[0], s[apart].parts[0].box_gradient.real, 1);
        for (int seg = DT_SEG_EMBED; seg <= DT_SEG_HEAD; seg++)
            for (int64_t l = -1; l < arch->L; l++) {
                assert_int_equal(dt_state_gather_start(&s[apart], (enum dt_segment_kind)seg, l), 0);
                assert_int_equal(dt_state_gather_wait(&s[apart], (enum dt_segment_kind)seg, l), 0);
                assert_int_equal(dt_state_reduce_start(&s[apart], (enum dt_segment_kind)seg, l), 0);
            }
        assert_int_equal(dt_state_settle(&s[apart]), 0);
    }
    const float *w[2][64];
    float *g[2][64];
    assert_true(arch->tensor_count <= 64);
    for (int k = 0; k < 2; k++)
        dt_state_addresses(&s[k], w[k], g[k], NULL);
    assert_ptr_equal(w[0][0], s[0].parts[0].master);
    assert_ptr_not_equal(w[1][0], s[1].parts[0].master);
    for (int64_t i = 0; i < arch->tensor_count; i++) {
        size_t bytes = (size_t)(arch->tensors[i].rows * arch->tensors[i].cols) * sizeof(float);
        assert_memory_equal(w[0][i], w[1][i], bytes);
    }
    size_t all = (size_t)s[0].parts[0].space.elements * sizeof(float);
    assert_memory_equal(s[0].parts[0].gradient.real, s[1].parts[0].gradient.real, all);
    size_t counted[2];
    for (int k = 0; k < 2; k++) {
        struct dt_state_options o = {.kind = DT_STATE_TRAIN, .copy_compute = k};
        assert_int_equal(dt_state_bytes(arch, &o, &counted[k]), 0);
        assert_int_equal(counted[k], s[k].arena.used);
        dt_state_close(&s[k]);
    }
    assert_true(counted[1] > counted[0]);
}

static void save_and_open(struct dt_state *s, int64_t step, struct dt_checkpoint *c)
{
    struct dt_checkpoint_writer *w;
    struct dt_checkpoint_part *part;
    struct dt_state_file files[DT_STATE_FILES];
    char path[DT_PATH], name[256];
    int first = 0, file;
    size_t count;
    json_t *trainer = json_pack("{s:i}", "step", (int)step);
    assert_int_equal(dt_checkpoint_begin(dir, step, &w), 0);
    assert_int_equal(dt_checkpoint_put(w, "config.json", config, sizeof config - 1), 0);
    assert_int_equal(dt_checkpoint_put_json(w, "trainer.json", trainer), 0);
    assert_int_equal(dt_state_files(arch, s->trainable, s->frozen_dtype, files), 0);
    for (int k = 0; k < DT_STATE_FILES; k++) {
        snprintf(name, sizeof name, "%s%s%s", files[k].folder, files[k].folder[0] ? "/" : "",
                 files[k].name);
        assert_int_equal(dt_checkpoint_add(w, name, files[k].plan.files[0].size, &file), 0);
        first = k == 0 ? file : first;
    }
    dt_state_files_free(files);
    assert_int_equal(dt_state_part_open(dt_checkpoint_temp(w), &part), 0);
    assert_int_equal(dt_state_save(s, part), 0);
    assert_int_equal(dt_checkpoint_part_sync(part), 0);
    const struct dt_checkpoint_range *r = dt_checkpoint_part_ranges(part, &count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(
            dt_checkpoint_claim(w, first + r[i].file, r[i].offset, r[i].length, r[i].hash), 0);
    dt_checkpoint_part_close(part);
    if (dt_checkpoint_commit(w, path) < 0)
        fail_msg("%s", dt_error_message());
    json_decref(trainer);
    assert_int_equal(dt_checkpoint_verify(path), 0);
    if (dt_checkpoint_open(path, c) < 0)
        fail_msg("%s", dt_error_message());
}

static void test_save_and_load(void **state)
{
    (void)state;
    bool trainable[64];
    for (int frozen = 0; frozen < 2; frozen++) {
        struct dt_state a, b;
        struct dt_checkpoint c;
        for (int64_t i = 0; i < arch->tensor_count; i++)
            trainable[i] = !frozen || i % 3 > 0;
        struct dt_state_options o = {.kind = DT_STATE_TRAIN, .trainable = trainable};
        assert_int_equal(dt_state_open(arch, &o, &a), 0);
        assert_int_equal(dt_state_open(arch, &o, &b), 0);
        dt_state_init(&a, 9);
        for (int64_t i = 0; frozen && i < arch->tensor_count;
             i += 3) { /* frozen ones came as bf16 */
            a.frozen_dtype[i] = DT_BF16;
            for (int64_t k = 0; k < arch->tensors[i].rows * arch->tensors[i].cols; k++)
                a.frozen[i][k] = (float)(k % 5) * 0.5f;
        }
        fill_part(&a.parts[0], a.parts[0].exp_avg, 3);
        fill_part(&a.parts[0], a.parts[0].exp_avg_sq, 4);
        save_and_open(&a, 7 + frozen, &c);
        assert_int_equal(dt_state_load_checkpoint(&b, &c), 0);
        size_t all = (size_t)a.parts[0].space.elements * sizeof(float);
        assert_memory_equal(a.parts[0].master, b.parts[0].master, all);
        assert_memory_equal(a.parts[0].exp_avg, b.parts[0].exp_avg, all);
        assert_memory_equal(a.parts[0].exp_avg_sq, b.parts[0].exp_avg_sq, all);
        assert_int_equal(b.parts[0].stamp, 7 + frozen);
        for (int64_t i = 0; i < arch->tensor_count; i++)
            if (!trainable[i]) {
                assert_memory_equal(a.frozen[i], b.frozen[i],
                                    (size_t)(arch->tensors[i].rows * arch->tensors[i].cols) *
                                        sizeof(float));
                assert_int_equal(dt_tensors_find(&c.model, arch->tensors[i].name)->dtype, DT_BF16);
            }
        dt_checkpoint_close(&c);
        dt_state_close(&a);
        dt_state_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_is_one_thing),
        cmocka_unit_test(test_apart_and_together),
        cmocka_unit_test(test_save_and_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
