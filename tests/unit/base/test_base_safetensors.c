/* Safetensors: equal to the Python library's files both ways, and nothing damaged gets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static const char *in_root(const char *name)
{
    static char paths[8][DT_PATH];
    static int next;
    char *path = paths[next++ % 8];
    assert_int_equal(dt_path_join(path, root, name), DT_OK);
    return path;
}

static void assert_says(int rc, int code, const char *words)
{
    if (rc != code || !strstr(dt_error_message(), words))
        print_message("%d '%s' lacks '%s'\n", rc, dt_error_message(), words);
    assert_int_equal(rc, code);
    assert_non_null(strstr(dt_error_message(), words));
}

/* ---- The tensors of tests/golden/make_safetensors.py ---- */

static const float second[12] = {0,    .125f, .25f, .375f,  .5f,   .625f,
                                 .75f, .875f, 1,    1.125f, 1.25f, 1.375f};
static const uint16_t first[6] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500}; /* 0 ... 5 */
static const double scalar = 2.5;
static const int64_t ids[3] = {1, -2, 3};
static const uint8_t flags[3] = {1, 0, 1}, seven = 7;

static const struct dt_tensor_spec specs[] = {
    {"w.second", DT_F32, 2, {3, 4}}, {"a.first", DT_F16, 2, {2, 3}}, {"scalar", DT_F64, 0, {0}},
    {"empty", DT_F32, 2, {0, 7}},    {"ids", DT_I64, 1, {3}},        {"flags", DT_BOOL, 1, {3}},
    {"größe \"x\"", DT_U8, 1, {1}},
};
static const void *const data[] = {second, first, &scalar, "", ids, flags, &seven};
#define COUNT (sizeof specs / sizeof *specs)

static void assert_holds_them(const struct dt_tensor_set *set)
{
    assert_int_equal(set->count, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const struct dt_stored *t;
        assert_int_equal(dt_tensors_need(set, specs[i].name, &t), DT_OK);
        assert_int_equal(t->dtype, specs[i].dtype);
        assert_int_equal(t->rank, specs[i].rank);
        assert_memory_equal(t->shape, specs[i].shape, sizeof t->shape);
        assert_memory_equal(t->data, data[i], t->bytes);
        assert_int_equal(t->bytes, (size_t)t->elements * dt_dtype_size(t->dtype));
    }
}

static void the_python_library_is_understood(void **state)
{
    (void)state;
    struct dt_tensor_set set;
    assert_int_equal(dt_tensors_open(DT_TEST_DIR "/golden/safetensors/python.safetensors", &set),
                     DT_OK);
    assert_holds_them(&set);
    assert_string_equal(dt_tensors_metadata(&set, 0, "by"), "python");
    assert_null(dt_tensors_metadata(&set, 0, "absent"));
    assert_null(dt_tensors_find(&set, "absent"));
    dt_tensors_close(&set);
}

/* The stored file was read by the library: `make_safetensors.py --check`. */
static void what_we_write_is_what_the_library_read(void **state)
{
    (void)state;
    char *ours, *stored;
    size_t n, m;
    struct dt_tensor_set set;
    assert_int_equal(dt_tensors_save(in_root("ours.safetensors"), specs, data, COUNT), DT_OK);
    assert_int_equal(dt_tensors_open(in_root("ours.safetensors"), &set), DT_OK);
    assert_holds_them(&set);
    for (size_t i = 0; i < COUNT; i++) /* in the order that was asked for */
        assert_string_equal(set.tensors[i].name, specs[i].name);
    dt_tensors_close(&set);
    assert_int_equal(dt_file_read(in_root("ours.safetensors"), 1 << 20, &ours, &n), DT_OK);
    assert_int_equal(
        dt_file_read(DT_TEST_DIR "/golden/safetensors/ours.safetensors", 1 << 20, &stored, &m),
        DT_OK);
    assert_int_equal(n, m);
    assert_memory_equal(ours, stored, n);
    free(ours);
    free(stored);
}

/* ---- Damage ---- */

/* A file of a header and `bytes` bytes of data. */
static int parse_text(const char *header, size_t bytes, struct dt_tensor_set *set)
{
    size_t n = strlen(header);
    unsigned char *file = calloc(1, 8 + n + bytes);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    int rc = dt_tensors_parse(file, 8 + n + bytes, "f", set);
    if (rc == DT_OK)
        dt_tensors_close(set);
    free(file);
    return rc;
}

#define A "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void every_rule_of_the_format_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        int code;
        const char *words;
    } bad[] = {
        {A "}", 7, DT_E_MODEL, "cut short"},
        {A "}", 9, DT_E_MODEL, "has 71 bytes, its header describes 70"},
        {A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16, DT_E_MODEL,
         "a hole"},
        {A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, DT_E_MODEL,
         "overlaps"},
        {A ",\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, DT_E_MODEL,
         "duplicate"},
        {A ",\"__metadata__\":{\"x\":1}}", 8, DT_E_MODEL, "'x' is no string"},
        {A ",\"__metadata__\":[]}", 8, DT_E_MODEL, "__metadata__ is no JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, DT_E_MODEL,
         "[begin, end]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, DT_E_MODEL,
         "[begin, end]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, DT_E_MODEL,
         "[begin, end]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, DT_E_MODEL,
         "[2] of F32 are 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, DT_E_MODEL,
         "shape[0] is -2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,8]}}", 8, DT_E_MODEL,
         "shape[0] is 1.5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         DT_E_MODEL, "too large for any file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         DT_E_MODEL, "too large for any file"},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
         DT_E_UNSUPPORTED, "F8_E4M3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         DT_E_UNSUPPORTED, "9 dimensions"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, DT_E_MODEL, "'dtype' is absent"},
        {"{\"a\":7}", 0, DT_E_MODEL, "tensor 'a' is 7"},
        {"[1]", 0, DT_E_MODEL, "does not begin with '{'"},
        {"{\"a\"", 0, DT_E_MODEL, "header:1:"},
        {"", 0, DT_E_MODEL, "does not begin with '{'"},
    };
    struct dt_tensor_set set;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_says(parse_text(bad[i].header, bad[i].bytes, &set), bad[i].code, bad[i].words);
    assert_int_equal(parse_text(A "}   ", 8, &set), DT_OK);
    assert_int_equal(parse_text("{}", 0, &set), DT_OK);
}

static void foreign_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } foreign[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"},
        {"PK\003\004aaaaaaaaaaaaaaaaaaaaaaaaa", "zip archive"},
        {"GGUF\003aaaaaaaaaaaaaaaaaaaaa", "GGUF"},
        {"<!DOCTYPE html><html></html>", "web page"},
        {"x", "has 1 bytes"},
        {"", "has 0 bytes"},
        {"\x00\xe1\xf5\x06\x00\x00\x00\x00{}", "cut short"},
        {"\x01\xe1\xf5\x05\x00\x00\x00\x00{}", "at most 100000000"},
    };
    static const size_t binary[] = {[6] = 10, [7] = 10};
    struct dt_tensor_set set;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        size_t n = i >= 6 ? binary[i] : strlen(foreign[i].text);
        unsigned char *copy = malloc(n ? n : 1); /* exact, so that reading beyond shows */
        memcpy(copy, foreign[i].text, n);
        if (i == 6) /* 100 MB promised, nothing there */
            memcpy(copy, "\x00\xe1\xf5\x05", 4);
        assert_says(dt_tensors_parse(copy, n, "f", &set), DT_E_MODEL, foreign[i].words);
        free(copy);
    }
}

/* Every length and every bit: an error, or (a bit of a name, of a value) a set inside the file. */
static void no_damage_leads_outside(void **state)
{
    (void)state;
    char *file;
    size_t n;
    struct dt_tensor_set set;
    assert_int_equal(
        dt_file_read(DT_TEST_DIR "/golden/safetensors/python.safetensors", 1 << 20, &file, &n),
        DT_OK);
    for (size_t cut = 0; cut < n; cut++) {
        unsigned char *copy = malloc(cut ? cut : 1);
        memcpy(copy, file, cut);
        assert_int_not_equal(dt_tensors_parse(copy, cut, "f", &set), DT_OK);
        free(copy);
    }
    size_t accepted = 0;
    for (size_t bit = 0; bit < 8 * n; bit++) {
        file[bit / 8] ^= (char)(1 << bit % 8);
        if (dt_tensors_parse(file, n, "f", &set) == DT_OK) {
            accepted++;
            for (size_t i = 0; i < set.count; i++)
                assert_true(set.tensors[i].offset + set.tensors[i].bytes <= n);
            dt_tensors_close(&set);
        }
        file[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(accepted > 8 * 96 && accepted < 8 * n / 2); /* all data bits, some of names */
    free(file);
}

/* ---- Shards ---- */

static void write_planned(const struct dt_tensor_plan *plan, const char *dir)
{
    for (size_t k = 0; k < plan->file_count; k++) {
        const struct dt_planned_file *f = &plan->files[k];
        char path[DT_PATH];
        int fd;
        assert_int_equal(dt_path_join(path, dir, f->name), DT_OK);
        assert_int_equal(dt_fd_create(path, &fd), DT_OK);
        for (size_t i = f->first + f->count; i-- > f->first;) /* any order */
            assert_int_equal(dt_fd_write_at(fd, path, data[i], plan->bytes[i], plan->offset[i]),
                             DT_OK);
        assert_int_equal(dt_fd_write_at(fd, path, f->header, f->header_size, 0), DT_OK);
        assert_int_equal(dt_fd_close(fd, path), DT_OK);
    }
}

static void write_index(const char *dir, const char *text)
{
    char path[DT_PATH];
    assert_int_equal(dt_path_join(path, dir, "model.safetensors.index.json"), DT_OK);
    assert_int_equal(dt_file_write(path, text, strlen(text)), DT_OK);
}

static void shards_and_index_belong_together(void **state)
{
    (void)state;
    struct dt_tensor_plan plan;
    struct dt_tensor_set set;
    char dir[DT_PATH], shard[DT_PATH], changed[2048];
    snprintf(dir, sizeof dir, "%s", in_root("model"));
    assert_int_equal(dt_mkdirs(dir), DT_OK);
    assert_int_equal(dt_tensors_plan(specs, COUNT, "model", 60, &plan), DT_OK);
    assert_int_equal(plan.file_count, 2); /* 48 + 12 bytes, then the rest */
    assert_string_equal(plan.files[0].name, "model-00001-of-00002.safetensors");
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(plan.file_of[i], i >= 2);
    assert_int_equal(plan.offset[0] % 8, 0);
    write_planned(&plan, dir);
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "found model-00001-of-00002.safetensors");
    write_index(dir, plan.index);
    assert_int_equal(dt_tensors_open(dir, &set), DT_OK);
    assert_int_equal(set.file_count, 2);
    assert_holds_them(&set);
    dt_tensors_close(&set);

    write_index(dir, "{\"weight_map\": {\"a\": \"../model-00001-of-00002.safetensors\"}}");
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "same directory");
    write_index(dir, "{\"weight_map\": {}}");
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "weight_map is empty");
    write_index(dir, "{}");
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "'weight_map' is absent");
    char *at = strstr(strcpy(changed, plan.index), "ids");
    memcpy(at, "idz", 3);
    write_index(dir, changed);
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL,
                "'idz' should stand in model-00002-of-00002");
    at = strstr(strcpy(changed, plan.index), "\"ids\"");
    memset(at, ' ', (size_t)(strchr(at, ',') + 1 - at));
    write_index(dir, changed);
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "does not name tensor 'ids'");
    write_index(dir, plan.index);
    assert_int_equal(dt_path_join(shard, dir, "model-00002-of-00002.safetensors"), DT_OK);
    assert_int_equal(dt_unlink(shard), DT_OK);
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "names 2 shards: cannot open");
    assert_int_equal(dt_tensors_save(shard, specs, data, COUNT), DT_OK);
    assert_says(dt_tensors_open(dir, &set), DT_E_MODEL, "stands in model-0000");
    dt_tensor_plan_free(&plan);
}

static void what_is_not_there_is_told(void **state)
{
    (void)state;
    struct dt_tensor_set set;
    const struct dt_stored *t;
    assert_says(dt_tensors_open(in_root("none"), &set), DT_E_NOT_FOUND, "none: No such file");
    assert_int_equal(dt_mkdirs(in_root("empty")), DT_OK);
    assert_says(dt_tensors_open(in_root("empty"), &set), DT_E_MODEL,
                "holds neither model.safetensors");
    assert_int_equal(dt_file_write(in_root("empty/pytorch_model.bin"), "x", 1), DT_OK);
    assert_says(dt_tensors_open(in_root("empty"), &set), DT_E_MODEL, "(found pytorch_model.bin");
    assert_int_equal(dt_tensors_save(in_root("one.safetensors"), specs, data, COUNT), DT_OK);
    assert_int_equal(dt_tensors_open(in_root("one.safetensors"), &set), DT_OK);
    assert_says(dt_tensors_need(&set, "model.w.second", &t), DT_E_MODEL, "(nearest: 'w.second')");
    dt_tensors_close(&set);
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    struct dt_tensor_plan plan;
    struct dt_tensor_spec twice[2] = {{"a", DT_F32, 1, {1}}, {"a", DT_F32, 1, {1}}};
    assert_says(dt_tensors_plan(twice, 2, "m", 0, &plan), DT_E_INTERNAL,
                "'a' would be written twice");
    twice[1] = (struct dt_tensor_spec){"b", DT_F32, 2, {INT64_MAX, 2}};
    assert_says(dt_tensors_plan(twice, 2, "m", 0, &plan), DT_E_INTERNAL, "'b' of [");
    twice[1] = (struct dt_tensor_spec){"\xff", DT_F32, 1, {2}};
    assert_says(dt_tensors_plan(twice, 2, "m", 0, &plan), DT_E_INTERNAL, "no UTF-8");
}

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/dt_tensors_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dt_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_python_library_is_understood),
        cmocka_unit_test(what_we_write_is_what_the_library_read),
        cmocka_unit_test(every_rule_of_the_format_is_kept),
        cmocka_unit_test(foreign_files_are_named),
        cmocka_unit_test(no_damage_leads_outside),
        cmocka_unit_test(shards_and_index_belong_together),
        cmocka_unit_test(what_is_not_there_is_told),
        cmocka_unit_test(what_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
