/* The loss curve: what metrics.jsonl of interrupted and resumed runs comes to, and the picture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/curve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char metrics[64], picture[64];

static void write_metrics(const char *text)
{
    assert_int_equal(dt_file_write(metrics, text, strlen(text)), DT_OK);
}

static void a_resumed_run_counts_its_later_word(void **state)
{
    (void)state;
    struct dt_curves c;
    write_metrics("{\"event\": \"start\", \"step\": 0}\n"
                  "{\"step\": 1, \"loss\": 9.0}\n{\"step\": 2, \"loss\": 8.0}\n"
                  "{\"step\": 2, \"eval_loss\": 8.5}\n{\"step\": 3, \"loss\": 7.0}\n"
                  "{\"event\": \"start\", \"step\": 1}\n"
                  "{\"step\": 2, \"loss\": 8.25}\n{\"step\": 2, \"eval_loss\": 8.75}\n"
                  "{\"step\": 3, \"lo");
    assert_int_equal(dt_curves_load(metrics, &c), DT_OK);
    assert_int_equal(c.train.count, 2);
    assert_true(c.train.x[1] == 2 && c.train.y[1] == 8.25);
    assert_int_equal(c.eval.count, 1);
    assert_true(c.eval.y[0] == 8.75);
    dt_curves_free(&c);
}

static void a_bad_line_is_named(void **state)
{
    (void)state;
    struct dt_curves c;
    write_metrics("{\"step\": 1, \"loss\": 9.0}\nrubbish\n{\"step\": 2, \"loss\": 8.0}\n");
    assert_int_equal(dt_curves_load(metrics, &c), DT_E_DATA);
    assert_non_null(strstr(dt_error_message(), ".jsonl:2:"));
    assert_int_equal(dt_curves_load("/no/such", &c), DT_E_NOT_FOUND);
    write_metrics("{\"event\": \"start\"}\n");
    assert_int_equal(dt_curves_load(metrics, &c), DT_OK);
    assert_int_equal(dt_curves_draw(&c, "x", picture), DT_E_DATA);
    dt_curves_free(&c);
}

static size_t count(const char *text, const char *word)
{
    size_t n = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

/* Every point stands inside of the picture, whatever the values; markup in the title stays text. */
static void the_picture_holds_every_curve(void **state)
{
    (void)state;
    static const double values[][2] = {{5, 5}, {0, 1e-9}, {-3, 1e6}, {11.5, 2.25}, {1e-3, 2e-3}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double x[2] = {1, 5000}, y[2] = {values[i][0], values[i][1]};
        struct dt_curves c = {.train = {x, y, 2, 2}, .eval = {x + 1, y + 1, 1, 1}};
        char *text, *points;
        size_t size;
        double px, py;
        int used;
        assert_int_equal(dt_curves_draw(&c, "<b> & c", picture), DT_OK);
        assert_int_equal(dt_file_read(picture, 1 << 20, &text, &size), DT_OK);
        assert_int_equal(count(text, "<polyline"), 2);
        assert_int_equal(count(text, "<b>"), 0);
        assert_int_equal(count(text, "nan") + count(text, "inf"), 0);
        points = strstr(text, "points=\"") + 8;
        for (; sscanf(points, "%lf,%lf %n", &px, &py, &used) == 2; points += used)
            assert_true(px >= 0 && px <= 860 && py >= 0 && py <= 480);
        assert_int_equal(*points, '"');
        free(text);
    }
}

static int setup(void **state)
{
    (void)state;
    snprintf(metrics, sizeof metrics, "/tmp/dt_curve_%ld.jsonl", (long)getpid());
    snprintf(picture, sizeof picture, "/tmp/dt_curve_%ld.svg", (long)getpid());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(metrics);
    unlink(picture);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_counts_its_later_word),
        cmocka_unit_test(a_bad_line_is_named),
        cmocka_unit_test(the_picture_holds_every_curve),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
