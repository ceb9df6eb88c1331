/* Rows: formats told apart, line ends and marks, gzip, long lines, bad rows with file:line and
 * counts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "data_test.h"

#include "data/corpus.h"
#include "data/lines.h"
#include "data/source.h"

#include <zlib.h>

static struct dt_data_options ids_only(void)
{
    return (struct dt_data_options){
        .format = "auto", .chat_template = "auto", .end_of_text = -1, .max_length = 8};
}

static int open_text(const char *text, struct dt_corpus **out)
{
    struct dt_data_options o = ids_only();
    return dt_corpus_of_file(&o, put_text("a.jsonl", text), out);
}

static void check_rows(const char *path, int64_t documents, int64_t empty)
{
    struct dt_data_options o = ids_only();
    struct dt_corpus *c;
    struct dt_corpus_info info;
    assert_ok(dt_corpus_of_file(&o, path, &c));
    dt_corpus_describe(c, &info);
    assert_int_equal(info.documents, documents);
    assert_int_equal(info.empty_lines, empty);
    for (int64_t d = 0; d < documents; d++) {
        int32_t ids[2];
        struct dt_document r;
        assert_int_equal(dt_corpus_length(c, d), 2);
        dt_corpus_read(c, d, 0, 2, ids, NULL);
        assert_int_equal(ids[1], d + 1);
        dt_corpus_document(c, d, &r);
        assert_true(r.line >= d + 1);
    }
    dt_corpus_close(c);
}

#define ROW1 "{\"input_ids\":[0,1]}"
#define ROW2 "{\"input_ids\":[0,2]}"

static void test_line_ends(void **state)
{
    (void)state;
    check_rows(put_text("a.jsonl", ROW1 "\n" ROW2 "\n"), 2, 0);
    check_rows(put_text("a.jsonl", ROW1 "\n" ROW2), 2, 0);
    check_rows(put_text("a.jsonl", ROW1 "\r\n" ROW2 "\r\n"), 2, 0);
    check_rows(put_text("a.jsonl", "\xef\xbb\xbf" ROW1 "\n\n  \t\n" ROW2 "\n\r\n"), 2, 3);
    struct dt_corpus *c;
    assert_fails(open_text("", &c), DT_E_DATA, "holds no row");
    assert_fails(open_text("\n\n", &c), DT_E_DATA, "holds no row");
    struct dt_data_options o = ids_only();
    assert_fails(dt_corpus_of_file(&o, put_bytes("u.jsonl", "\xff\xfe{\0}\0", 6), &c), DT_E_DATA,
                 "UTF-16");
    assert_fails(dt_corpus_of_file(&o, in_dir("none.jsonl"), &c), DT_E_NOT_FOUND, "none.jsonl");
}

static void test_gzip_whole_and_damaged(void **state)
{
    (void)state;
    const char *path = in_dir("a.jsonl.gz");
    gzFile f = gzopen(path, "wb");
    assert_non_null(f);
    assert_true(gzputs(f, ROW1 "\n" ROW2 "\n") > 0);
    gzclose(f);
    check_rows(path, 2, 0);
    char *whole;
    size_t size;
    assert_ok(dt_file_read(path, 4096, &whole, &size));
    struct dt_data_options o = ids_only();
    struct dt_corpus *c;
    for (size_t n = 3; n < size; n++) /* shorter is not gzip any more */
        assert_int_equal(dt_corpus_of_file(&o, put_bytes("b.jsonl.gz", whole, n), &c), DT_E_DATA);
    assert_non_null(strstr(dt_error_message(), "gzip"));
    int harmless = 0;
    for (size_t bit = 8 * 10; bit < 8 * size; bit++) {
        whole[bit / 8] = (char)(whole[bit / 8] ^ 1 << bit % 8);
        int rc = dt_corpus_of_file(&o, put_bytes("b.jsonl.gz", whole, size), &c);
        if (rc == DT_OK) { /* the bits that fill the last byte of deflate mean nothing */
            dt_corpus_close(c);
            check_rows(in_dir("b.jsonl.gz"), 2, 0);
            harmless++;
        } else {
            assert_int_equal(rc, DT_E_DATA);
        }
        whole[bit / 8] = (char)(whole[bit / 8] ^ 1 << bit % 8);
    }
    assert_true(harmless < 8);
    free(whole);
}

static void test_format_is_told_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum dt_row_format format;
    } good[] = {{"{\"text\":\"x\",\"id\":3}", DT_ROW_TEXT},
                {"{\"input_ids\":[]}", DT_ROW_IDS},
                {"{\"completion\":\"x\",\"prompt\":\"y\"}", DT_ROW_PROMPT},
                {"{\"instruction\":\"x\",\"output\":\"\"}", DT_ROW_ALPACA},
                {"{\"conversations\":[]}", DT_ROW_SHAREGPT},
                {"{\"broken\n{\"messages\":[]}", DT_ROW_MESSAGES}};
    struct dt_source s;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(dt_source_detect(put_text("f.jsonl", good[i].text), "auto", &s));
        assert_int_equal(s.format, good[i].format);
    }
    put_text("f.jsonl", "{\"text\":\"x\"}\n{\"foo\":1,\"bar\":2}\n{\"messages\":[]}");
    assert_fails(dt_source_detect(in_dir("f.jsonl"), "auto", &s), DT_E_DATA,
                 "f.jsonl:3: rows of several");
    put_text("f.jsonl", "{\"text\":\"x\",\"messages\":[]}");
    assert_fails(dt_source_detect(in_dir("f.jsonl"), "auto", &s), DT_E_DATA, "(text, messages)");
    assert_ok(dt_source_detect(in_dir("f.jsonl"), "messages", &s));
    assert_int_equal(s.format, DT_ROW_MESSAGES);
    assert_fails(dt_source_detect(in_dir("f.jsonl"), "massages", &s), DT_E_CONFIG, "massages");
    put_text("f.jsonl", "{\"foo\":1,\"bar\":2}\n");
    assert_fails(dt_source_detect(in_dir("f.jsonl"), "auto", &s), DT_E_DATA,
                 "f.jsonl:1: found keys foo, bar; expected");
    put_text("f.json", "[{\"text\":\"x\"}]\n");
    assert_fails(dt_source_detect(in_dir("f.json"), "auto", &s), DT_E_DATA, "jq");
}

/* One row of each kind of trouble: named with its line, or counted by reason. */
static void test_bad_rows(void **state)
{
    (void)state;
    static const struct {
        const char *row, *words;
    } bad[] = {{"{\"input_ids\":[1,2]", "a.jsonl:2: byte"},
               {"{\"input_ids\":[1,2]} x", "not valid JSON"},
               {"{\"input_ids\":[1,2],\"input_ids\":[1]}", "not valid JSON"},
               {"{\"input_ids\":[1,\"\xff\"]}", "unable to decode byte 0xff"},
               {"[1,2]", "expected one object"},
               {"{\"word\":\"x\",\"y\":1}", "'input_ids' is missing: found keys word, y; expected"},
               {"{\"input_ids\":7}", "expected a list"},
               {"{\"input_ids\":[1,-2]}", "input_ids[1] is -2"},
               {"{\"input_ids\":[1,2.5]}", "input_ids[1] is 2.5"},
               {"{\"input_ids\":[1,3000000000]}", "expected an id"},
               {"{\"input_ids\":[1,99999999999999999999]}", "not valid JSON"},
               {"{\"input_ids\":[1,2],\"labels\":[1]}", "2 input_ids but 1 labels"},
               {"{\"input_ids\":[1,2],\"labels\":[1,3]}", "labels[1] is 3"},
               {"{\"input_ids\":[1,2],\"labels\":[1,-100]}", "nothing to train on"},
               {"{\"input_ids\":[1]}", "nothing to train on"},
               {"{\"input_ids\":[]}", "nothing to train on"}};
    enum { BAD = sizeof bad / sizeof bad[0] };
    static char all[4096];
    struct dt_corpus *c;
    all[0] = '\0';
    for (size_t i = 0; i < BAD; i++) {
        char text[512];
        snprintf(text, sizeof text, ROW1 "\n%s\n" ROW2 "\n", bad[i].row);
        assert_fails(open_text(text, &c), DT_E_DATA, bad[i].words);
        assert_non_null(strstr(dt_error_message(), "a.jsonl:2: "));
        assert_non_null(strstr(dt_error_message(), "on_bad_row"));
        add_to(all, sizeof all, text);
    }
    struct dt_data_options o = ids_only();
    o.on_bad_row = DT_BAD_ROW_SKIP;
    o.threads = 3;
    o.format = "input_ids";
    assert_ok(dt_corpus_of_file(&o, put_text("all.jsonl", all), &c));
    const int64_t *skipped = c->mask.header.skipped;
    assert_int_equal(c->idx.documents, 2 * BAD);
    assert_int_equal(skipped[DT_BAD_JSON], 5);
    assert_int_equal(skipped[DT_BAD_KEYS], 3);
    assert_int_equal(skipped[DT_BAD_IDS], 5);
    assert_int_equal(skipped[DT_BAD_EMPTY], 3);
    struct dt_corpus_info info;
    dt_corpus_describe(c, &info);
    assert_int_equal(info.rows, 3 * BAD);
    assert_int_equal(info.skipped, BAD);
    dt_corpus_close(c);
}

static void test_bad_turns(void **state)
{
    (void)state;
    static const struct {
        const char *row, *words;
        enum dt_row_format format;
    } bad[] = {{"{\"messages\":[{\"role\":\"bot\",\"content\":\"x\"}]}", "'role' is 'bot'",
                DT_ROW_MESSAGES},
               {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0]: 'content' is missing",
                DT_ROW_MESSAGES},
               {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "expected a string",
                DT_ROW_MESSAGES},
               {"{\"messages\":[3]}", "messages[0] is 3", DT_ROW_MESSAGES},
               {"{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[]}]}",
                "tool_calls", DT_ROW_MESSAGES},
               {"{\"conversations\":[{\"from\":\"gpt\"}]}", "'value' is missing", DT_ROW_SHAREGPT},
               {"{\"conversations\":[{\"value\":\"gpt\"}]}", "'from' is missing", DT_ROW_SHAREGPT},
               {"{\"instruction\":\"x\",\"output\":null}", "'output' is null", DT_ROW_ALPACA},
               {"{\"instruction\":\"x\",\"output\":\"\",\"history\":[[\"a\"]]}", "history[0]",
                DT_ROW_ALPACA},
               {"{\"prompt\":\"x\"}", "'completion' is missing", DT_ROW_PROMPT}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dt_row row;
        int reason;
        assert_ok(dt_row_parse(bad[i].row, strlen(bad[i].row), &row, &reason));
        assert_fails(dt_row_read(&row, bad[i].format, &reason), DT_E_DATA, bad[i].words);
        assert_int_equal(reason, DT_BAD_KEYS);
        dt_row_free(&row);
    }
}

static void test_turns_of_all_formats(void **state)
{
    (void)state;
    static const char *const rows[3] = {
        "{\"instruction\":\"i\",\"input\":\"n\",\"output\":\"o\",\"system\":\"s\",\"history\":[["
        "\"q\",\"a\"]]}",
        "{\"system\":\"s\",\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":"
        "\"function_call\","
        "\"value\":\"a\"},{\"from\":\"human\",\"value\":\"i\\nn\"},{\"from\":\"gpt\",\"value\":"
        "\"o\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
        "\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"i\\nn\"},"
        "{\"role\":\"assistant\",\"content\":\"o\"}]}"};
    static const char *const contents[5] = {"s", "q", "a", "i\nn", "o"};
    static const enum dt_chat_role roles[5] = {DT_ROLE_SYSTEM, DT_ROLE_USER, DT_ROLE_ASSISTANT,
                                               DT_ROLE_USER, DT_ROLE_ASSISTANT};
    for (int i = 0; i < 3; i++) {
        struct dt_row row;
        int reason;
        assert_ok(dt_row_parse(rows[i], strlen(rows[i]), &row, &reason));
        assert_ok(dt_row_read(&row, (enum dt_row_format)(DT_ROW_ALPACA + i), &reason));
        assert_int_equal(row.turn_count, 5);
        for (int k = 0; k < 5; k++) {
            assert_int_equal(row.turns[k].role, roles[k]);
            assert_int_equal(row.turns[k].content.n, strlen(contents[k]));
            assert_memory_equal(row.turns[k].content.p, contents[k], strlen(contents[k]));
        }
        dt_row_free(&row);
    }
}

/* A row of 100 MB is one row, and reading it is linear. */
static void test_a_long_line(void **state)
{
    (void)state;
    enum { SIZE = 100 << 20 };
    FILE *f = fopen(in_dir("long.jsonl"), "wb");
    assert_non_null(f);
    static char block[1 << 20];
    memset(block, 'a', sizeof block);
    fputs("{\"input_ids\":[0,1],\"note\":\"", f);
    for (int i = 0; i < SIZE >> 20; i++)
        assert_int_equal(fwrite(block, 1, sizeof block, f), sizeof block);
    fputs("\"}\n" ROW2 "\n", f);
    assert_int_equal(fclose(f), 0);
    check_rows(in_dir("long.jsonl"), 2, 0);
}

int main(void)
{
#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        IN_DIR(test_line_ends),
        IN_DIR(test_gzip_whole_and_damaged),
        IN_DIR(test_format_is_told_or_refused),
        IN_DIR(test_bad_rows),
        IN_DIR(test_bad_turns),
        IN_DIR(test_turns_of_all_formats),
        IN_DIR(test_a_long_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
