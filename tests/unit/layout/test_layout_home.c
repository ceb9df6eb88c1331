/* Homes dealt bucket by bucket, and the same homes rounded to the pages of a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "random_layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 1024, SIZE = 23 };

/* Sorted, without gaps, cut on block edges, storage without gaps, no neighbours of one owner. */
static void check_home(const struct dt_space *s, const struct dt_home *h)
{
    int64_t at = 0, stored[16] = {0};
    for (int64_t i = 0; i < h->count; i++) {
        const struct dt_interval *in = &h->intervals[i];
        assert_int_equal(in->begin, at);
        assert_true(in->end > in->begin);
        assert_int_equal(dt_space_block_edge(s, in->end), in->end);
        assert_int_equal(in->at, stored[in->owner]);
        assert_true(i == 0 || in[-1].owner != in->owner);
        stored[in->owner] += in->end - in->begin;
        at = in->end;
    }
    assert_int_equal(at, s->elements);
    for (int32_t w = 0; w < 16; w++)
        assert_int_equal(dt_home_elements(h, w), stored[w]);
}

static int64_t held_within(const struct dt_home *h, int32_t owner, const struct dt_bucket *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < h->count; i++) {
        const struct dt_interval *in = &h->intervals[i];
        int64_t begin = in->begin > b->begin ? in->begin : b->begin;
        int64_t end = in->end < b->end ? in->end : b->end;
        n += in->owner == owner && end > begin ? end - begin : 0;
    }
    return n;
}

static void test_buckets_are_the_space(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_bucket *b;
        int64_t count, tensor = 0;
        random_space(&arch, &s, SIZE);
        assert_int_equal(dt_space_buckets(&s, &b, &count), 0);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(b[i].first, tensor);
            assert_int_equal(b[i].begin, s.offset[tensor]);
            for (int64_t k = 0; k < b[i].count; k++, tensor++) {
                const struct dt_tensor *t = &arch->tensors[s.tensor[tensor]];
                assert_true(t->segment == b[i].segment && t->layer == b[i].layer);
            }
            assert_int_equal(b[i].end, s.offset[tensor]);
            for (int64_t j = 0; j < i; j++)
                assert_false(b[j].segment == b[i].segment && b[j].layer == b[i].layer);
        }
        assert_int_equal(tensor, s.count);
        free(b);
        close_space(arch, &s);
    }
}

/* In every bucket and in all a worker is within a few blocks of its share: two cuts of half a block
 * each, and as much again that it is owed. */
static void test_buckets_are_dealt_evenly(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_bucket *b;
        struct dt_home h;
        double share[9], total;
        int64_t count;
        int32_t workers = 1 + (int32_t)below(9);
        random_space(&arch, &s, SIZE);
        bool equal = below(2);
        total = random_shares(workers, share);
        assert_int_equal(dt_space_buckets(&s, &b, &count), 0);
        assert_int_equal(dt_home_buckets(&s, workers, equal ? NULL : share, &h), 0);
        check_home(&s, &h);
        for (int32_t w = 0; w < workers; w++) {
            double part = equal ? 1.0 / workers : share[w] / total;
            for (int64_t i = 0; i < count; i++)
                assert_true(fabs((double)held_within(&h, w, &b[i]) -
                                 part * (double)(b[i].end - b[i].begin)) <= 4 * BLOCK);
            assert_true(fabs((double)dt_home_elements(&h, w) - part * (double)s.elements) <=
                        2 * BLOCK);
            if (part == 0)
                assert_int_equal(dt_home_elements(&h, w), 0);
        }
        if (workers == 1)
            assert_int_equal(h.count, 1);
        free(b);
        dt_home_free(&h);
        close_space(arch, &s);
    }
}

/* More workers than a bucket has blocks: most get nothing of most buckets, yet in all nobody is
 * left behind, since a bucket goes first to those who are owed most. */
static void test_many_workers_few_blocks(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home h;
        char json[512];
        double share[512], total = random_shares(512, share);
        snprintf(json, sizeof json,
                 "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
                 "\"num_attention_heads\":4,\"num_key_value_heads\":1,"
                 "\"intermediate_size\":%d,\"vocab_size\":%d,"
                 "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}",
                 8 * (1 + (int)below(12)), 1 + (int)below(30), 8 + (int)below(200),
                 10 + (int)below(200));
        open_space(json, &arch, &s, true);
        assert_int_equal(dt_home_buckets(&s, 512, share, &h), 0);
        for (int32_t w = 0; w < 512; w++) {
            double ideal = share[w] / total * (double)s.elements;
            assert_true(fabs((double)dt_home_elements(&h, w) - ideal) <= 2 * BLOCK);
        }
        dt_home_free(&h);
        close_space(arch, &s);
    }
}

/* Buckets of fewer elements than there are workers: a claim is a fraction of an element. */
static void test_claims_below_one_element(void **state)
{
    (void)state;
    static const char two_wide[] =
        "{\"model_type\":\"llama\",\"hidden_size\":2,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"intermediate_size\":1,"
        "\"vocab_size\":3,\"max_position_embeddings\":8,\"rms_norm_eps\":1e-5,"
        "\"tie_word_embeddings\":true}";
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_home h;
    open_space(two_wide, &arch, &s, true);
    assert_int_equal(dt_home_buckets(&s, 20000, NULL, &h), 0);
    int64_t at = 0;
    for (int64_t i = 0; i < h.count; i++) {
        assert_int_equal(h.intervals[i].begin, at);
        at = h.intervals[i].end;
    }
    assert_int_equal(at, s.elements);
    dt_home_free(&h);
    close_space(arch, &s);
}

static void test_shares_that_are_none(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_home h;
    double none[3] = {0};
    random_space(&arch, &s, SIZE);
    assert_int_equal(dt_home_buckets(&s, 3, none, &h), DT_E_INTERNAL);
    assert_int_equal(dt_home_buckets(&s, 0, NULL, &h), DT_E_INTERNAL);
    close_space(arch, &s);
}

/* Every byte of the file has one writer, every page too, every trained element is written at its
 * place by the owner of its interval, and frozen pages are dealt out evenly. */
static void check_save(const struct dt_space *s, const struct dt_home *h,
                       const struct dt_save_file *f, int32_t workers)
{
    struct dt_home rounded;
    struct dt_byte_range *r;
    int64_t count, at = 0;
    assert_int_equal(dt_home_save(s, h, f, workers, &rounded, &r, &count), 0);
    size_t pages = (f->file_bytes + f->page - 1) / f->page, byte = 0;
    size_t trained = f->data_start + (size_t)s->elements * f->element_bytes;
    size_t frozen[16] = {0}, first_frozen = (trained + f->page - 1) / f->page;
    int32_t *writer = malloc(pages * sizeof *writer);
    memset(writer, 0xff, pages * sizeof *writer);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(r[i].begin, byte);
        assert_true(r[i].end > byte && r[i].owner >= 0 && r[i].owner < workers);
        for (size_t p = byte / f->page; p * f->page < r[i].end; p++) {
            assert_true(writer[p] == -1 || writer[p] == r[i].owner);
            writer[p] = r[i].owner;
            frozen[r[i].owner] += p >= first_frozen;
        }
        byte = r[i].end;
    }
    assert_int_equal(byte, f->file_bytes);
    for (int64_t i = 0; i < rounded.count; i++) {
        const struct dt_interval *in = &rounded.intervals[i];
        assert_int_equal(in->begin, at);
        assert_int_equal(in->at, at);
        assert_true(in->end > at);
        at = in->end;
        size_t begin = f->data_start + (size_t)in->begin * f->element_bytes;
        size_t end = f->data_start + (size_t)in->end * f->element_bytes;
        for (size_t p = begin / f->page; p * f->page < end; p++)
            assert_int_equal(writer[p], in->owner);
    }
    assert_int_equal(at, s->elements);
    for (int32_t w = 0; pages > first_frozen && w < workers; w++)
        assert_true(llabs((long long)frozen[w] - (long long)(pages - first_frozen) / workers) <= 1);
    free(writer);
    free(r);
    dt_home_free(&rounded);
}

static void test_save_is_disjoint_in_pages(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home h;
        double share[9];
        int32_t workers = 1 + (int32_t)below(9);
        random_space(&arch, &s, SIZE);
        random_shares(workers, share);
        assert_int_equal(dt_home_buckets(&s, workers, below(2) ? NULL : share, &h), 0);
        struct dt_save_file f = {.data_start = 8 * (size_t)below(3000),
                                 .element_bytes = 4,
                                 .page = below(3) ? 4096 : 65536};
        if (below(8) == 0)
            f.data_start -= f.data_start % f.page; /* a header that fills its pages */
        f.file_bytes =
            f.data_start + (size_t)s.elements * 4 + (below(2) ? 2 * (size_t)below(400000) : 0);
        check_save(&s, &h, &f, workers);
        dt_home_free(&h);
        close_space(arch, &s);
    }
}

/* With one worker, or pages larger than the file, one writer has everything. */
static void test_save_of_one(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_home h, rounded;
    struct dt_byte_range *r;
    int64_t count;
    random_space(&arch, &s, SIZE);
    struct dt_save_file f = {.data_start = 8, .element_bytes = 4, .page = (size_t)1 << 40};
    f.file_bytes = 8 + (size_t)s.elements * 4;
    assert_int_equal(dt_home_buckets(&s, 5, NULL, &h), 0);
    assert_int_equal(dt_home_save(&s, &h, &f, 5, &rounded, &r, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(r[0].end, f.file_bytes);
    free(r);
    dt_home_free(&rounded);
    f.data_start = 6;
    assert_int_equal(dt_home_save(&s, &h, &f, 5, &rounded, &r, &count), DT_E_INTERNAL);
    f.data_start = 16;
    assert_int_equal(dt_home_save(&s, &h, &f, 5, &rounded, &r, &count), DT_E_INTERNAL);
    dt_home_free(&h);
    close_space(arch, &s);
}

/* ---- Thousands of workers ---- */

static const char large[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":32,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":14336,"
    "\"vocab_size\":128256,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5}";

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* A second each in a Release build (issue 4); a sanitizer takes longer. */
static void check_time(const char *what, double begin)
{
    double took = seconds() - begin;
    print_message("%s: %.3f s\n", what, took);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(took < 1);
#endif
}

static void migrate(const struct dt_space *s, const struct dt_home *from, int32_t workers)
{
    char what[64];
    struct dt_home to;
    struct dt_move all;
    double begin = seconds();
    assert_int_equal(dt_home_buckets(s, workers, NULL, &to), 0);
    assert_int_equal(dt_move_migrate(s, from, &to, -1, &all), 0);
    snprintf(what, sizeof what, "home and all moves, 4096 -> %d workers", (int)workers);
    check_time(what, begin);
    assert_int_equal(dt_move_elements(&all), s->elements);
    dt_move_free(&all);
    dt_home_free(&to);
}

static void test_4096_workers(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_home h;
    struct dt_compute whole;
    struct dt_move gather, reduce;
    open_space(large, &arch, &s, true);
    assert_int_equal(dt_home_buckets(&s, 4096, NULL, &h), 0);
    for (int32_t w = 0; w < 4096; w++)
        if (w % 64 == 0)
            assert_true(fabs((double)dt_home_elements(&h, w) - (double)s.elements / 4096) <=
                        3 * BLOCK);
    assert_int_equal(dt_compute_whole(&s, 4096, &whole), 0);
    double begin = seconds();
    assert_int_equal(dt_move_gather(&s, &h, &whole, 1000, &gather), 0);
    check_time("gather of one of 4096 workers", begin);
    begin = seconds();
    assert_int_equal(dt_move_reduce(&s, &whole, &h, 1000, &reduce), 0);
    check_time("reduce of one of 4096 workers", begin);
    int64_t own = dt_home_elements(&h, 1000);
    assert_int_equal(dt_move_elements(&gather), s.elements + 4095 * own);
    assert_int_equal(dt_move_elements(&reduce), s.elements + 4095 * own);
    migrate(&s, &h, 4095);
    migrate(&s, &h, 2048);
    dt_move_free(&gather);
    dt_move_free(&reduce);
    dt_compute_free(&whole);
    dt_home_free(&h);
    close_space(arch, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets_are_the_space),
        cmocka_unit_test(test_buckets_are_dealt_evenly),
        cmocka_unit_test(test_many_workers_few_blocks),
        cmocka_unit_test(test_claims_below_one_element),
        cmocka_unit_test(test_shares_that_are_none),
        cmocka_unit_test(test_save_is_disjoint_in_pages),
        cmocka_unit_test(test_save_of_one),
        cmocka_unit_test(test_4096_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
