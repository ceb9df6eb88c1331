/* Files to samples: what is read, cut, truncated, skipped, cached, split. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data_test.h"

#include <sys/resource.h>
#include <signal.h>
#include <unistd.h>

static struct dt_data_options options_for(const char *const *files, int64_t count)
{
    return (struct dt_data_options){.files = files,
                                    .file_count = count,
                                    .max_length = 4,
                                    .format = "auto",
                                    .chat_template = "auto",
                                    .end_of_text = -1,
                                    .cache_dir = in_dir("cache")};
}

/* Every token but a document's first is predicted exactly once, and pieces overlap by one. */
static void test_long_documents_are_cut(void **state)
{
    (void)state;
    const char *file = put_text("a.jsonl", "{\"input_ids\": [1,2,3,4,5,6,7,8,9,10]}\n"
                                           "{\"input_ids\": [11,12]}\n"
                                           "{\"input_ids\": [21,22,23,24,25]}\n");
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    assert_ok(dt_dataset_open(&o, &d));
    static const int32_t want[5][5] = {{4, 1, 2, 3, 4}, {4, 5, 6, 7, 8}, {1, 9}, {1, 11},
                                       {4, 21, 22, 23, 24}};
    assert_int_equal(dt_dataset_samples(d), 5);
    assert_int_equal(dt_dataset_tokens(d), 9 + 1 + 4);
    assert_int_equal(dt_dataset_loss_tokens(d), 9 + 1 + 4);
    assert_int_equal(dt_dataset_bytes(d), 0);
    for (int64_t s = 0; s < 5; s++) {
        int32_t ids[4], targets[4];
        assert_int_equal(dt_dataset_length(d, s), want[s][0]);
        dt_dataset_read(d, s, ids, targets);
        for (int i = 0; i < want[s][0]; i++) {
            assert_int_equal(ids[i], want[s][i + 1]);
            assert_int_equal(targets[i], ids[i] + 1);
        }
    }
    dt_dataset_close(d);
}

static void test_labels_mask_and_rows_are_truncated(void **state)
{
    (void)state;
    const char *file = put_text(
        "l.jsonl", "{\"input_ids\":[1,2,3,4,5,6,7],\"labels\":[-100,-100,3,4,-100,6,7]}\n"
                   "{\"input_ids\":[8,9],\"labels\":[8,9]}\n");
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    int32_t ids[8], targets[8];
    assert_ok(dt_dataset_open(&o, &d));
    assert_int_equal(dt_dataset_samples(d), 2);
    assert_int_equal(dt_dataset_length(d, 0), 4);
    dt_dataset_read(d, 0, ids, targets);
    static const int32_t want_ids[4] = {1, 2, 3, 4}, want_targets[4] = {-1, 3, 4, -1};
    assert_memory_equal(ids, want_ids, sizeof want_ids);
    assert_memory_equal(targets, want_targets, sizeof want_targets);
    assert_int_equal(dt_dataset_loss_tokens(d), 2 + 1);
    dt_dataset_close(d);
    /* cut so short that nothing trains: named with its line, or left out */
    o.max_length = 1;
    assert_fails(dt_dataset_open(&o, &d), DT_E_DATA, "line 1: cut to max_length 1");
    o.on_bad_row = DT_BAD_ROW_SKIP;
    assert_ok(dt_dataset_open(&o, &d));
    assert_int_equal(dt_dataset_samples(d), 1);
    dt_dataset_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_long_documents_are_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_labels_mask_and_rows_are_truncated, make_dir,
                                        remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
