/* The command line: parsing by a verb's table, and the program itself as a user starts it (exit
 * codes, which stream says what, closed and full standard output, the generated documentation). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const dtypes[] = {"float32", "bfloat16", NULL};
static const struct dt_cli_option options[] = {
    {"out", 'o', "PATH", DT_CLI_STRING, .doc = "where to"},
    {"steps", 0, "N", DT_CLI_INT, .fallback = "5", .min = 1, .max = 100, .doc = "how many"},
    {"top-p", 0, "P", DT_CLI_FLOAT, .fallback = "0.5", .max = 1, .doc = "share"},
    {"dtype", 0, "D", DT_CLI_STRING, .fallback = "float32", .names = dtypes, .doc = "type"},
    {"chat", .doc = "a switch"},
    {"tag", 0, "T", DT_CLI_LIST, .doc = "marks"},
    {0},
};

static int no_run(struct dt_cli *cli)
{
    (void)cli;
    return DT_OK;
}

static const struct dt_cli_verb plain = {.name = "plain",
                                         .run = no_run,
                                         .arguments = "FILE",
                                         .min_arguments = 1,
                                         .max_arguments = 2,
                                         .summary = "s",
                                         .options = options,
                                         .json = true};
static const struct dt_cli_option needed[] = {{"data", 0, "FILE", DT_CLI_STRING, .required = true},
                                              {0}};
static const struct dt_cli_verb with_config = {.name = "cfg",
                                               .run = no_run,
                                               .arguments = "RUN.yaml",
                                               .max_arguments = -1,
                                               .summary = "s",
                                               .config = true};
static const struct dt_cli_verb with_needed = {.name = "need",
                                               .run = no_run,
                                               .arguments = "",
                                               .max_arguments = 0,
                                               .summary = "s",
                                               .options = needed};

static int parse(struct dt_cli *cli, const struct dt_cli_verb *verb, const char *words)
{
    static char text[512];
    char *argv[32];
    int argc = 0;
    snprintf(text, sizeof text, "%s", words);
    for (char *p = strtok(text, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    return dt_cli_parse(cli, verb, argc, argv);
}

static void refused(const struct dt_cli_verb *verb, const char *words, int code, const char *part)
{
    struct dt_cli cli;
    assert_int_equal(parse(&cli, verb, words), code);
    if (!strstr(dt_error_message(), part))
        fail_msg("for <%s>\nexpected: %s\nfound:    %s", words, part, dt_error_message());
    dt_cli_free(&cli);
}

static void test_values(void **state)
{
    (void)state;
    struct dt_cli cli;
    const char *tags[4];
    assert_int_equal(parse(&cli, &plain, "a"), 0);
    assert_null(dt_cli_string(&cli, "out"));
    assert_int_equal(dt_cli_int(&cli, "steps"), 5);
    assert_true(dt_cli_float(&cli, "top-p") == 0.5 && !dt_cli_flag(&cli, "chat"));
    assert_string_equal(dt_cli_string(&cli, "dtype"), "float32");
    assert_false(dt_cli_given(&cli, "steps") || dt_cli_flag(&cli, "json"));
    dt_cli_free(&cli);

    assert_int_equal(parse(&cli, &plain,
                           "a -o out/x --steps=7 --top-p 0.25 --chat --tag=1 --tag 2 b --json "
                           "--steps 9 --dtype bfloat16 -C dir --verbose"),
                     0);
    assert_int_equal(cli.argument_count, 2);
    assert_string_equal(cli.arguments[1], "b");
    assert_string_equal(dt_cli_string(&cli, "out"), "out/x");
    assert_int_equal(dt_cli_int(&cli, "steps"), 9); /* the last one counts */
    assert_true(dt_cli_float(&cli, "top-p") == 0.25 && dt_cli_flag(&cli, "chat"));
    assert_true(dt_cli_flag(&cli, "json") && dt_cli_flag(&cli, "verbose") &&
                dt_cli_given(&cli, "steps"));
    assert_int_equal(dt_cli_list(&cli, "tag", tags, 4), 2);
    assert_string_equal(tags[1], "2");
    assert_string_equal(cli.directory, "dir");
    dt_cli_free(&cli);

    assert_int_equal(parse(&cli, &plain, "--chat --no-chat -oX -- --steps -x"), 0);
    assert_false(dt_cli_flag(&cli, "chat"));
    assert_string_equal(dt_cli_string(&cli, "out"), "X");
    assert_string_equal(cli.arguments[0], "--steps");
    dt_cli_free(&cli);
    assert_int_equal(parse(&cli, &plain, "- --chat=false --no-chat=false"), 0);
    assert_true(dt_cli_flag(&cli, "chat"));
    assert_string_equal(cli.arguments[0], "-");
    dt_cli_free(&cli);
    assert_int_equal(parse(&cli, &plain, "--help"), 0); /* nothing else need be complete */
    assert_true(cli.help);
    dt_cli_free(&cli);
}

static void test_refusals(void **state)
{
    (void)state;
    refused(&plain, "", DT_E_USAGE, "nothing to work on\nusage: ductile plain FILE [options]");
    refused(&plain, "a b c", DT_E_USAGE, "unexpected argument \"c\"\nusage: ductile plain FILE");
    refused(&plain, "a --setps 4", DT_E_USAGE, "unknown option --setps; did you mean --steps?");
    refused(&plain, "a --zzzzzz", DT_E_USAGE,
            "unknown option --zzzzzz; ductile plain --help lists them");
    refused(&plain, "a -z", DT_E_USAGE, "unknown option -z");
    refused(&plain, "a --steps", DT_E_USAGE, "--steps needs a value (N)");
    refused(&plain, "a --steps 0", DT_E_USAGE,
            "--steps: found \"0\", expected an integer from 1 to 100");
    refused(&plain, "a --steps 5x", DT_E_USAGE, "expected an integer");
    refused(&plain, "a --top-p nan", DT_E_USAGE, "expected a number from 0 to 1");
    refused(&plain, "a --dtype fp8", DT_E_USAGE,
            "--dtype: found \"fp8\", expected one of: float32, bfloat16");
    refused(&plain, "a --chat=maybe", DT_E_USAGE,
            "--chat: found \"maybe\", expected true or false");
    refused(&plain, "a -C", DT_E_USAGE, "-C needs a directory");
    refused(&plain, "a --=4", DT_E_USAGE, "unknown option");
    refused(&plain, "a --train.steps=4", DT_E_USAGE, "unknown option --train.steps");
    refused(&with_needed, "", DT_E_USAGE, "--data FILE is missing");
    refused(&with_needed, "--json --data x", DT_E_USAGE, "unknown option --json");
}

static void test_config_keys(void **state)
{
    (void)state;
    struct dt_cli cli;
    assert_int_equal(parse(&cli, &with_config,
                           "r.yaml --train.steps=4 --lr 0.1 --data.shuffle --no-data.shuffle x"),
                     0);
    assert_int_equal(cli.argument_count, 2);
    assert_int_equal(cli.override_count, 4);
    assert_string_equal(cli.overrides[0], "train.steps=4");
    assert_string_equal(cli.overrides[1], "lr=0.1");
    assert_string_equal(cli.overrides[2], "data.shuffle");
    assert_string_equal(cli.overrides[3], "no-data.shuffle");
    dt_cli_free(&cli);
    refused(&with_config, "r.yaml --train.setps=4", DT_E_USAGE, "did you mean --train.steps?");
    refused(&with_config, "r.yaml --train.steps", DT_E_USAGE, "--train.steps needs a value");
    refused(&with_config, "r.yaml --lora_r 8", DT_E_UNSUPPORTED,
            "adapters (LoRA) are not built into this version");
    refused(&with_config, "r.yaml --micro-batch-size 8", DT_E_USAGE, "microbatch.tokens");
}

/* The program with a shell command around it: exit code, both outputs together in `out`. */
static int shell(const char *command, char *out, size_t size)
{
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, size - 1, f);
    out[n] = '\0';
    while (fgetc(f) != EOF) {
    }
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void program(const char *arguments, int code, const char *part)
{
    static char out[1 << 18];
    char command[2048];
    snprintf(command, sizeof command, "cd " DT_TEST_DIR " && " DT_DUCTILE " %s", arguments);
    int found = shell(command, out, sizeof out);
    if (found != code || (part && !strstr(out, part)))
        fail_msg("for <%s>\nexpected: %d %s\nfound:    %d %s", arguments, code, part ? part : "",
                 found, out);
}

static void test_program(void **state)
{
    (void)state;
    if (access(DT_DUCTILE, X_OK) != 0)
        skip();
    program("2>&1 >/dev/null", 2, "usage: ductile [-C DIR] VERB");
    program("--help 2>/dev/null", 0, "verbs:\n");
    program("help version 2>/dev/null", 0, "usage: ductile version");
    program("--version", 0, "ductile " DT_VERSION);
    program("version --json 2>/dev/null", 0, "{\n  \"version\": \"" DT_VERSION "\"");
    program("vresion 2>&1 >/dev/null", 2,
            "ductile: unknown verb \"vresion\"; did you mean version?");
    program("qqqqqqq 2>&1 >/dev/null", 2, "ductile --help lists them");
    program("help qqqqqqq 2>&1", 2, "unknown verb");
    program("version extra 2>&1 >/dev/null", 2, "ductile version: unexpected argument \"extra\"");
    program("-C /nowhere version 2>&1 >/dev/null", 2, "ductile: -C /nowhere: No such file");
    program("version -C /nowhere 2>&1 >/dev/null", 2, "-C /nowhere: No such file");
    program("-C 2>&1", 2, "-C needs a directory");
    program("config /nowhere.yaml 2>&1 >/dev/null", 2, "ductile config: ");
    program("config /nowhere.yaml --verbose 2>&1 >/dev/null", 2, "\n  E_CONFIG at base/config");
    static const char *const later[] = {"import",  "plan",   "verify", "simulate",
                                        "profile", "inject", "serve"};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "%s x --y 2>&1 >/dev/null", later[i]);
        program(arguments, 2, "is not built into this version");
    }
}

static void test_every_verb_has_help(void **state)
{
    (void)state;
    if (access(DT_DUCTILE, X_OK) != 0)
        skip();
    for (size_t i = 0; dt_cli_verbs[i]; i++) {
        char arguments[128], usage[128];
        snprintf(arguments, sizeof arguments, "%s --help 2>/dev/null", dt_cli_verbs[i]->name);
        snprintf(usage, sizeof usage, "usage: ductile %s", dt_cli_verbs[i]->name);
        program(arguments, 0, usage);
    }
}

static void test_standard_output(void **state)
{
    (void)state;
    if (access(DT_DUCTILE, X_OK) != 0)
        skip();
    program("config --markdown 2>&1 >/dev/full", 1,
            "ductile config: cannot write to standard output: No space left");
    program("version 2>&1 >&-", 1, "ductile version: cannot write to standard output");
    program("version --json 2>&1 >/dev/full", 1, "cannot write to standard output");
    program("version 0<&- 2>&-", 0, "ductile");
    /* A reader that leaves: a message and exit code 1, no death by signal. */
    program("version >/dev/null; cd /tmp; mkfifo dt-$$.f; (exec 3<dt-$$.f) & exec 4>dt-$$.f; rm "
            "dt-$$.f; wait; " DT_DUCTILE " config --markdown 2>&1 >&4",
            1, "cannot write to standard output: Broken pipe");
}

static void test_doctor(void **state)
{
    (void)state;
    if (access(DT_DUCTILE, X_OK) != 0)
        skip();
    char out[8192];
    assert_int_equal(shell(DT_DUCTILE " doctor --json --no-measure 2>/dev/null", out, sizeof out),
                     0);
    json_t *d = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(d);
    assert_true(json_integer_value(json_object_get(d, "threads")) >= 1);
    assert_true(json_integer_value(json_object_get(d, "memory_total_bytes")) > 0);
    assert_true(json_integer_value(json_object_get(d, "memory_free_bytes")) <=
                json_integer_value(json_object_get(d, "memory_total_bytes")));
    json_t *sets = json_object_get(d, "kernel_sets");
    assert_true(json_array_size(sets) >= 2);
    json_decref(d);
    program("doctor --no-measure --kernels=reference 2>/dev/null", 0, "kernels      reference");
    program("doctor --kernels=nothing 2>&1", 2, "nothing");
}

/* docs/config.md is what the table says. */
static void test_documentation_is_current(void **state)
{
    (void)state;
    if (access(DT_DUCTILE, X_OK) != 0)
        skip();
    char out[256];
    assert_int_equal(shell(DT_DUCTILE " config --markdown | cmp - " DT_TEST_DIR
                                      "/../docs/config.md 2>&1",
                           out, sizeof out),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_config_keys),
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_every_verb_has_help),
        cmocka_unit_test(test_standard_output),
        cmocka_unit_test(test_doctor),
        cmocka_unit_test(test_documentation_is_current),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
