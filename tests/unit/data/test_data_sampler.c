/* Batches: every sample once an epoch, the same whatever was asked before, greedy, bounded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data_test.h"

enum { SAMPLES = 57, MOST_LENGTH = 13 };

static struct dt_dataset *dataset;

/* Rows of lengths 1..MOST_LENGTH in an uneven mixture. */
static int make_dataset(void **state)
{
    char text[1 << 16] = "";
    make_dir(state);
    for (int i = 0; i < SAMPLES; i++) {
        add_to(text, sizeof text, "{\"input_ids\":[7");
        for (int k = 0; k <= (i * i + 3 * i) % MOST_LENGTH; k++)
            add_to(text, sizeof text, ",8");
        add_to(text, sizeof text, "]}\n");
    }
    const char *file = put_text("a.jsonl", text);
    struct dt_data_options o = {.files = &file,
                                .file_count = 1,
                                .max_length = MOST_LENGTH,
                                .format = "auto",
                                .end_of_text = -1,
                                .cache_dir = in_dir("cache")};
    return dt_dataset_open(&o, &dataset) == DT_OK && dt_dataset_samples(dataset) == SAMPLES ? 0
                                                                                            : -1;
}

static int drop_dataset(void **state)
{
    dt_dataset_close(dataset);
    return remove_dir(state);
}

static struct dt_sampler *sampler(int64_t tokens, int64_t sequences, bool shuffle, uint64_t seed)
{
    struct dt_sampler_options o = {
        .seed = seed, .shuffle = shuffle, .batch_tokens = tokens, .batch_sequences = sequences};
    struct dt_sampler *s;
    assert_ok(dt_sampler_new(dataset, &o, &s));
    return s;
}

static void check_epochs(int64_t tokens, int64_t sequences, bool shuffle)
{
    struct dt_sampler *s = sampler(tokens, sequences, shuffle, 5);
    int64_t step = 0, batch[SAMPLES], count, epoch, steps, before = -1, smallest = 1 << 20;
    for (int64_t e = 0; e < 4; e++) {
        int seen[SAMPLES] = {0};
        assert_ok(dt_sampler_steps(s, e + 1, &steps));
        int64_t next_length = 0, room = 0;
        for (; step < steps; step++) {
            int64_t sum = 0;
            assert_ok(dt_sampler_batch(s, step, batch, &count, &epoch));
            assert_int_equal(epoch, e);
            assert_true(count >= 1 && count <= dt_sampler_max_samples(s));
            for (int64_t i = 0; i < count; i++) {
                seen[batch[i]]++;
                sum += dt_dataset_length(dataset, batch[i]);
                if (!shuffle) {
                    assert_int_equal(batch[i], (before + 1) % SAMPLES);
                    before = batch[i];
                }
            }
            next_length = dt_dataset_length(dataset, batch[0]);
            assert_true(sum <= dt_sampler_max_tokens(s));
            if (tokens)
                assert_true(sum <= tokens || count == 1);
            if (tokens && smallest != 1 << 20) /* greedy: its first did not fit before */
                assert_true(next_length > room);
            if (sequences && step + 1 < steps)
                assert_int_equal(count, sequences);
            room = tokens - sum;
            smallest = step + 1 == steps ? 1 << 20 : next_length;
        }
        for (int i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
    }
    dt_sampler_free(s);
}

static void test_every_sample_once_an_epoch(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 7, 13, 29, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            check_epochs(sizes[i], 0, shuffle);
            check_epochs(0, sizes[i], shuffle);
        }
}

/* Stops and resumes at any steps, also backwards, give the batches of a straight run. */
static void test_any_order_of_questions(void **state)
{
    (void)state;
    enum { STEPS = 90 };
    static int64_t straight[STEPS][SAMPLES], counts[STEPS];
    for (int mode = 0; mode < 2; mode++) {
        struct dt_sampler *s = sampler(mode ? 31 : 0, mode ? 0 : 4, true, 9);
        int64_t batch[SAMPLES], count, epoch;
        for (int64_t k = 0; k < STEPS; k++)
            assert_ok(dt_sampler_batch(s, k, straight[k], &counts[k], &epoch));
        dt_sampler_free(s);
        s = sampler(mode ? 31 : 0, mode ? 0 : 4, true, 9);
        for (int64_t k = 0; k < 3 * STEPS; k++) {
            int64_t step = (k * 37 + 11) % STEPS;
            if (k % 40 == 0) { /* another process */
                dt_sampler_free(s);
                s = sampler(mode ? 31 : 0, mode ? 0 : 4, true, 9);
            }
            assert_ok(dt_sampler_batch(s, step, batch, &count, &epoch));
            assert_int_equal(count, counts[step]);
            assert_memory_equal(batch, straight[step], (size_t)count * sizeof *batch);
        }
        dt_sampler_free(s);
    }
}

static void test_seed_and_epoch_change_the_order(void **state)
{
    (void)state;
    struct dt_sampler *a = sampler(0, SAMPLES, true, 1), *b = sampler(0, SAMPLES, true, 2);
    int64_t x[SAMPLES], y[SAMPLES], z[SAMPLES], n, e;
    assert_ok(dt_sampler_batch(a, 0, x, &n, &e));
    assert_ok(dt_sampler_batch(a, 1, y, &n, &e));
    assert_ok(dt_sampler_batch(b, 0, z, &n, &e));
    assert_memory_not_equal(x, y, sizeof x);
    assert_memory_not_equal(x, z, sizeof x);
    int same_place = 0; /* one on average for random orders; 8 has odds of 1e-5 */
    for (int i = 0; i < SAMPLES; i++)
        same_place += x[i] == i;
    assert_true(same_place < 8);
    dt_sampler_free(a);
    dt_sampler_free(b);
}

static void test_bad_options(void **state)
{
    (void)state;
    struct dt_sampler *s;
    struct dt_sampler_options o = {0};
    assert_fails(dt_sampler_new(dataset, &o, &s), DT_E_CONFIG, "batch.tokens");
    o.batch_tokens = o.batch_sequences = 1;
    assert_fails(dt_sampler_new(dataset, &o, &s), DT_E_CONFIG, "batch.tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sample_once_an_epoch),
        cmocka_unit_test(test_any_order_of_questions),
        cmocka_unit_test(test_seed_and_epoch_change_the_order),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, make_dataset, drop_dataset);
}
