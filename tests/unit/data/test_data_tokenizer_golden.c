/* Ids and texts against Hugging Face's tokenizers: tests/golden/tokenizers/make.py wrote
 * golden.json. Equality is exact; nothing here has a tolerance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN DT_TEST_DIR "/golden/tokenizers/"
#define REAL DT_TEST_DIR "/../../shared/data/tokenizers/"

static json_t *golden;

static uint64_t fnv(uint64_t h, const int32_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)p[i]) * 0x100000001b3u;
    return h;
}

/* A list of ids, or [-1, count, hash]. */
static void expect_ids(const json_t *want, const struct dt_ids *got, const char *what, size_t i)
{
    bool same;
    if (json_integer_value(json_array_get(want, 0)) == -1) {
        uint64_t h = fnv(0xcbf29ce484222325u, got->p, got->n) & INT64_MAX;
        same = json_integer_value(json_array_get(want, 1)) == got->n &&
               (uint64_t)json_integer_value(json_array_get(want, 2)) == h;
    } else {
        same = (int64_t)json_array_size(want) == got->n;
        for (int64_t k = 0; same && k < got->n; k++)
            same = json_integer_value(json_array_get(want, (size_t)k)) == got->p[k];
    }
    if (!same)
        fail_msg("%s[%zu]: %lld ids differ from the stored ones", what, i, (long long)got->n);
}

static void encode(struct dt_encoder *e, const char *p, size_t n, unsigned flags,
                   struct dt_ids *out)
{
    out->n = 0;
    if (dt_encode(e, p, n, flags, out) < 0)
        fail_msg("%s", dt_error_message());
}

static void expect_text(const struct dt_tokenizer *t, const struct dt_ids *ids, bool skip,
                        const json_t *want, const char *what, size_t i)
{
    struct dt_text text = {0};
    assert_int_equal(dt_decode(t, ids->p, ids->n, skip, &text), 0);
    if (text.n != json_string_length(want) || memcmp(text.p, json_string_value(want), text.n) != 0)
        fail_msg("%s[%zu]: \"%s\", expected \"%s\"", what, i, text.p, json_string_value(want));
    dt_text_free(&text);
}

static void check_corpus(const struct dt_tokenizer *t, struct dt_encoder *e, const json_t *answers)
{
    struct dt_ids ids = {0};
    const json_t *corpus = json_object_get(golden, "corpus");
    assert_true(json_array_size(corpus) > 50);
    for (size_t i = 0; i < json_array_size(corpus); i++) {
        const json_t *text = json_array_get(corpus, i);
        const json_t *decoded = json_array_get(json_object_get(answers, "decoded"), i);
        const json_t *skipped = json_array_get(json_object_get(answers, "skipped"), i);
        encode(e, json_string_value(text), json_string_length(text), 0, &ids);
        expect_ids(json_array_get(json_object_get(answers, "ids"), i), &ids, "corpus", i);
        if (json_is_integer(decoded))
            decoded = text; /* decodes to itself */
        expect_text(t, &ids, false, decoded, "decoded", i);
        expect_text(t, &ids, true, json_is_true(skipped) ? decoded : skipped, "skipped", i);
        const json_t *special = json_array_get(json_object_get(answers, "special"), i);
        if (special) {
            encode(e, json_string_value(text), json_string_length(text), DT_ENCODE_SPECIAL, &ids);
            expect_ids(special, &ids, "special", i);
        }
    }
    dt_ids_free(&ids);
}

static void check_some(const struct dt_tokenizer *t, const json_t *answers)
{
    const json_t *some = json_object_get(answers, "some");
    for (size_t i = 0; i < json_array_size(some); i++) {
        struct dt_ids ids = {0};
        const json_t *list = json_array_get(json_array_get(some, i), 0);
        for (size_t k = 0; k < json_array_size(list); k++)
            assert_int_equal(
                dt_ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, k))), 0);
        expect_text(t, &ids, false, json_array_get(json_array_get(some, i), 1), "some", i);
        dt_ids_free(&ids);
    }
}

static void check_long(struct dt_encoder *e, const json_t *answers)
{
    struct dt_ids ids = {0};
    const json_t *list = json_object_get(golden, "long");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *part = json_array_get(json_array_get(list, i), 0);
        int64_t times = json_integer_value(json_array_get(json_array_get(list, i), 1));
        struct dt_text text = {0};
        for (int64_t k = 0; k < times; k++)
            assert_int_equal(
                dt_text_append(&text, json_string_value(part), json_string_length(part)), 0);
        encode(e, text.p, text.n, 0, &ids);
        expect_ids(json_array_get(json_object_get(answers, "long"), i), &ids, "long", i);
        dt_text_free(&text);
    }
    dt_ids_free(&ids);
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % n;
}

/* The generator's random strings again; one hash a block of 100. */
static void check_random(struct dt_encoder *e, const json_t *answers)
{
    const json_t *alphabet = json_object_get(golden, "alphabet");
    int64_t strings = json_integer_value(json_object_get(golden, "strings"));
    int64_t block = json_integer_value(json_object_get(golden, "block"));
    uint64_t state = 12345, h = 0xcbf29ce484222325u;
    struct dt_text text = {0};
    struct dt_ids ids = {0};
    for (int64_t i = 0; i < strings; i++) {
        text.n = 0;
        for (uint64_t n = 1 + below(&state, 16); n > 0; n--) {
            const json_t *s = json_array_get(alphabet, below(&state, json_array_size(alphabet)));
            assert_int_equal(dt_text_append(&text, json_string_value(s), json_string_length(s)), 0);
        }
        encode(e, text.p, text.n, 0, &ids);
        h = fnv(h, ids.p, ids.n);
        h = fnv(h, &(int32_t){-1}, 1);
        if (i % block < block - 1)
            continue;
        char hex[20];
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
        assert_string_equal(hex, json_string_value(json_array_get(
                                     json_object_get(answers, "random"), (size_t)(i / block))));
        h = 0xcbf29ce484222325u;
    }
    dt_text_free(&text);
    dt_ids_free(&ids);
}

static void check(const char *path, const char *name)
{
    struct dt_tokenizer *t;
    struct dt_encoder *e;
    const json_t *answers = json_object_get(json_object_get(golden, "answers"), name);
    assert_non_null(answers);
    if (dt_tokenizer_open(path, &t) < 0)
        fail_msg("%s", dt_error_message());
    assert_int_equal(dt_encoder_new(t, &e), 0);
    check_corpus(t, e, answers);
    check_some(t, answers);
    check_long(e, answers);
    check_random(e, answers);
    check_corpus(t, e, answers); /* once more, from the word cache */
    dt_encoder_free(e);
    dt_tokenizer_close(t);
}

/* A real file is xz; skipped in words when it or xz is not there. */
static void check_real(const char *name)
{
    char source[4096], path[] = "/tmp/dt-tokenizer-XXXXXX", command[8300];
    snprintf(source, sizeof source, REAL "%s/tokenizer.json.xz", name);
    if (access(source, R_OK) != 0 || system("xz --version >/dev/null 2>&1") != 0) {
        print_message("skipped: no %s, or no xz to read it\n", source);
        skip();
    }
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command, "xz -dc '%s' >'%s'", source, path);
    assert_int_equal(system(command), 0);
    check(path, name);
    unlink(path);
}

#define STORED(name)                                                                               \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        check(GOLDEN #name ".json", #name);                                                        \
    }
STORED(llama2)
STORED(mistral)
STORED(metaspace)
STORED(llama3)
STORED(qwen2)
STORED(odd)
STORED(suffix)
STORED(o200k)
STORED(learned)

static void test_gpt2(void **state)
{
    (void)state;
    check_real("gpt2");
}

static void test_qwen3(void **state)
{
    (void)state;
    check_real("qwen3");
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    golden = json_load_file(GOLDEN "golden.json", JSON_ALLOW_NUL, &error);
    return golden ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama2),    cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_metaspace), cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen2),     cmocka_unit_test(test_odd),
        cmocka_unit_test(test_suffix),    cmocka_unit_test(test_o200k),
        cmocka_unit_test(test_learned),   cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_qwen3),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
