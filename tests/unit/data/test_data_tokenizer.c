/* The tokenizer without an oracle: scanners against PCRE2, malformed files, refusals by name,
 * invalid text, streaming, learning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "data/tokenizer_internal.h"

#include <stdio.h>
#include <unistd.h>

#define GOLDEN DT_TEST_DIR "/golden/tokenizers/"

static char temporary[] = "/tmp/dt-tokenizer-XXXXXX";

static const char *file_of(const char *name, const char *text, size_t n)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", temporary, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static int open_text(const char *text, size_t n)
{
    struct dt_tokenizer *t = NULL;
    int rc = dt_tokenizer_open(file_of("tokenizer.json", text, n), &t);
    if (rc < 0) {
        assert_null(t);
        assert_true(dt_error_message()[0] != '\0');
        assert_true(rc == DT_E_DATA || rc == DT_E_UNSUPPORTED);
    }
    dt_tokenizer_close(t);
    return rc;
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % n;
}

/* ---- Scanners ---------------------------------------------------------------------------- */

static const char *const patterns[] = {
    DT_GPT2_REGEX,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

static void same_matches(const struct dt_pattern *a, const struct dt_pattern *b,
                         struct dt_matcher *m, const char *text, size_t n)
{
    struct dt_matches x = {a, m, text, n, 0, -1}, y = {b, m, text, n, 0, -1};
    for (;;) {
        size_t start[2] = {0}, end[2] = {0};
        int one = dt_matches_next(&x, &start[0], &end[0]),
            two = dt_matches_next(&y, &start[1], &end[1]);
        if (one != two || start[0] != start[1] || end[0] != end[1])
            fail_msg("\"%s\": %d [%zu, %zu) by the scanner, %d [%zu, %zu) by PCRE2", text, one,
                     start[0], end[0], two, start[1], end[1]);
        if (one <= 0)
            break;
    }
}

/* Every character of the first planes, and the whole range in steps, between others of each class.
 */
static void compare_points(const struct dt_pattern *a, const struct dt_pattern *b,
                           struct dt_matcher *m)
{
    for (uint32_t c = 1; c < 0x110000; c += c < 0x3200 ? 1 : 29) {
        char text[64], u[4];
        if (c >= 0xd800 && c < 0xe000)
            continue;
        size_t n = 0, k = dt_utf8_put(c, u);
        static const char *const after[] = {"a ", " 1", "!", "\n", "'", "s"};
        for (size_t i = 0; i < 6; i++) {
            memcpy(text + n, u, k);
            n += k;
            memcpy(text + n, after[i], strlen(after[i]) + 1);
            n += strlen(after[i]);
        }
        same_matches(a, b, m, text, n);
    }
}

static void compare_random(const struct dt_pattern *a, const struct dt_pattern *b,
                           struct dt_matcher *m)
{
    static const char *const alphabet[] = {
        " ",  "  ",     "\n",      "\r\n", "\t",  "\u00a0", "\u3000",     "'",
        "'s", "'LL",    "'\u017f", "a",    "Zz",  "\u00e9", "\u4e2d",     "\u0301",
        "1",  "\u0663", "\u00bd",  "!",    "...", "\u20ac", "\U0001f999", "_"};
    uint64_t state = 7;
    for (int i = 0; i < 30000; i++) {
        char text[256] = "";
        for (uint64_t k = below(&state, 12); k > 0; k--)
            strcat(text, alphabet[below(&state, sizeof alphabet / sizeof *alphabet)]);
        same_matches(a, b, m, text, strlen(text));
    }
}

static void test_scanners_equal_pcre2(void **state)
{
    (void)state;
    dt_classes_build();
    for (size_t i = 0; i < 3; i++) {
        struct dt_pattern fast = {0}, slow = {0};
        struct dt_matcher m = {0};
        assert_int_equal(dt_pattern_regex(&fast, patterns[i], strlen(patterns[i]), true), 0);
        assert_int_equal(dt_pattern_regex(&slow, patterns[i], strlen(patterns[i]), false), 0);
        assert_int_not_equal(fast.kind, DT_PATTERN_REGEX);
        assert_int_equal(slow.kind, DT_PATTERN_REGEX);
        compare_points(&fast, &slow, &m);
        compare_random(&fast, &slow, &m);
        dt_pattern_free(&fast);
        dt_pattern_free(&slow);
        dt_matcher_free(&m);
    }
}

static void test_patterns_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\\w+", "\\b",        "\\h",  "[[:alpha:]]", "[a&&b]",  "\\p{Han}", "(?<n>a)", "a(?i)b",
        "(?",   "[\\P{L}]",   "{,3}", "a{2}+",       "(*FAIL)", "\\1",      "[",       "(",
        "a{2",  "\\x{110000", "\\",   "[]]",         "\\p",     "\\p{L"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dt_pattern p = {0};
        int rc = dt_pattern_regex(&p, bad[i], strlen(bad[i]), true);
        if (rc != DT_E_UNSUPPORTED && rc != DT_E_DATA)
            fail_msg("%s was taken", bad[i]);
        dt_pattern_free(&p);
    }
}

/* ---- Bytes and UTF-8 --------------------------------------------------------------------- */

static void test_byte_alphabet(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        assert_int_equal(dt_char_byte(dt_byte_char((unsigned char)b)), b);
    assert_int_equal(dt_byte_char(' '), 0x120);
    assert_int_equal(dt_byte_char('\n'), 0x10a);
    assert_int_equal(dt_byte_char(0xad), 0x143);
    assert_int_equal(dt_char_byte(0x144), -1);
    assert_int_equal(dt_char_byte(0x20), -1);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n, at;
    } bad[] = {
        {"abc\x80", 4, 3},          {"\xff", 1, 0},
        {"ab\xc3", 3, 2},           {"\xc0\x80", 2, 0},
        {"x\xe0\x80\x80", 4, 1},    {"\xed\xa0\x80", 3, 0},
        {"\xf4\x90\x80\x80", 4, 0}, {"\xf0\x80\x80\x80", 4, 0},
        {"12345678\xf8", 9, 8},     {"\xe2\x82", 2, 0},
        {"\xe2\x28\xa1", 3, 0},     {"\xf5\x80\x80\x80", 4, 0},
    };
    struct dt_tokenizer *t;
    struct dt_encoder *e;
    struct dt_ids ids = {0};
    assert_int_equal(dt_tokenizer_open(GOLDEN "qwen2.json", &t), 0);
    assert_int_equal(dt_encoder_new(t, &e), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char where[40];
        assert_int_equal(dt_encode(e, bad[i].text, bad[i].n, 0, &ids), DT_E_DATA);
        snprintf(where, sizeof where, "at offset %zu", bad[i].at);
        assert_non_null(strstr(dt_error_message(), where));
    }
    assert_int_equal(ids.n, 0);
    dt_ids_free(&ids);
    dt_encoder_free(e);
    dt_tokenizer_close(t);
}

/* Every code point goes there and back, alone and in a row. */
static void test_every_code_point(void **state)
{
    (void)state;
    struct dt_tokenizer *t;
    struct dt_encoder *e;
    struct dt_ids ids = {0};
    struct dt_text text = {0}, back = {0};
    assert_int_equal(dt_tokenizer_open(GOLDEN "learned.json", &t), 0);
    assert_int_equal(dt_encoder_new(t, &e), 0);
    for (uint32_t c = 0; c < 0x110000; c++) {
        char u[4];
        if (c < 0xd800 || c >= 0xe000)
            assert_int_equal(dt_text_append(&text, u, dt_utf8_put(c, u)), 0);
        if ((c & 0xfff) != 0xfff)
            continue;
        ids.n = 0;
        back.n = 0;
        assert_int_equal(dt_encode(e, text.p, text.n, DT_ENCODE_SPECIAL, &ids), 0);
        assert_int_equal(dt_decode(t, ids.p, ids.n, false, &back), 0);
        assert_int_equal(back.n, text.n);
        assert_memory_equal(back.p, text.p, text.n);
        text.n = 0;
    }
    dt_text_free(&text);
    dt_text_free(&back);
    dt_ids_free(&ids);
    dt_encoder_free(e);
    dt_tokenizer_close(t);
}

/* ---- Options ----------------------------------------------------------------------------- */

static void test_plain_and_special(void **state)
{
    (void)state;
    struct dt_tokenizer *t;
    struct dt_encoder *e;
    struct dt_ids ids = {0};
    assert_int_equal(dt_tokenizer_open(GOLDEN "llama3.json", &t), 0);
    assert_int_equal(dt_encoder_new(t, &e), 0);
    int32_t eot = dt_tokenizer_id(t, "<|eot_id|>", 10),
            bos = dt_tokenizer_id(t, "<|begin_of_text|>", 17);
    assert_true(eot > 0 && dt_tokenizer_is_special(t, eot));
    assert_int_equal(dt_encode(e, "<|eot_id|>", 10, DT_ENCODE_SPECIAL, &ids), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.p[0], bos);
    assert_int_equal(ids.p[1], eot);
    ids.n = 0;
    assert_int_equal(dt_encode(e, "<|eot_id|>", 10, DT_ENCODE_PLAIN, &ids), 0);
    assert_true(ids.n > 2);
    for (int64_t i = 0; i < ids.n; i++)
        assert_false(dt_tokenizer_is_special(t, ids.p[i]));
    size_t n;
    assert_null(dt_tokenizer_token(t, (int32_t)dt_tokenizer_vocab_size(t), &n));
    assert_null(dt_tokenizer_token(t, -1, &n));
    dt_ids_free(&ids);
    dt_encoder_free(e);
    dt_tokenizer_close(t);
}

/* What comes out step by step is always whole characters and adds up to the text. */
static void stream(const char *path, uint64_t seed)
{
    struct dt_tokenizer *t;
    assert_int_equal(dt_tokenizer_open(path, &t), 0);
    for (int k = 0; k < 500; k++) {
        int32_t ids[24];
        int64_t n = 1 + (int64_t)below(&seed, 24), done = 0;
        struct dt_text whole = {0}, piece = {0};
        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)below(&seed, (uint64_t)dt_tokenizer_vocab_size(t));
        assert_int_equal(dt_decode(t, ids, n, true, &whole), 0);
        for (int64_t i = 1; i <= n; i++) {
            assert_int_equal(dt_decode_next(t, ids, i, &done, i == n, &piece), 0);
            assert_int_equal(dt_utf8_valid(piece.p ? piece.p : "", piece.n), piece.n);
            assert_true(piece.n <= whole.n);
            assert_memory_equal(piece.p ? piece.p : "", whole.p, piece.n);
        }
        assert_int_equal(piece.n, whole.n);
        assert_int_equal(done, n);
        dt_text_free(&whole);
        dt_text_free(&piece);
    }
    dt_tokenizer_close(t);
}

static void test_streaming(void **state)
{
    (void)state;
    stream(GOLDEN "llama2.json", 1);
    stream(GOLDEN "llama3.json", 2);
    stream(GOLDEN "metaspace.json", 3);
    stream(GOLDEN "suffix.json", 4);
}

/* Ten times the letters may take about ten times as long, never a hundred times. The bound leaves
 * room for a busy machine: n log n gives 12, quadratic 100. */
static void test_long_words_are_cheap(void **state)
{
    (void)state;
    struct dt_tokenizer *t;
    struct dt_encoder *e;
    struct dt_ids ids = {0};
    double took[2] = {1e9, 1e9};
    char *text = malloc(1000000);
    assert_non_null(text);
    memset(text, 'e', 1000000);
    assert_int_equal(dt_tokenizer_open(GOLDEN "learned.json", &t), 0);
    assert_int_equal(dt_encoder_new(t, &e), 0);
    for (int k = 0; k < 6; k++) {
        double start = dt_clock_seconds();
        ids.n = 0;
        assert_int_equal(dt_encode(e, text, k % 2 ? 1000000 : 100000, 0, &ids), 0);
        double s = dt_clock_seconds() - start;
        took[k % 2] = s < took[k % 2] ? s : took[k % 2];
    }
    if (took[1] > 50 * took[0])
        fail_msg("a word of 100 KB: %g s, of 1 MB: %g s", took[0], took[1]);
    free(text);
    dt_ids_free(&ids);
    dt_encoder_free(e);
    dt_tokenizer_close(t);
}

/* ---- Malformed files --------------------------------------------------------------------- */

#define HEAD "{\"version\":\"1.0\",\"added_tokens\":["
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL(merges) "],\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":" merges "}}"
#define TOKEN(id, text) "{\"id\":" id ",\"content\":\"" text "\"}"
#define WITH(part) HEAD "]," part ",\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[]}}"

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
        int code;
    } bad[] = {
        {"", "", DT_E_DATA},
        {"{", "", DT_E_DATA},
        {"[]", "object", DT_E_DATA},
        {"{\"version\":\"1.0\"}", "model", DT_E_DATA},
        {WITH("\"extra\":1"), "extra", DT_E_UNSUPPORTED},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "Unigram", DT_E_UNSUPPORTED},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece", DT_E_UNSUPPORTED},
        {HEAD MODEL("[\"a c\"]"), "\"c\"", DT_E_DATA},
        {HEAD MODEL("[\"b a\"]"), "\"ba\"", DT_E_DATA},
        {HEAD MODEL("[\"ab\"]"), "merges[0]", DT_E_DATA},
        {HEAD MODEL("[\"a b c\"]"), "merges[0]", DT_E_DATA},
        {HEAD MODEL("[[\"a\"]]"), "merges[0]", DT_E_DATA},
        {HEAD MODEL("[[\"a\",1]]"), "merges[0]", DT_E_DATA},
        {HEAD MODEL("7"), "merges", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "2000000000", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "integer", DT_E_DATA},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "vocab", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "\"u\"", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout",
         DT_E_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":1}}", "fuse_unk", DT_E_DATA},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"new\":1}}", "new", DT_E_UNSUPPORTED},
        {HEAD TOKEN("9", "x") MODEL("[]"), "id 9", DT_E_DATA},
        {HEAD TOKEN("1", "a") MODEL("[]"), "id 1", DT_E_DATA},
        {HEAD TOKEN("3", "x") "," TOKEN("4", "x") MODEL("[]"), "\"x\"", DT_E_DATA},
        {HEAD TOKEN("3", "") MODEL("[]"), "content", DT_E_DATA},
        {HEAD TOKEN("null", "x") MODEL("[]"), "\"id\"", DT_E_DATA},
        {WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), "Precompiled", DT_E_UNSUPPORTED},
        {WITH("\"normalizer\":{\"type\":\"NFC\",\"odd\":1}"), "odd", DT_E_UNSUPPORTED},
        {WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"\"}"),
         "pattern", DT_E_DATA},
        {WITH("\"normalizer\":[]"), "normalizer", DT_E_DATA},
        {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[null]}"), "must be an object",
         DT_E_DATA},
        {WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "UnicodeScripts",
         DT_E_UNSUPPORTED},
        {WITH(
             "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w\"},\"behavior\":"
             "\"Isolated\"}"),
         "\\w", DT_E_UNSUPPORTED},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":"
              "\"Isolated\"}"),
         "\"(\"", DT_E_DATA},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":"
              "\"Odd\"}"),
         "Odd", DT_E_UNSUPPORTED},
        {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), "one character",
         DT_E_DATA},
        {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
              "\"x\"}"),
         "prepend_scheme", DT_E_UNSUPPORTED},
        {WITH("\"decoder\":{\"type\":\"CTC\"}"), "CTC", DT_E_UNSUPPORTED},
        {WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"),
         "start", DT_E_DATA},
        {WITH("\"post_processor\":{\"type\":\"Odd\"}"), "Odd", DT_E_UNSUPPORTED},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_"
              "tokens\":{}}"),
         "without A", DT_E_UNSUPPORTED},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
              "\"id\":"
              "\"q\"}}],\"special_tokens\":{}}"),
         "single[0]", DT_E_DATA},
        {WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",99],\"cls\":[\"a\",0]"
              "}"),
         "outside the vocabulary", DT_E_DATA},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = open_text(bad[i].text, strlen(bad[i].text));
        if (rc != bad[i].code || !strstr(dt_error_message(), bad[i].word) ||
            strchr(dt_error_message(), '\n'))
            fail_msg("%s: code %d, \"%s\"; expected %d and \"%s\"", bad[i].text, rc,
                     dt_error_message(), bad[i].code, bad[i].word);
    }
    assert_int_equal(open_text(WITH("\"decoder\":null"), strlen(WITH("\"decoder\":null"))), 0);
}

static void test_damaged_files(void **state)
{
    (void)state;
    static const char *const names[] = {"llama2", "llama3", "odd", "suffix"};
    uint64_t seed = 3;
    for (size_t k = 0; k < 4; k++) {
        char path[512];
        struct dt_text text = {0};
        snprintf(path, sizeof path, GOLDEN "%s.json", names[k]);
        assert_int_equal(dt_read_file(path, 1 << 20, &text), 0);
        for (size_t n = 0; n < text.n; n += 1 + text.n / 60)
            assert_true(open_text(text.p, n) < 0);
        for (int i = 0; i < 150; i++) { /* flipped bits may still make a tokenizer */
            size_t at = below(&seed, text.n);
            char old = text.p[at];
            text.p[at] = (char)(old ^ 1 << below(&seed, 8));
            open_text(text.p, text.n);
            text.p[at] = old;
        }
        dt_text_free(&text);
    }
    struct dt_tokenizer *t;
    assert_int_equal(dt_tokenizer_open("/nowhere/tokenizer.json", &t), DT_E_NOT_FOUND);
    assert_int_equal(dt_tokenizer_open(temporary, &t) < 0 || (dt_tokenizer_close(t), 1), 1);
}

static void test_neighbours(void **state)
{
    (void)state;
    static const char text[] = HEAD TOKEN("3", "</s>") "," TOKEN("4", "<s>") MODEL("[\"a b\"]");
    static const char config[] = "{\"eos_token\":{\"content\":\"</s>\"},\"bos_token\":\"<s>\"}";
    struct dt_tokenizer *t;
    file_of("tokenizer.json", text, strlen(text));
    file_of("tokenizer_config.json", config, strlen(config));
    assert_int_equal(dt_tokenizer_open(temporary, &t), 0);
    assert_int_equal(dt_tokenizer_eos(t), 3);
    assert_int_equal(dt_tokenizer_bos(t), 4);
    assert_int_equal(dt_tokenizer_vocab_size(t), 5);
    uint64_t hash = dt_tokenizer_hash(t);
    dt_tokenizer_close(t);
    file_of("tokenizer_config.json", "[", 1);
    assert_int_equal(dt_tokenizer_open(temporary, &t), DT_E_DATA);
    unlink(file_of("tokenizer_config.json", "{}", 2));
    assert_int_equal(dt_tokenizer_open(temporary, &t), 0);
    assert_int_equal(dt_tokenizer_eos(t), -1);
    assert_true(dt_tokenizer_hash(t) == hash);
    dt_tokenizer_close(t);
}

/* ---- Learning ---------------------------------------------------------------------------- */

static int train(const char *const *files, int64_t count, int64_t size)
{
    static const char *const special[] = {"<|endoftext|>"};
    static char directory[256];
    snprintf(directory, sizeof directory, "%s/learned", temporary);
    struct dt_tokenizer_training t = {files, count, size, special, 1, 2, directory};
    return dt_tokenizer_train(&t);
}

static void test_learning(void **state)
{
    (void)state;
    static const char words[] =
        "low low low low low lower lower newest newest newest newest newest newest "
        "widest widest widest\n\nIt's 1999, isn't it? \xc3\xa9t\xc3\xa9\n";
    static const char rows[] =
        "{\"text\": \"low lower\"}\n\n{\"messages\": [{\"role\": \"zzzzzzzz\", "
        "\"content\": \"zz zz\"}]}\n";
    char a[256], b[256], path[300];
    snprintf(a, sizeof a, "%s", file_of("words.txt", words, strlen(words)));
    snprintf(b, sizeof b, "%s", file_of("rows.jsonl", rows, strlen(rows)));
    const char *files[] = {a, b};
    struct dt_tokenizer *t;
    assert_int_equal(train(files, 2, 275), 0);
    snprintf(path, sizeof path, "%s/learned", temporary);
    assert_int_equal(dt_tokenizer_open(path, &t), 0);
    assert_int_equal(dt_tokenizer_eos(t), 0);
    assert_true(dt_tokenizer_vocab_size(t) <= 275);
    assert_true(dt_tokenizer_id(t, "low", 3) > 256); /* in " low", "lower" and alone */
    assert_true(dt_tokenizer_id(t, "est", 3) > 256);
    assert_int_equal(dt_tokenizer_id(t, "zzz", 3), -1); /* a role's name is no text */
    uint64_t hash = dt_tokenizer_hash(t);
    dt_tokenizer_close(t);
    assert_int_equal(train(files, 2, 275), 0);
    assert_int_equal(dt_tokenizer_open(path, &t), 0);
    assert_true(dt_tokenizer_hash(t) == hash);
    dt_tokenizer_close(t);
    assert_int_equal(train(files, 2, 256), DT_E_USAGE);
    assert_int_equal(train(files, 0, 300), DT_E_USAGE);
    file_of("words.txt", "abc\n\xff", 5);
    assert_int_equal(train(files, 1, 300), DT_E_DATA);
    assert_non_null(strstr(dt_error_message(), "offset 4"));
    file_of("rows.jsonl", "{\"text\": 1}\n{", 13);
    assert_int_equal(train(files + 1, 1, 300), DT_E_DATA);
    assert_non_null(strstr(dt_error_message(), "rows.jsonl:2"));
}

static int setup(void **state)
{
    (void)state;
    dt_log_set_level(DT_LOG_ERROR);
    return mkdtemp(temporary) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", temporary);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scanners_equal_pcre2),
        cmocka_unit_test(test_patterns_refused),
        cmocka_unit_test(test_byte_alphabet),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_plain_and_special),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_long_words_are_cheap),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_learning),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
