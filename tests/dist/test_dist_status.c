/* Looking at a run of several workers while it runs: `ctl status` lists all of them as they are, a
 * second `train` on the same directory is refused and told by whom; and `doctor --comm` measures
 * every pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault/crew.h"

#include <jansson.h>

#define WORKERS 3

static struct live l;

static int open_run(void **state)
{
    (void)state;
    program_open("dist-status");
    program_tiny_run();
    return 0;
}

static int close_run(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static json_t *parse(void)
{
    json_error_t error;
    json_t *o = json_loads(program_out, 0, &error);
    if (!o)
        fail_msg("no JSON (%s): %s", error.text, program_out);
    return o;
}

static long long number(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);
    if (!json_is_integer(value))
        fail_msg("no integer \"%s\" in: %s", key, program_out);
    return json_integer_value(value);
}

/* Returns the run's step; workers may be at the next one. */
static long long expect_status(const struct crew *crew)
{
    program_expect(0, "$D ctl status out --json 2>/dev/null");
    json_t *o = parse(), *list = json_object_get(o, "workers"), *w;
    long long step = number(o, "step");
    size_t i;
    assert_string_equal(json_string_value(json_object_get(o, "stage")), "running");
    assert_int_equal(number(o, "epoch"), 1);
    assert_int_equal(number(o, "machines"), 1);
    assert_int_equal(json_array_size(list), WORKERS);
    json_array_foreach(list, i, w)
    {
        assert_int_equal(number(w, "rank"), i);
        assert_int_equal(number(w, "pid"), crew->pid[i]);
        assert_true(json_is_true(json_object_get(w, "alive")));
        assert_in_range(number(w, "step"), 0, number(o, "steps"));
        assert_in_range(number(w, "bytes_resident"), 1 << 20, 1 << 30);
        assert_true(json_number_value(json_object_get(w, "silent_seconds")) < 5);
    }
    json_decref(o);
    return step;
}

static void test_while_it_runs(void **state)
{
    (void)state;
    struct crew crew;
    char host[256] = "", words[300];
    live_start(&l,
               "$D train run.yaml --workers=%d --train.steps=1000000 --eval.every=0 "
               "--checkpoint.every=0",
               WORKERS);
    assert_true(live_wait_for(&l, "step    10/"));
    crew_look(l.pid, &crew);
    assert_int_equal(crew.count, WORKERS);
    long long before = expect_status(&crew);
    assert_true(before >= 10);
    program_expect(0, "$D ctl status out"); /* for people */
    assert_non_null(strstr(program_out, "running: step "));
    program_expect(1, "$D train run.yaml --workers=2 --train.steps=1000000");
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "process %d on %s", (int)l.pid, host);
    if (!strstr(program_out, words) || !strstr(program_out, "in use by another run"))
        fail_msg("\"%s\" is not in: %s", words, program_out);
    /* None of that has disturbed it, and its door and papers are still its own. */
    snprintf(words, sizeof words, "step %5lld/", before + 1);
    assert_true(live_wait_for(&l, words));
    assert_true(expect_status(&crew) > before);
    program_expect(0, "test $(stat -c %%a out/.control) = 600");
    kill(l.pid, SIGTERM);
    live_expect(&l, 75);
    assert_string_equal(crew_rubbish("out", true), "");
    program_expect(3, "$D ctl status out");
    assert_non_null(strstr(program_out, "no run with several workers"));
}

/* Left by a killed run: a status that says so, and no obstacle for the next. */
static void test_killed_run(void **state)
{
    (void)state;
    struct crew crew;
    live_start(&l, "$D train run.yaml --workers=2 --output=dead --train.steps=1000000");
    assert_true(live_wait_for(&l, "step    10/"));
    crew_look(l.pid, &crew);
    kill(l.pid, SIGKILL);
    live_expect(&l, 128 + SIGKILL);
    program_expect(75, "$D ctl status dead");
    assert_non_null(strstr(program_out, "does not answer; was it killed?"));
    program_expect(0, "$D train run.yaml --workers=2 --output=dead --train.steps=20 "
                      "--allow-change=train.steps");
    assert_string_equal(crew_rubbish("dead", true), "");
}

static void test_every_pair(void **state)
{
    (void)state;
    static const int workers[] = {2, 4};
    for (size_t k = 0; k < sizeof workers / sizeof *workers; k++) {
        bool seen[4][4] = {{false}};
        size_t i;
        json_t *link;
        program_expect(0, "$D doctor --comm --workers=%d --json 2>/dev/null", workers[k]);
        json_t *o = parse(), *links = json_object_get(o, "links");
        assert_int_equal(json_array_size(links), workers[k] * (workers[k] - 1) / 2);
        json_array_foreach(links, i, link)
        {
            long long from = number(link, "from"), to = number(link, "to");
            assert_in_range(from, 0, to - 1);
            assert_in_range(to, 1, workers[k] - 1);
            assert_false(seen[from][to]);
            seen[from][to] = true;
            assert_true(json_number_value(json_object_get(link, "latency_us")) > 0);
            assert_true(json_number_value(json_object_get(link, "bandwidth_gbs")) > 0);
            assert_true(json_string_length(json_object_get(link, "path")) > 0);
        }
        json_decref(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_it_runs),
        cmocka_unit_test(test_killed_run),
        cmocka_unit_test(test_every_pair),
    };
    return cmocka_run_group_tests(tests, open_run, close_run);
}
