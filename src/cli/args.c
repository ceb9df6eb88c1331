/* Arguments: one pass over the words after the verb, driven by the verb's table.
 *
 * Every value is checked while parsing, so that reading an option later cannot fail. Words that are
 * no option of a verb with a configuration are tried as keys of RUN.yaml and kept for
 * dt_run_config_load, which knows their types. */
#include "cli/cli.h"

#include "base/config.h"
#include "train/run_config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* One word of the command line being looked at. */
struct word {
    char name[128];    /* without dashes and value */
    const char *value; /* after '=', else NULL */
    const char *next;  /* the following word, NULL at the end */
    bool took_next;
};

int dt_cli_usage(const struct dt_cli *cli, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DT_FAIL(DT_E_USAGE, "%s\nusage: ductile %s %s [options]; see ductile %s --help", text,
                   cli->verb->name, cli->verb->arguments, cli->verb->name);
}

static const struct dt_cli_option *find_option(const struct dt_cli_verb *verb, const char *name)
{
    for (const struct dt_cli_option *o = verb->options; o && o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

static const struct dt_cli_option *find_letter(const struct dt_cli_verb *verb, char letter)
{
    for (const struct dt_cli_option *o = verb->options; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

static bool in_range(const struct dt_cli_option *o, double v)
{
    return (o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max);
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0;
}

static bool parse_float(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

static int check_value(const struct dt_cli_option *o, const char *value)
{
    int64_t i;
    double d;
    if (o->type == DT_CLI_INT && !(parse_int(value, &i) && in_range(o, (double)i)))
        return o->max > 0
                   ? DT_FAIL(DT_E_USAGE,
                             "--%s: found \"%.60s\", expected an integer from %.15g to %.15g",
                             o->name, value, o->min, o->max)
                   : DT_FAIL(DT_E_USAGE, "--%s: found \"%.60s\", expected an integer", o->name,
                             value);
    if (o->type == DT_CLI_FLOAT && !(parse_float(value, &d) && in_range(o, d)))
        return o->max > 0 ? DT_FAIL(DT_E_USAGE,
                                    "--%s: found \"%.60s\", expected a number from %.15g to %.15g",
                                    o->name, value, o->min, o->max)
                          : DT_FAIL(DT_E_USAGE, "--%s: found \"%.60s\", expected a number", o->name,
                                    value);
    char names[256] = "";
    for (const char *const *n = o->names; n && *n; n++) {
        if (strcmp(*n, value) == 0)
            return DT_OK;
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", *n);
    }
    if (o->names)
        return DT_FAIL(DT_E_USAGE, "--%s: found \"%.60s\", expected one of: %s", o->name, value,
                       names);
    return DT_OK;
}

static void give(struct dt_cli *cli, const struct dt_cli_option *o, const char *value)
{
    cli->given[cli->given_count++] = (struct dt_cli_given){o, value};
}

static bool is_true(const char *v)
{
    return strcmp(v, "true") == 0 || strcmp(v, "yes") == 0 || strcmp(v, "1") == 0;
}

static bool is_false(const char *v)
{
    return strcmp(v, "false") == 0 || strcmp(v, "no") == 0 || strcmp(v, "0") == 0;
}

/* --flag, --flag=true, --flag=false, --no-flag (`sense` false). */
static int flag_value(const struct word *w, bool sense, bool *out)
{
    *out = sense;
    if (!w->value)
        return DT_OK;
    if (!is_true(w->value) && !is_false(w->value))
        return DT_FAIL(DT_E_USAGE, "--%s: found \"%.60s\", expected true or false", w->name,
                       w->value);
    *out = is_true(w->value) == sense;
    return DT_OK;
}

static int take_option(struct dt_cli *cli, const struct dt_cli_option *o, struct word *w)
{
    if (o->type == DT_CLI_FLAG) {
        bool on;
        DT_TRY(flag_value(w, true, &on));
        give(cli, o, on ? "true" : "false");
        return DT_OK;
    }
    if (!w->value) {
        if (!w->next)
            return DT_FAIL(DT_E_USAGE, "--%s needs a value (%s)", o->name, o->argument);
        w->value = w->next;
        w->took_next = true;
    }
    DT_TRY(check_value(o, w->value));
    give(cli, o, w->value);
    return DT_OK;
}

/* --help, --verbose, --json. Returns 1 when the word was one of them. */
static int take_common(struct dt_cli *cli, const struct word *w)
{
    bool *target = strcmp(w->name, "help") == 0                      ? &cli->help
                   : strcmp(w->name, "verbose") == 0                 ? &cli->verbose
                   : strcmp(w->name, "json") == 0 && cli->verb->json ? &cli->json
                                                                     : NULL;
    if (!target)
        return 0;
    DT_TRY(flag_value(w, true, target));
    return 1;
}

static int keep_override(struct dt_cli *cli, const char *name, const char *value)
{
    char *text;
    if ((value ? asprintf(&text, "%s=%s", name, value) : asprintf(&text, "%s", name)) < 0)
        return DT_FAIL(DT_E_MEMORY, "no memory for the command line");
    cli->owned[cli->owned_count++] = text;
    cli->overrides[cli->override_count++] = text;
    return DT_OK;
}

/* A key of RUN.yaml. Returns 1 when it was one (or a name that deserves its own refusal). */
static int take_key(struct dt_cli *cli, struct word *w)
{
    const struct dt_config_table *table = &dt_run_config_table;
    const struct dt_config_key *key = dt_config_find(table, w->name);
    bool negated = !key && strncmp(w->name, "no-", 3) == 0 && !w->value &&
                   dt_config_find(table, w->name + 3) != NULL;
    const struct dt_config_word *word = key || negated ? NULL : dt_config_word_find(table, w->name);
    if (word && word->unsupported)
        return DT_FAIL(DT_E_UNSUPPORTED, "--%s: %s not built into this version", w->name,
                       word->text);
    if (word)
        return DT_FAIL(DT_E_USAGE, "--%s is no option: %s", w->name, word->text);
    if (!key && !negated)
        return 0;
    if (key && key->type != DT_CONFIG_BOOL && !w->value) {
        if (!w->next)
            return DT_FAIL(DT_E_USAGE, "--%s needs a value", w->name);
        w->value = w->next;
        w->took_next = true;
    }
    DT_TRY(keep_override(cli, w->name, w->value));
    return 1;
}

static int unknown_option(const struct dt_cli *cli, const struct word *w)
{
    const char *names[80] = {"help", "verbose", "json"};
    size_t n = cli->verb->json ? 3 : 2;
    for (const struct dt_cli_option *o = cli->verb->options; o && o->name && n < 80; o++)
        names[n++] = o->name;
    const char *near = dt_config_nearest_word(names, n, w->name);
    if (!near && cli->verb->config)
        near = dt_config_nearest(&dt_run_config_table, w->name);
    if (near)
        return DT_FAIL(DT_E_USAGE, "unknown option --%s; did you mean --%s?", w->name, near);
    return DT_FAIL(DT_E_USAGE, "unknown option --%s; ductile %s --help lists them", w->name,
                   cli->verb->name);
}

/* "--name", "--name=value". */
static int take_long(struct dt_cli *cli, const char *text, struct word *w)
{
    const char *equals = strchr(text, '=');
    size_t size = equals ? (size_t)(equals - text) : strlen(text);
    if (size == 0 || size >= sizeof w->name)
        return DT_FAIL(DT_E_USAGE, "unknown option --%.60s", text);
    memcpy(w->name, text, size);
    w->name[size] = '\0';
    w->value = equals ? equals + 1 : NULL;

    const struct dt_cli_option *o = find_option(cli->verb, w->name);
    if (o)
        return take_option(cli, o, w);
    int taken = take_common(cli, w);
    if (taken == 0 && cli->verb->config)
        taken = take_key(cli, w);
    if (taken != 0)
        return taken < 0 ? dt_error_pass(taken, __FILE__, __LINE__) : DT_OK;
    o = strncmp(w->name, "no-", 3) == 0 ? find_option(cli->verb, w->name + 3) : NULL;
    if (!o || o->type != DT_CLI_FLAG)
        return unknown_option(cli, w);
    bool on;
    DT_TRY(flag_value(w, false, &on));
    give(cli, o, on ? "true" : "false");
    return DT_OK;
}

/* "-o VALUE", "-oVALUE", "-C DIR", "-h". */
static int take_short(struct dt_cli *cli, const char *text, struct word *w)
{
    const struct dt_cli_option *o = find_letter(cli->verb, text[0]);
    w->value = text[1] ? text + 1 : NULL;
    if (o)
        return take_option(cli, o, w);
    if (text[0] == 'h' && !text[1]) {
        cli->help = true;
        return DT_OK;
    }
    if (text[0] != 'C')
        return DT_FAIL(DT_E_USAGE, "unknown option -%.20s; ductile %s --help lists them", text,
                       cli->verb->name);
    if (!w->value && !w->next)
        return DT_FAIL(DT_E_USAGE, "-C needs a directory");
    w->took_next = !w->value;
    cli->directory = w->value ? w->value : w->next;
    return DT_OK;
}

static int check_complete(const struct dt_cli *cli)
{
    const struct dt_cli_verb *verb = cli->verb;
    if (cli->help)
        return DT_OK;
    if (cli->argument_count < verb->min_arguments)
        return dt_cli_usage(cli,
                            cli->argument_count ? "an argument is missing" : "nothing to work on");
    if (verb->max_arguments >= 0 && cli->argument_count > verb->max_arguments)
        return dt_cli_usage(cli, "unexpected argument \"%.60s\"",
                            cli->arguments[verb->max_arguments]);
    for (const struct dt_cli_option *o = verb->options; o && o->name; o++)
        if (o->required && !dt_cli_given(cli, o->name))
            return dt_cli_usage(cli, "--%s %s is missing", o->name, o->argument ? o->argument : "");
    return DT_OK;
}

int dt_cli_parse(struct dt_cli *cli, const struct dt_cli_verb *verb, int argc, char **argv)
{
    size_t room = (size_t)argc + 1;
    *cli = (struct dt_cli){.verb = verb};
    cli->arguments = calloc(room, sizeof *cli->arguments);
    cli->overrides = calloc(room, sizeof *cli->overrides);
    cli->given = calloc(room, sizeof *cli->given);
    cli->owned = calloc(room, sizeof *cli->owned);
    if (!cli->arguments || !cli->overrides || !cli->given || !cli->owned)
        return DT_FAIL(DT_E_MEMORY, "no memory for the command line");
    bool options_end = false;
    for (int i = 0; i < argc; i++) {
        struct word w = {.next = i + 1 < argc ? argv[i + 1] : NULL};
        const char *text = argv[i];
        if (options_end || text[0] != '-' || text[1] == '\0')
            cli->arguments[cli->argument_count++] = text;
        else if (strcmp(text, "--") == 0)
            options_end = true;
        else if (text[1] == '-')
            DT_TRY(take_long(cli, text + 2, &w));
        else
            DT_TRY(take_short(cli, text + 1, &w));
        i += w.took_next;
    }
    DT_TRY(check_complete(cli));
    return DT_OK;
}

void dt_cli_free(struct dt_cli *cli)
{
    for (int i = 0; i < cli->owned_count; i++)
        free(cli->owned[i]);
    free(cli->owned);
    free(cli->given);
    free(cli->overrides);
    free(cli->arguments);
    *cli = (struct dt_cli){0};
}

/* The last value given, else the default, else NULL. */
static const char *value_of(const struct dt_cli *cli, const char *name, enum dt_cli_type type)
{
    const struct dt_cli_option *o = find_option(cli->verb, name);
    if (!o || o->type != type) {
        fprintf(stderr, "ductile: verb %s does not declare --%s like this\n", cli->verb->name,
                name);
        abort();
    }
    const char *value = o->fallback;
    for (int i = 0; i < cli->given_count; i++)
        if (cli->given[i].option == o)
            value = cli->given[i].value;
    return value;
}

bool dt_cli_flag(const struct dt_cli *cli, const char *name)
{
    if (!find_option(cli->verb, name) && strcmp(name, "json") == 0)
        return cli->json;
    if (!find_option(cli->verb, name) && strcmp(name, "verbose") == 0)
        return cli->verbose;
    const char *value = value_of(cli, name, DT_CLI_FLAG);
    return value && is_true(value);
}

int64_t dt_cli_int(const struct dt_cli *cli, const char *name)
{
    const char *value = value_of(cli, name, DT_CLI_INT);
    return value ? strtoll(value, NULL, 10) : 0;
}

double dt_cli_float(const struct dt_cli *cli, const char *name)
{
    const char *value = value_of(cli, name, DT_CLI_FLOAT);
    return value ? strtod(value, NULL) : 0;
}

const char *dt_cli_string(const struct dt_cli *cli, const char *name)
{
    return value_of(cli, name, DT_CLI_STRING);
}

bool dt_cli_given(const struct dt_cli *cli, const char *name)
{
    for (int i = 0; i < cli->given_count; i++)
        if (strcmp(cli->given[i].option->name, name) == 0)
            return true;
    return false;
}

int dt_cli_list(const struct dt_cli *cli, const char *name, const char **out, int max)
{
    int count = 0;
    value_of(cli, name, DT_CLI_LIST); /* stops the program when it is not declared */
    for (int i = 0; i < cli->given_count; i++) {
        if (strcmp(cli->given[i].option->name, name) != 0)
            continue;
        if (count < max)
            out[count] = cli->given[i].value;
        count++;
    }
    return count;
}

int dt_cli_json(struct dt_cli *cli, json_t *document)
{
    if (!document)
        return DT_FAIL(DT_E_MEMORY, "no memory for the JSON document");
    int failed = json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(document);
    cli->json_written++;
    if (failed || putchar('\n') == EOF)
        return DT_FAIL(DT_E_IO, "cannot write to standard output: %s", strerror(errno));
    return DT_OK;
}
