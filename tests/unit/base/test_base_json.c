/* JSON: strict reading and messages that say the key, what was found and what was expected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void assert_says(int rc, const char *words)
{
    assert_int_equal(rc, DT_E_MODEL);
    if (!strstr(dt_error_message(), words))
        print_message("'%s' lacks '%s'\n", dt_error_message(), words);
    assert_non_null(strstr(dt_error_message(), words));
}

static void syntax_errors_have_a_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "c.json is empty"},
        {"{\n  \"a\": 1,\n}", "c.json:3:1: "},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": 123456789012345678901234567890}", "too big integer"},
        {"{} x", "c.json:1:4: "},
        {"{\"a\": \"\xff\"}", "unable to decode byte 0xff"},
        {"3", "c.json:1:"},
    };
    json_t *json;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_says(dt_json_parse(bad[i].text, strlen(bad[i].text), "c.json", DT_E_MODEL, &json),
                    bad[i].words);
    size_t deep = 100000;
    char *text = malloc(deep);
    memset(text, '[', deep);
    assert_says(dt_json_parse(text, deep, "c.json", DT_E_MODEL, &json), "parsing depth");
    free(text);
}

static void getters_check_types_and_ranges(void **state)
{
    (void)state;
    static const char text[] =
        "{\"i\": 7, \"s\": \"abc\", \"b\": true, \"r\": 0.5, \"n\": null, \"o\": {}, "
        "\"l\": [1], \"long\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,"
        "24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40]}";
    json_t *json;
    assert_int_equal(dt_json_parse(text, sizeof text - 1, "c.json", DT_E_MODEL, &json), DT_OK);
    struct dt_json_in in = {json, "c.json", DT_E_MODEL};
    int64_t i = 42;
    double r = 4.5;
    bool b = false;
    const char *s = "default";
    const json_t *o = NULL;
    assert_int_equal(dt_json_get_int(in, "absent", 0, 9, &i), DT_OK);
    assert_int_equal(dt_json_get_int(in, "n", 0, 9, &i), DT_OK);
    assert_int_equal(i, 42);
    assert_int_equal(dt_json_need_int(in, "i", 0, 9, &i), DT_OK);
    assert_int_equal(i, 7);
    assert_int_equal(dt_json_get_real(in, "absent", &r), DT_OK);
    assert_true(r == 4.5);
    assert_int_equal(dt_json_need_real(in, "r", &r), DT_OK);
    assert_true(r == 0.5);
    assert_int_equal(dt_json_need_real(in, "i", &r), DT_OK);
    assert_true(r == 7);
    assert_int_equal(dt_json_need_bool(in, "b", &b), DT_OK);
    assert_true(b);
    assert_int_equal(dt_json_get_string(in, "absent", &s), DT_OK);
    assert_string_equal(s, "default");
    assert_int_equal(dt_json_need_string(in, "s", &s), DT_OK);
    assert_string_equal(s, "abc");
    assert_int_equal(dt_json_need_object(in, "o", &o), DT_OK);
    assert_int_equal(dt_json_need_array(in, "l", &o), DT_OK);
    assert_int_equal(json_array_size(o), 1);

    assert_says(dt_json_get_int(in, "s", 1, INT64_MAX, &i),
                "c.json: 's' is \"abc\", expected an integer of at least 1");
    assert_says(dt_json_get_int(in, "i", 8, 9, &i), "'i' is 7, expected an integer from 8 to 9");
    assert_says(dt_json_get_int(in, "i", 1, 6, &i), "'i' is 7, expected an integer from 1 to 6");
    assert_says(dt_json_get_int(in, "r", 1, 6, &i), "'r' is 0.5");
    assert_says(dt_json_get_real(in, "s", &r), "expected a number");
    assert_says(dt_json_get_bool(in, "i", &b), "expected true or false");
    assert_says(dt_json_get_string(in, "i", &s), "expected a string");
    assert_says(dt_json_get_object(in, "l", &o), "'l' is [1], expected an object");
    assert_says(dt_json_get_array(in, "o", &o), "'o' is {}, expected an array");
    assert_says(dt_json_get_object(in, "long", &o), "'long' is a long array");
    assert_says(dt_json_need_int(in, "absent", 0, 9, &i),
                "'absent' is absent, expected an integer");
    assert_says(dt_json_need_real(in, "absent", &r), "expected a number");
    assert_says(dt_json_need_bool(in, "absent", &b), "expected true or false");
    assert_says(dt_json_need_string(in, "n", &s), "'n' is null, expected a string");
    assert_says(dt_json_need_object(in, "absent", &o), "expected an object");
    assert_says(dt_json_need_array(in, "absent", &o), "expected an array");
    json_decref(json);
}

static void what_is_saved_comes_back_bit_for_bit(void **state)
{
    (void)state;
    char path[] = "/tmp/dt_json_XXXXXX";
    double values[] = {1.0 / 3, 1e-310, 3.0e300, 0.1};
    json_t *array = json_array(), *back;
    for (size_t i = 0; i < 4; i++)
        json_array_append_new(array, json_real(values[i]));
    close(mkstemp(path));
    assert_int_equal(dt_json_save(path, array), DT_OK);
    assert_int_equal(dt_json_load(path, 1000, DT_E_MODEL, &back), DT_OK);
    for (size_t i = 0; i < 4; i++)
        assert_true(json_real_value(json_array_get(back, i)) == values[i]);
    json_decref(array);
    json_decref(back);
    unlink(path);
    assert_int_equal(dt_json_load(path, 1000, DT_E_MODEL, &back), DT_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax_errors_have_a_place),
        cmocka_unit_test(getters_check_types_and_ranges),
        cmocka_unit_test(what_is_saved_comes_back_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
