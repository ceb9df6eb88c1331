/* The Megatron format: bytes as published, both dtypes, beyond 4 GB, and damage of every kind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data_test.h"

#include "data/corpus.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static void put64(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

/* An index written by hand: `n` sequences, every one a document. */
static size_t make_idx(unsigned char *out, int code, int64_t n, const int64_t *sizes,
                       const int64_t *pointers)
{
    unsigned char *p = out + 34;
    memcpy(out, "MMIDIDX\0", 9);
    put64(out + 9, 1, 8);
    out[17] = (unsigned char)code;
    put64(out + 18, (uint64_t)n, 8);
    put64(out + 26, (uint64_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++, p += 4)
        put64(p, (uint64_t)sizes[i], 4);
    for (int64_t i = 0; i < n; i++, p += 8)
        put64(p, (uint64_t)pointers[i], 8);
    for (int64_t i = 0; i <= n; i++, p += 8)
        put64(p, (uint64_t)i, 8);
    return (size_t)(p - out);
}

static void write_corpus(const char *prefix, size_t item, bool bits, int64_t limit)
{
    struct dt_corpus_writer *w;
    struct dt_mask_header totals = {.rows = 3};
    static const int32_t a[5] = {1, 2, 3, 4, 5}, b[2] = {9, 65535};
    static const uint8_t trains[5] = {0, 0, 1, 0, 1};
    struct dt_document r = {.bytes = 10, .line = 7};
    assert_ok(dt_corpus_writer_new(prefix, item, bits, &w));
    if (limit)
        dt_corpus_writer_set_sequence_limit(w, limit);
    assert_ok(dt_corpus_writer_add(w, a, trains, 5, &r));
    assert_ok(dt_corpus_writer_add(w, NULL, NULL, 0, &r));
    assert_ok(dt_corpus_writer_add(w, b, NULL, 2, &r));
    assert_ok(dt_corpus_writer_finish(w, &totals));
}

static void check_corpus(const char *prefix, bool bits)
{
    struct dt_corpus *c;
    int32_t ids[5];
    uint8_t trains[5];
    static const int32_t a[5] = {1, 2, 3, 4, 5}, b[2] = {9, 65535};
    static const uint8_t masked[5] = {0, 0, 1, 0, 1}, all[5] = {0, 1, 1, 1, 1};
    assert_ok(dt_corpus_open(prefix, &c));
    assert_int_equal(c->idx.documents, 3);
    assert_int_equal(c->max_id, 65535);
    assert_int_equal(dt_corpus_length(c, 0), 5);
    assert_int_equal(dt_corpus_length(c, 1), 0);
    assert_int_equal(dt_corpus_length(c, 2), 2);
    dt_corpus_read(c, 0, 0, 5, ids, trains);
    assert_memory_equal(ids, a, sizeof a);
    assert_memory_equal(trains, bits ? masked : all, sizeof all);
    dt_corpus_read(c, 2, 0, 2, ids, trains);
    assert_memory_equal(ids, b, sizeof b);
    assert_int_equal(trains[1], 1);
    assert_int_equal(c->loss_tokens, (bits ? 2 : 4) + 1);
    assert_int_equal(dt_corpus_loss(c, 0, 4), bits ? 1 : 3);
    dt_corpus_close(c);
}

static void test_written_and_read(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        write_corpus(in_dir("c"), k & 1 ? 2 : 4, k & 2, k & 4 ? 2 : 0);
        check_corpus(in_dir("c"), k & 2);
        assert_ok(dt_unlink(in_dir("c.mask"))); /* as Megatron would leave it */
        check_corpus(in_dir("c.bin"), false);
    }
}

/* The bytes themselves: what Megatron's own reader expects. */
static void test_bytes_of_the_index(void **state)
{
    (void)state;
    static const int64_t sizes[3] = {5, 0, 2}, pointers[3] = {0, 10, 10};
    unsigned char want[256];
    size_t n = make_idx(want, 8, 3, sizes, pointers), size;
    char *got;
    write_corpus(in_dir("c"), 2, true, 0);
    assert_ok(dt_file_read(in_dir("c.idx"), 4096, &got, &size));
    assert_int_equal(size, n);
    assert_memory_equal(got, want, n);
    free(got);
    assert_ok(dt_file_read(in_dir("c.bin"), 4096, &got, &size));
    static const unsigned char bin[14] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 9, 0, 255, 255};
    assert_int_equal(size, sizeof bin);
    assert_memory_equal(got, bin, sizeof bin);
    free(got);
}

/* Offsets beyond 4 GB, and token numbers beyond 2^31: a file of holes. */
static void test_beyond_four_gigabytes(void **state)
{
    (void)state;
    enum { EACH = INT32_MAX };
    static const int64_t sizes[3] = {EACH, EACH, 3},
                         pointers[3] = {0, 2 * (int64_t)EACH, 4 * (int64_t)EACH};
    unsigned char idx[256];
    size_t n = make_idx(idx, 8, 3, sizes, pointers);
    put_bytes("big.idx", idx, n);
    static const unsigned char tail[6] = {11, 0, 22, 0, 33, 0};
    int fd = open(in_dir("big.bin"), O_CREAT | O_RDWR, 0666);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, tail, sizeof tail, 4 * (off_t)EACH), sizeof tail);
    close(fd);
    struct dt_map map;
    struct dt_idx x;
    assert_ok(dt_file_map(in_dir("big.bin"), &map));
    assert_ok(dt_idx_parse(idx, n, map.size, "big.idx", &x));
    struct dt_corpus c = {.bin_map = map, .idx = x}; /* opening would read all 8 GB of holes */
    int32_t ids[3];
    assert_int_equal(dt_corpus_length(&c, 1), EACH);
    assert_int_equal(dt_corpus_length(&c, 2), 3);
    dt_corpus_read(&c, 2, 0, 3, ids, NULL);
    assert_int_equal(ids[0], 11);
    assert_int_equal(ids[2], 33);
    assert_int_equal(dt_corpus_loss(&c, 1, EACH), EACH - 1);
    dt_file_unmap(&map);
}

static void test_foreign_indexes(void **state)
{
    (void)state;
    static const struct {
        int code;
        int64_t size, pointer;
        const char *words;
    } cases[] = {{5, 3, 0, "int64"},
                 {1, 3, 0, "uint8"},
                 {0, 3, 0, "unknown dtype"},
                 {4, 4, 0, "do not belong together"},
                 {4, 3, 4, "do not belong"},
                 {4, -1, 0, "do not belong"},
                 {4, 3, -4, "do not belong"},
                 {4, 2, 0, "end at byte 8"},
                 {4, 2, 2, "do not belong"},
                 {4, 3, INT64_MAX, "do not belong"},
                 {4, INT32_MAX, 0, "do not belong"}};
    put_bytes("f.bin", "\1\0\0\0\2\0\0\0\3\0\0\0", 12);
    struct dt_corpus *c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char idx[128];
        size_t n = make_idx(idx, cases[i].code, 1, &cases[i].size, &cases[i].pointer);
        put_bytes("f.idx", idx, n);
        assert_fails(dt_corpus_open(in_dir("f"), &c), DT_E_DATA, cases[i].words);
    }
    put_text("f.idx", "something else that is long enough to have a header");
    assert_fails(dt_corpus_open(in_dir("f"), &c), DT_E_DATA, "MMIDIDX");
    int64_t size = 3, pointer = 0;
    unsigned char idx[128];
    size_t n = make_idx(idx, 4, 1, &size, &pointer);
    put_bytes("f.idx", idx, n);
    put_bytes("f.bin", "\1\0\0\0\2\0\0\0\3\0\0\200", 12);
    assert_fails(dt_corpus_open(in_dir("f"), &c), DT_E_DATA, "ids are at least 0");
    assert_ok(dt_unlink(in_dir("f.idx")));
    assert_fails(dt_corpus_open(in_dir("f"), &c), DT_E_NOT_FOUND, "f.idx");
}

/* Cut off at every byte, and with every bit flipped: an error each time, or the same corpus. */
static void test_damage(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"c.bin", "c.idx", "c.mask"};
    struct dt_corpus *c;
    write_corpus(in_dir("c"), 2, true, 0);
    assert_ok(dt_corpus_open(in_dir("c"), &c));
    uint64_t hash = c->hash;
    dt_corpus_close(c);
    for (int f = 0; f < 3; f++) {
        char *whole;
        size_t size;
        assert_ok(dt_file_read(in_dir(suffixes[f]), 1 << 20, &whole, &size));
        for (size_t n = 0; n < size; n++) {
            put_bytes(suffixes[f], whole, n);
            assert_int_equal(dt_corpus_open(in_dir("c"), &c), DT_E_DATA);
        }
        for (size_t bit = 0; bit < 8 * size; bit++) {
            whole[bit / 8] = (char)(whole[bit / 8] ^ 1 << bit % 8);
            put_bytes(suffixes[f], whole, size);
            assert_int_equal(dt_corpus_open(in_dir("c"), &c), DT_E_DATA);
            whole[bit / 8] = (char)(whole[bit / 8] ^ 1 << bit % 8);
        }
        put_bytes(suffixes[f], whole, size);
        free(whole);
    }
    assert_ok(dt_corpus_open(in_dir("c"), &c));
    assert_true(c->hash == hash);
    dt_corpus_close(c);
}

/* A disk that is full: said, and nothing left behind. */
static void test_no_space(void **state)
{
    (void)state;
    struct rlimit old, small = {4096, 4096};
    struct dt_corpus_writer *w;
    struct dt_document r = {0};
    static int32_t ids[1 << 16];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_ok(dt_corpus_writer_new(in_dir("full"), 4, false, &w));
    assert_ok(dt_corpus_writer_add(w, ids, NULL, 1 << 16, &r));
    struct dt_mask_header totals = {0};
    int rc = dt_corpus_writer_finish(w, &totals);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, DT_E_IO);
    assert_non_null(strstr(dt_error_message(), "full.bin"));
    struct dt_names names;
    assert_ok(dt_dir_list(test_dir, &names));
    assert_int_equal(names.count, 0);
    dt_names_free(&names);
}

int main(void)
{
#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        IN_DIR(test_written_and_read),
        IN_DIR(test_bytes_of_the_index),
        IN_DIR(test_beyond_four_gigabytes),
        IN_DIR(test_foreign_indexes),
        IN_DIR(test_damage),
        IN_DIR(test_no_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
