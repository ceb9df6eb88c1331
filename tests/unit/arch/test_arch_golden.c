/* The parity models of tests/golden/models: what config.json promises is what the files hold, and
 * rotary tables are transformers' own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS DT_TEST_DIR "/golden/models"

static void require(int rc)
{
    if (rc < 0)
        fail_msg("%s", dt_error_message());
}

static void check_tensors(const char *dir, const struct dt_arch *a)
{
    struct dt_tensor_set set;
    require(dt_tensors_open(dir, &set));
    assert_int_equal(set.count, a->tensor_count);
    char *seen = calloc((size_t)a->tensor_count, 1);
    for (size_t i = 0; i < set.count; i++) {
        const struct dt_stored *s = &set.tensors[i];
        bool buffer;
        int64_t t = dt_arch_tensor_by_name(a, s->name, &buffer);
        if (t < 0)
            fail_msg("%s: %s is not in the tensor table", dir, s->name);
        assert_false(buffer);
        assert_false(seen[t]++);
        const struct dt_tensor *want = &a->tensors[t];
        assert_int_equal(s->rank, want->rank);
        assert_int_equal(s->shape[s->rank - 1], want->cols);
        if (s->rank == 2)
            assert_int_equal(s->shape[0], want->rows);
        assert_int_equal(dt_arch_tensor(a, want->layer, want->role), t);
    }
    free(seen);
    dt_tensors_close(&set);
}

/* The table's own names are transformers': golden gradients carry them in full. */
static void check_names(const struct dt_arch *a, const struct dt_tensor_set *golden,
                        const char *prefix)
{
    for (int64_t t = 0; t < a->tensor_count; t++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, a->tensors[t].name);
        const struct dt_stored *s;
        require(dt_tensors_need(golden, name, &s));
        assert_int_equal(s->elements, a->tensors[t].rows * a->tensors[t].cols);
    }
}

/* Frequencies may differ by an ulp or two of fp32 (the two libraries' pow), which the position
 * multiplies; sine and cosine of transformers are fp32 ones. */
static void check_rope(const char *dir, const struct dt_arch *a, const struct dt_tensor_set *golden)
{
    const struct dt_stored *rope = dt_tensors_find(golden, "rope");
    if (!rope)
        return;
    const struct dt_stored *at;
    require(dt_tensors_need(golden, "rope_positions", &at));
    assert_int_equal(rope->shape[0], at->elements);
    assert_int_equal(rope->shape[2], a->rope.half);
    const int64_t positions = 70;
    float *table = malloc((size_t)dt_arch_rope_elements(a, positions) * sizeof *table);
    dt_arch_rope_table(a, positions, positions, table); /* beyond the 48 of llama_dynamic */
    for (int64_t i = 0; i < at->elements; i++) {
        int64_t p;
        memcpy(&p, at->data + (size_t)i * sizeof p, sizeof p);
        double tolerance = 1.5e-7 * (1.0 + 2.0 * (double)p) * a->rope.attention_factor;
        for (int64_t k = 0; k < 2 * a->rope.half; k++) {
            float want, got = table[p * 2 * a->rope.half + k];
            memcpy(&want, rope->data + (size_t)(i * 2 * a->rope.half + k) * sizeof want,
                   sizeof want);
            if (!(fabs((double)got - (double)want) <= tolerance))
                fail_msg("%s: position %lld, entry %lld: %.9g, transformers has %.9g", dir,
                         (long long)p, (long long)k, (double)got, (double)want);
        }
    }
    free(table);
}

static void every_model(void **state)
{
    (void)state;
    struct dt_names names;
    require(dt_dir_list(MODELS, &names));
    int models = 0, ropes = 0;
    for (size_t i = 0; i < names.count; i++) {
        char dir[DT_PATH], path[DT_PATH];
        require(dt_path_join(dir, MODELS, names.names[i]));
        if (!dt_file_is_dir(dir))
            continue;
        struct dt_arch *a;
        struct dt_tensor_set golden;
        require(dt_arch_load(dir, &a));
        require(dt_path_join(path, dir, "golden.safetensors"));
        require(dt_tensors_open(path, &golden));
        check_tensors(dir, a);
        check_names(a, &golden, strncmp(names.names[i], "adamw10", 7) == 0 ? "final." : "grad.");
        check_rope(dir, a, &golden);
        ropes += dt_tensors_find(&golden, "rope") != NULL;
        models++;
        dt_tensors_close(&golden);
        dt_arch_free(a);
    }
    dt_names_free(&names);
    assert_int_equal(models, 26);
    assert_int_equal(ropes, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
