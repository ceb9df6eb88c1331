/* Files to samples: what is read, cut, truncated, skipped, cached, split. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data_test.h"

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
    static const int32_t want[5][5] = {
        {4, 1, 2, 3, 4}, {4, 5, 6, 7, 8}, {1, 9}, {1, 11}, {4, 21, 22, 23, 24}};
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
    const char *file =
        put_text("l.jsonl", "{\"input_ids\":[1,2,3,4,5,6,7],\"labels\":[-100,-100,3,4,-100,6,7]}\n"
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

static void put_rows(const char *name, int count, int first)
{
    char text[1 << 16] = "", row[64];
    for (int i = first; i < first + count; i++) {
        snprintf(row, sizeof row, "{\"input_ids\":[%d,%d,%d]}\n", i, i * 7 % 1000, i * 13 % 1000);
        add_to(text, sizeof text, row);
    }
    put_text(name, text);
}

/* Bit i of the result: whether the row that begins with id i is in this part. */
static int64_t rows_of_part(const char *file, int part, unsigned char seen[512])
{
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    o.eval_fraction = 0.25;
    o.part = (unsigned)part;
    o.seed = 3;
    memset(seen, 0, 512);
    assert_ok(dt_dataset_open(&o, &d));
    int64_t n = dt_dataset_samples(d);
    for (int64_t s = 0; s < n; s++) {
        int32_t ids[4], targets[4];
        dt_dataset_read(d, s, ids, targets);
        seen[ids[0]]++;
    }
    dt_dataset_close(d);
    return n;
}

/* Both parts together are everything, nothing is in both, and a document stays in its part when
 * others come and go. */
static void test_hold_out(void **state)
{
    (void)state;
    unsigned char train[512], eval[512], more[512];
    put_rows("a.jsonl", 200, 0);
    put_rows("b.jsonl", 300, 100);
    const char *a = in_dir("a.jsonl"), *b = in_dir("b.jsonl");
    int64_t n = rows_of_part(a, DT_PART_TRAIN, train), m = rows_of_part(a, DT_PART_EVAL, eval);
    assert_int_equal(n + m, 200);
    assert_in_range(m, 26, 74); /* 50 expected; four standard deviations */
    for (int i = 0; i < 200; i++)
        assert_int_equal(train[i] + eval[i], 1);
    rows_of_part(b, DT_PART_EVAL, more);
    for (int i = 100; i < 200; i++)
        assert_int_equal(more[i], eval[i]);
    /* a corpus without a sidecar is split in the same way */
    struct dt_data_options o = options_for(&a, 1);
    assert_ok(dt_corpus_build(&o, in_dir("c")));
    assert_ok(dt_unlink(in_dir("c.mask")));
    rows_of_part(in_dir("c"), DT_PART_EVAL, more);
    assert_memory_equal(more, eval, sizeof more);
    put_rows("one.jsonl", 1, 0);
    const char *one = in_dir("one.jsonl");
    struct dt_dataset *d;
    o = options_for(&one, 1);
    o.eval_fraction = 0.01;
    o.part = DT_PART_EVAL;
    assert_fails(dt_dataset_open(&o, &d), DT_E_DATA, "data.eval");
}

static const char *only_file(const char *suffix)
{
    static char path[DT_PATH];
    struct dt_names names;
    const char *found = NULL;
    assert_ok(dt_dir_list(in_dir("cache"), &names));
    for (size_t i = 0; i < names.count; i++)
        if (dt_path_ends_with(names.names[i], suffix)) {
            assert_null(found);
            snprintf(path, sizeof path, "%s/%s", in_dir("cache"), names.names[i]);
            found = path;
        }
    dt_names_free(&names);
    assert_non_null(found);
    return found;
}

/* The cache is used again, made again when it is damaged, and knows a changed file. */
static void test_cache(void **state)
{
    (void)state;
    put_rows("a.jsonl", 50, 0);
    const char *file = in_dir("a.jsonl");
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    assert_ok(dt_dataset_open(&o, &d));
    uint64_t hash = dt_dataset_hash(d);
    dt_dataset_close(d);
    static const char *const suffixes[] = {".bin", ".idx", ".mask"};
    for (int i = 0; i < 3; i++) {
        char *whole, *again;
        size_t size, size_again;
        assert_ok(dt_file_read(only_file(suffixes[i]), 1 << 20, &whole, &size));
        for (int way = 0; way < 3; way++) {
            if (way == 0)
                assert_ok(dt_unlink(only_file(suffixes[i])));
            else if (way == 1)
                assert_ok(dt_file_write(only_file(suffixes[i]), whole, size / 2));
            else {
                whole[size / 3] ^= 4;
                assert_ok(dt_file_write(only_file(suffixes[i]), whole, size));
                whole[size / 3] ^= 4;
            }
            assert_ok(dt_dataset_open(&o, &d));
            assert_true(dt_dataset_hash(d) == hash);
            dt_dataset_close(d);
            assert_ok(dt_file_read(only_file(suffixes[i]), 1 << 20, &again, &size_again));
            assert_int_equal(size_again, size);
            assert_memory_equal(again, whole, size);
            free(again);
        }
        free(whole);
    }
    put_rows("a.jsonl", 51, 0);
    assert_ok(dt_dataset_open(&o, &d));
    assert_true(dt_dataset_hash(d) != hash);
    assert_int_equal(dt_dataset_samples(d), 51);
    dt_dataset_close(d);
}

/* The bytes of a corpus do not depend on the number of threads. */
static void test_threads_change_nothing(void **state)
{
    (void)state;
    FILE *f = fopen(in_dir("many.jsonl"), "wb");
    assert_non_null(f);
    for (int i = 0; i < 5000; i++) {
        fprintf(f, "{\"input_ids\":[%d", i);
        for (int k = 0; k < i % 29; k++)
            fprintf(f, ",%d", (i * k) % 5000);
        fprintf(f, ",1]%s}\n", i % 97 == 5 ? ",," : "");
    }
    assert_int_equal(fclose(f), 0);
    const char *file = in_dir("many.jsonl"), *prefixes[3] = {"t1", "t2", "t7"};
    static const int threads[3] = {1, 2, 7};
    struct dt_corpus_info info[3];
    for (int i = 0; i < 3; i++) {
        struct dt_data_options o = options_for(&file, 1);
        struct dt_corpus *c;
        o.threads = threads[i];
        o.on_bad_row = DT_BAD_ROW_FAIL;
        assert_fails(dt_corpus_build(&o, in_dir(prefixes[i])), DT_E_DATA, "many.jsonl:6: ");
        o.on_bad_row = DT_BAD_ROW_SKIP;
        assert_ok(dt_corpus_build(&o, in_dir(prefixes[i])));
        assert_ok(dt_corpus_open(in_dir(prefixes[i]), &c));
        dt_corpus_describe(c, &info[i]);
        assert_int_equal(info[i].documents + info[i].skipped, 5000);
        assert_true(info[i].hash == info[0].hash);
        dt_corpus_close(c);
    }
}

/* A text file is one document, closed by the end-of-text token; its bytes are counted. */
static void test_text_and_prompts(void **state)
{
    (void)state;
    struct dt_tokenizer *t;
    assert_ok(dt_tokenizer_open(DT_TEST_DIR "/golden/chat/bytes.tokenizer.json", &t));
    const char *file = put_text("a.txt", "\xef\xbb\xbfNobody knows.\r\n");
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    int32_t ids[64], targets[64];
    o.max_length = 64;
    assert_fails(dt_dataset_open(&o, &d), DT_E_CONFIG, "needs a tokenizer");
    o.tokenizer = t;
    o.end_of_text = 2;
    assert_ok(dt_dataset_open(&o, &d));
    assert_int_equal(dt_dataset_samples(d), 1);
    assert_int_equal(dt_dataset_bytes(d), 15); /* without the mark */
    int64_t n = dt_dataset_length(d, 0);
    dt_dataset_read(d, 0, ids, targets);
    assert_int_equal(targets[n - 1], 2);
    assert_int_equal(targets[0], ids[1]);
    dt_dataset_close(d);
    file = put_text("p.jsonl", "{\"prompt\":\"Who wrote it? \",\"completion\":\"Nobody\"}");
    assert_ok(dt_dataset_open(&o, &d));
    n = dt_dataset_length(d, 0);
    dt_dataset_read(d, 0, ids, targets);
    assert_int_equal(targets[0], -1);
    assert_int_equal(targets[n - 1], 2);
    assert_true(dt_dataset_loss_tokens(d) >= 2 && dt_dataset_loss_tokens(d) < n);
    assert_int_equal(dt_dataset_bytes(d), 6);
    dt_dataset_close(d);
    file = put_text("e.txt", "");
    assert_fails(dt_dataset_open(&o, &d), DT_E_DATA, "e.txt: nothing to train on");
    file = put_bytes("i.txt", "abc\xff", 4);
    assert_int_equal(dt_dataset_open(&o, &d), DT_E_DATA);
    o.vocab_size = 100;
    file = put_text("a.txt", "Nobody knows.");
    assert_fails(dt_dataset_open(&o, &d), DT_E_DATA, "vocabulary has 100");
    dt_tokenizer_close(t);
}

static void test_nowhere_to_write(void **state)
{
    (void)state;
    put_rows("a.jsonl", 5, 0);
    put_text("file", "x");
    const char *file = in_dir("a.jsonl");
    struct dt_data_options o = options_for(&file, 1);
    struct dt_dataset *d;
    o.cache_dir = in_dir("file/cache");
    assert_int_equal(dt_dataset_open(&o, &d), DT_E_IO);
    assert_fails(dt_corpus_build(&o, in_dir("no/such/prefix")), DT_E_NOT_FOUND, "no/such/prefix");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_long_documents_are_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_labels_mask_and_rows_are_truncated, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(test_hold_out, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_cache, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_threads_change_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_text_and_prompts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_nowhere_to_write, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
