/* The configuration engine on a small table of its own: every type, every kind of problem, options,
 * names, and that what is printed reads back to the same. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct values {
    int64_t count, limit;
    double rate;
    bool on;
    int color;
    char *name, *kind, *file;
    struct dt_config_strings words, files, globs;
    double pair[2];
    struct dt_config_amount warmup;
};

static const char *const colors[] = {"red|rouge", "green", NULL};
static const char *const kinds[] = {"alpha", "beta", NULL};
#define AT(m) .offset = offsetof(struct values, m)
static const struct dt_config_key keys[] = {
    {"count", "number", DT_CONFIG_INT, AT(count), "3", .min = 1, .max = 10, .doc = "a count",
     .unit = "pieces"},
    {"name", NULL, DT_CONFIG_STRING, AT(name), .required = true, .doc = "a name"},
    {"a.rate", "speed", DT_CONFIG_FLOAT, AT(rate), "0.5", .max = 1, .above_min = true,
     .below_max = true, .doc = "a | rate"},
    {"a.on", NULL, DT_CONFIG_BOOL, AT(on), "true", .doc = "a switch"},
    {"a.color", NULL, DT_CONFIG_ENUM, AT(color), "red", .names = colors, .doc = "a color"},
    {"a.kind", NULL, DT_CONFIG_STRING, AT(kind), "alpha", .names = kinds, .doc = "a kind"},
    {"a.limit", NULL, DT_CONFIG_INT, AT(limit), .min = 1, .max = DT_CONFIG_MANY, .doc = "a limit",
     .default_words = "none"},
    {"b.file", NULL, DT_CONFIG_PATH, AT(file), .doc = "a file"},
    {"b.words", NULL, DT_CONFIG_STRINGS, AT(words), "[]", .doc = "words"},
    {"b.files", NULL, DT_CONFIG_PATHS, AT(files), "[]", .doc = "files"},
    {"b.globs", NULL, DT_CONFIG_PATTERNS, AT(globs), "[]", .doc = "patterns"},
    {"b.pair", NULL, DT_CONFIG_FLOATS, AT(pair), "[1, 2.5]", .count = 2, .doc = "a pair"},
    {"b.warmup", NULL, DT_CONFIG_AMOUNT, AT(warmup), "10%", .unit = "steps", .doc = "an amount"},
};
static const struct dt_config_section sections[] = {{"a", "Section a"}, {"b", "Section b"}, {0}};
static const struct dt_config_word words[] = {{"future", true, "futures are"},
                                              {"old", false, "write count"},
                                              {"a.color=blue", true, "is"},
                                              {0}};
static const struct dt_config_table table = {keys, sizeof keys / sizeof *keys, sections, words,
                                             sizeof(struct values)};

static int read_with(const char *text, size_t size, const char *const *options, struct values *v)
{
    struct dt_config *c;
    assert_int_equal(dt_config_begin(&table, v, &c), 0);
    dt_config_read_text(c, "t.yaml", "/dir", text, size);
    for (; options && options[0]; options += 2)
        dt_config_read_option(c, options[0], options[1]);
    dt_config_defaults(c);
    return dt_config_end(c);
}

static int read_text(const char *text, struct values *v)
{
    return read_with(text, strlen(text), NULL, v);
}

/* The text fails with `code` and a message that contains `part`. */
static void refused(const char *text, int code, const char *part)
{
    struct values v;
    assert_int_equal(read_text(text, &v), code);
    if (!strstr(dt_error_message(), part))
        fail_msg("for <%s>\nexpected: %s\nfound:    %s", text, part, dt_error_message());
    dt_config_clear(&table, &v);
}

static void test_defaults_and_types(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(read_text("name: x", &v), 0);
    assert_int_equal(v.count, 3);
    assert_true(v.rate == 0.5 && v.on && v.color == 0 && v.limit == 0 && !v.file);
    assert_true(v.pair[0] == 1 && v.pair[1] == 2.5);
    assert_true(v.warmup.share && v.warmup.value == 0.1);
    assert_string_equal(v.kind, "alpha");
    dt_config_clear(&table, &v);
    assert_null(v.kind);

    assert_int_equal(
        read_text(
            "count: 1e1\nname: 'two words'\n"
            "a: {rate: 0.2_5, on: No, color: rouge, kind: beta, limit: 1_000}\n"
            "b:\n  file: sub/./x//y\n  words: [a, \"b c\", 7]\n  files: one\n  globs: ['*.w']\n"
            "  pair: [-1.5, 3e2]\n  warmup: 20\n",
            &v),
        0);
    assert_int_equal(v.count, 10);
    assert_string_equal(v.name, "two words");
    assert_true(v.rate == 0.25 && !v.on && v.color == 0 && v.limit == 1000);
    assert_string_equal(v.kind, "beta");
    assert_string_equal(v.file, "/dir/sub/x/y");
    assert_int_equal(v.words.count, 3);
    assert_string_equal(v.words.items[2], "7");
    assert_int_equal(v.files.count, 1);
    assert_string_equal(v.files.items[0], "/dir/one");
    assert_string_equal(v.globs.items[0], "*.w");
    assert_true(v.pair[0] == -1.5 && v.pair[1] == 300);
    assert_true(!v.warmup.share && v.warmup.value == 20);
    assert_int_equal(dt_config_amount_of(v.warmup, 1000), 20);
    assert_int_equal(dt_config_amount_of((struct dt_config_amount){0.03, true}, 1000), 30);
    dt_config_clear(&table, &v);

    assert_int_equal(read_text("name: x\nb: {warmup: \"3%\", file: /abs}\na:\n", &v), 0);
    assert_true(v.warmup.share && v.warmup.value == 0.03);
    assert_string_equal(v.file, "/abs");
    dt_config_clear(&table, &v);
}

static void test_anchors(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(read_text("name: &n x\nb: {words: &w [*n, y], globs: *w}", &v), 0);
    assert_int_equal(v.globs.count, 2);
    assert_string_equal(v.globs.items[0], "x");
    dt_config_clear(&table, &v);
    refused("name: x\nb: {words: &w [*w]}", DT_E_CONFIG, "found a list in the list");
    refused("name: *n", DT_E_CONFIG, "t.yaml:1: bad YAML: found undefined alias");
    refused("name: x\n<<: {a: 1}", DT_E_CONFIG, "t.yaml:2: merge keys");
}

static void test_wrong_values(void **state)
{
    (void)state;
    refused("count: 0\nname: x", DT_E_CONFIG,
            "t.yaml:1: count: found \"0\", expected an integer from 1 to 10");
    refused("name: x\ncount: '3'", DT_E_CONFIG, "t.yaml:2: count: found the string \"3\"");
    refused("name: x\ncount: 2.5", DT_E_CONFIG, "expected an integer");
    refused("name: x\ncount: 99999999999999999999", DT_E_CONFIG, "expected an integer");
    refused("name: x\ncount: [1]", DT_E_CONFIG, "found a list, expected an integer");
    refused("name: x\ncount:", DT_E_CONFIG, "found no value, expected an integer");
    refused("name: x\na: {rate: 0}", DT_E_CONFIG, "expected a number above 0 below 1");
    refused("name: x\na: {rate: 1}", DT_E_CONFIG, "found \"1\"");
    refused("name: x\na: {rate: nan}", DT_E_CONFIG, "found \"nan\"");
    refused("name: x\na: {rate: 0x1p-2}", DT_E_CONFIG, "found \"0x1p-2\"");
    refused("name: x\na: {on: 1}", DT_E_CONFIG, "expected true or false");
    refused("name: x\na: {color: gren}", DT_E_CONFIG,
            "expected one of: red, green; did you mean green?");
    refused("name: x\na: {color: rde}", DT_E_CONFIG, "did you mean red?");
    refused("name: x\na: {kind: bet}", DT_E_CONFIG, "did you mean beta?");
    refused("name: x\na: {color: blue}", DT_E_UNSUPPORTED,
            "a.color: blue: is not built into this version");
    refused("name: {a: 1}", DT_E_CONFIG, "name: found a mapping, expected a string");
    refused("name: ''", DT_E_CONFIG, "is empty");
    refused("name: \"a\\0b\"", DT_E_CONFIG, "without NUL");
    refused("name: x\nb: {words: [a, ]}\nc: 1", DT_E_CONFIG, "unknown key \"c\"");
    refused("name: x\nb: {words: [a, ~]}", DT_E_CONFIG, "found an empty item");
    refused("name: x\nb: {words: [{a: 1}]}", DT_E_CONFIG, "found a mapping in the list");
    refused("name: x\nb: {words: {a: 1}}", DT_E_CONFIG,
            "found a mapping, expected a list of strings");
    refused("name: x\nb: {pair: [1]}", DT_E_CONFIG,
            "found a list of 1, expected a list of 2 numbers");
    refused("name: x\nb: {pair: 1}", DT_E_CONFIG, "found a single value");
    refused("name: x\nb: {pair: [1, b]}", DT_E_CONFIG, "found \"b\"");
    refused("name: x\nb: {warmup: 1.5}", DT_E_CONFIG,
            "expected a number of steps (20) or a share (0.03, 3%)");
    refused("name: x\nb: {warmup: -1}", DT_E_CONFIG, "found \"-1\"");
    refused("name: x\nb: {warmup: 101%}", DT_E_CONFIG, "found \"101%\"");
}

static void test_names(void **state)
{
    (void)state;
    struct values v;
    refused("nmae: x", DT_E_CONFIG, "t.yaml:1: unknown key \"nmae\"; did you mean name?");
    refused("nmae: x", DT_E_CONFIG, "t.yaml: missing key name (required): a name");
    refused("name: x\na: {raet: 1}", DT_E_CONFIG, "unknown key \"a.raet\"; did you mean a.rate?");
    refused("name: x\nb:\n\n  rate: 1", DT_E_CONFIG,
            "t.yaml:4: unknown key \"b.rate\"; did you mean a.rate?");
    refused("name: x\na: {qqqqqqqq: 1}", DT_E_CONFIG,
            "; keys of section a: rate, on, color, kind, limit");
    refused("name: x\nqqqqqqqq: 1", DT_E_CONFIG, "; there are: count, name, a, b");
    refused("name: x\nqqqq: {rate: 1}", DT_E_CONFIG, "unknown section \"qqqq\"; there are: count");
    refused("name: x\na: 5", DT_E_CONFIG,
            "t.yaml:2: found \"5\", expected section a with keys and values");
    refused("name: x\na: [5]", DT_E_CONFIG, "found a list, expected section a");
    refused("- name", DT_E_CONFIG, "t.yaml: found a list, expected a mapping with keys and values");
    refused("just text", DT_E_CONFIG, "found \"just text\", expected a mapping");
    refused("name: x\nfuture: {x: 1}", DT_E_UNSUPPORTED,
            "t.yaml:2: \"future\": futures are not built into this version");
    refused("name: x\nfuture: 1\ncount: 0", DT_E_CONFIG, "2 problems");
    refused("name: x\nold: 1", DT_E_CONFIG, "unknown key \"old\": write count");
    refused("name: x\nname: y", DT_E_CONFIG, "t.yaml:2: name is given twice, first at t.yaml:1");
    refused("name: x\nnumber: 2\ncount: 2", DT_E_CONFIG,
            "t.yaml:3: count is given twice, first at t.yaml:2");
    refused("name: x\n? [a]\n: b", DT_E_CONFIG, "found a list where the name of a key is expected");
    refused("name: x\n'': b", DT_E_CONFIG, "unknown key \"\"");
    refused("{? a: b}", DT_E_CONFIG, "t.yaml");

    assert_int_equal(read_text("name: x\nnumber: 4\nspeed: 0.75", &v), 0);
    assert_int_equal(v.count, 4);
    assert_true(v.rate == 0.75);
    dt_config_clear(&table, &v);
    assert_int_equal(read_text("name: x\na: {speed: 0.75}\na.on: false", &v), 0);
    assert_true(v.rate == 0.75 && !v.on);
    dt_config_clear(&table, &v);

    assert_ptr_equal(dt_config_find(&table, "a.rate"), &keys[2]);
    assert_null(dt_config_find(&table, "rate"));
    assert_null(dt_config_nearest(&table, "something quite different"));
    char longer[300];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_null(dt_config_find(&table, longer));
    assert_null(dt_config_nearest(&table, longer));
}

static void test_bad_files(void **state)
{
    (void)state;
    struct values v;
    struct dt_config *c;
    refused("", DT_E_CONFIG, "t.yaml: is empty");
    refused("# only a remark\n", DT_E_CONFIG, "is empty");
    refused("name: x\n---\nname: y\n", DT_E_CONFIG, "more than one YAML document");
    refused("name: x\n--- [", DT_E_CONFIG, "bad YAML");
    refused("name: [x", DT_E_CONFIG,
            "t.yaml:2: bad YAML: did not find expected ',' or ']' while parsing "
            "a flow sequence that starts in line 1");
    refused("name: x\n\tcount: 2", DT_E_CONFIG, "t.yaml:2: bad YAML");
    assert_int_equal(read_with("name: x\n\x01", 9, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "t.yaml:2: bad YAML: control characters"));
    dt_config_clear(&table, &v);
    assert_int_equal(read_with("name: \xff", 7, NULL, &v), DT_E_CONFIG);
    dt_config_clear(&table, &v);

    /* Deep, wide and long ones are refused, not followed. */
    size_t size = DT_CONFIG_MAX_BYTES + 1;
    char *big = malloc(size + 1);
    assert_non_null(big);
    memset(big, ' ', size);
    assert_int_equal(read_with(big, size, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "at most 1048576"));
    dt_config_clear(&table, &v);
    memset(big, '[', 100000);
    assert_int_equal(read_with(big, 100000, NULL, &v), DT_E_CONFIG);
    dt_config_clear(&table, &v);
    size_t at = 0;
    for (int i = 0; i < 2000; i++)
        at += (size_t)snprintf(big + at, size - at, "k%d: 1\n", i);
    assert_int_equal(read_with(big, at, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "found 2000 keys"));
    dt_config_clear(&table, &v);
    at = (size_t)snprintf(big, size, "name: x\nb: {words: [");
    for (int i = 0; i < 5000; i++)
        at += (size_t)snprintf(big + at, size - at, "a,");
    at += (size_t)snprintf(big + at, size - at, "]}");
    assert_int_equal(read_with(big, at, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "at most 4096"));
    dt_config_clear(&table, &v);
    at = (size_t)snprintf(big, size, "name: ");
    memset(big + at, 'n', 5000);
    assert_int_equal(read_with(big, at + 5000, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "longer than 4095 bytes"));
    dt_config_clear(&table, &v);
    at = 0; /* more problems than a message holds are counted */
    for (int i = 0; i < 1000; i++)
        at += (size_t)snprintf(big + at, size - at, "unknown_and_rather_long_key_%d: 1\n", i);
    assert_int_equal(read_with(big, at, NULL, &v), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "1001 problems"));
    assert_non_null(strstr(dt_error_message(), "\nand 9"));
    dt_config_clear(&table, &v);
    free(big);

    assert_int_equal(dt_config_begin(&table, &v, &c), 0);
    dt_config_read_file(c, "/nowhere/at/all.yaml");
    assert_false(dt_config_sound(c));
    assert_int_equal(dt_config_end(c), DT_E_CONFIG);
    assert_non_null(strstr(dt_error_message(), "/nowhere/at/all.yaml"));
}

static int with_option(const char *option, const char *value, struct values *v)
{
    const char *options[] = {option, value, NULL};
    const char *text = "name: x\ncount: 2\n";
    return read_with(text, strlen(text), options, v);
}

static void option_refused(const char *option, const char *value, const char *message)
{
    struct values v;
    assert_true(with_option(option, value, &v) < 0);
    assert_string_equal(dt_error_message(), message);
    dt_config_clear(&table, &v);
}

static void test_options(void **state)
{
    (void)state;
    struct values v;
    char here[4096], expected[4200];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(with_option("--count", "7", &v), 0);
    assert_int_equal(v.count, 7);
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--a.on", "false", &v), 0);
    assert_false(v.on);
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--no-a.on", NULL, &v), 0);
    assert_false(v.on);
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--a.on", NULL, &v), 0);
    assert_true(v.on);
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--b.words", "[a, 'b']", &v), 0);
    assert_int_equal(v.words.count, 2);
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--b.words", "a, b", &v), 0);
    assert_string_equal(v.words.items[0], "a, b"); /* a text is itself */
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--name", "a: [b] # c", &v), 0);
    assert_string_equal(v.name, "a: [b] # c");
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--name", "'q'", &v), 0);
    assert_string_equal(v.name, "q");
    dt_config_clear(&table, &v);
    assert_int_equal(with_option("--b.file", "f", &v), 0); /* relative to here, not to the file */
    snprintf(expected, sizeof expected, "%s/f", here);
    assert_string_equal(v.file, expected);
    dt_config_clear(&table, &v);

    option_refused("--count", "many", "--count: found \"many\", expected an integer from 1 to 10");
    option_refused("--speed", "2",
                   "--speed: a.rate: found \"2\", expected a number above 0 below 1");
    option_refused("--coutn", "1", "--coutn: unknown key \"coutn\"; did you mean count?");
    option_refused("--count", NULL, "--count: found no value, expected an integer from 1 to 10");
    option_refused("--count", "", "--count: is empty");
    option_refused("--count", "[", "--count: bad YAML: did not find expected node content");
    option_refused("--no-count", NULL, "--no-count: count is not true or false");
    option_refused("--future", "1",
                   "--future: \"future\": futures are not built into this version");
    option_refused("--name", "\xff", "--name: not UTF-8 text");
    option_refused("--name", "", "--name: \"\" is empty");
    option_refused("--a", "{rate: 1}", "--a: unknown section \"a\"; did you mean a?");
}

static char *printed(const struct values *v)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    dt_config_print(&table, v, f);
    fclose(f);
    return text;
}

/* Print, read, print: the same text. */
static void round_trip(const char *yaml)
{
    struct values v, again;
    assert_int_equal(read_text(yaml, &v), 0);
    char *first = printed(&v);
    assert_int_equal(read_text(first, &again), 0);
    char *second = printed(&again);
    assert_string_equal(first, second);
    assert_string_equal(v.name, again.name);
    assert_memory_equal(&v.pair, &again.pair, sizeof v.pair);
    assert_true(v.warmup.value == again.warmup.value && v.warmup.share == again.warmup.share);
    free(first);
    free(second);
    dt_config_clear(&table, &v);
    dt_config_clear(&table, &again);
}

static void test_printing(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(read_text("name: x\nb: {words: [a b, 'true', '1', \"~\", plain]}", &v), 0);
    char *text = printed(&v);
    assert_string_equal(
        text, "count: 3\nname: x\na:\n  rate: 0.5\n  on: true\n  color: red\n  kind: alpha\n"
              "b:\n  words: [\"a b\", \"true\", \"1\", \"~\", plain]\n  pair: [1, 2.5]\n"
              "  warmup: 0.1\n");
    free(text);
    dt_config_clear(&table, &v);
    round_trip("name: \"a\\nb\\x01\\u2028\\uFEFF\\U0001F600\\\"\\\\ é\\x85\"");
    round_trip("name: '- x'");
    round_trip(
        "name: 'null'\nb: {warmup: 1.0, pair: [0.1, 1e-300]}\na: {rate: 0.30000000000000004}");
    round_trip("name: '-'\nb: {warmup: 0%, words: ['#', ',', '[', '*.weight', 'a: b']}");
    round_trip("name: '.5'\nb: {warmup: 1, file: \"/ü/x y\"}");

    char type[64];
    dt_config_type_text(&keys[2], type, sizeof type);
    assert_string_equal(type, "a number above 0 below 1");
    dt_config_type_text(&keys[6], type, sizeof type);
    assert_string_equal(type, "an integer from 1");
    dt_config_type_text(&keys[4], type, 10); /* cut, not overrun */
    assert_true(strlen(type) < 10);
}

static void test_documentation(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    dt_config_help(&table, f);
    dt_config_markdown(&table, f);
    fclose(f);
    for (size_t i = 0; i < table.count; i++)
        assert_non_null(strstr(text, keys[i].name));
    assert_non_null(strstr(
        text, "  --count=VALUE\n      a count: an integer from 1 to 10, in pieces (default: 3)\n"));
    assert_non_null(strstr(text, "| `a.rate` | a number above 0 below 1 | `0.5` | a \\| rate; also "
                                 "read as `speed` | free |"));
    assert_non_null(strstr(text, "## b\n\nSection b.\n"));
    assert_non_null(strstr(text, "| `future` | futures are not built into this version |"));
    free(text);
}

static void test_problems_across_keys(void **state)
{
    (void)state;
    struct values v;
    struct dt_config *c;
    assert_int_equal(dt_config_begin(&table, &v, &c), 0);
    dt_config_read_text(c, "t.yaml", "/", "name: x\n\na: {rate: 0.5}", 23);
    dt_config_defaults(c);
    assert_true(dt_config_given(c, "a.rate") && dt_config_given(c, "speed"));
    assert_false(dt_config_given(c, "count") || dt_config_given(c, "nothing"));
    assert_true(dt_config_sound(c));
    dt_config_problem(c, "a.rate", "does not suit");
    dt_config_unsupported(c, "count", "not yet");
    assert_int_equal(dt_config_end(c), DT_E_CONFIG);
    assert_string_equal(
        dt_error_message(),
        "2 problems in the configuration\nt.yaml:3: does not suit\nt.yaml: not yet");
    dt_config_clear(&table, &v);
}

int main(void)
{
    dt_log_set_level(DT_LOG_ERROR); /* notes about synonyms */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_types),
        cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_printing),
        cmocka_unit_test(test_documentation),
        cmocka_unit_test(test_problems_across_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
