/* The command line: verbs, their options, and what every verb shares.
 *
 * A verb is one file that defines one `const struct dt_cli_verb dt_cli_verb_NAME` and one line in
 * verbs.def. Its options are a table; parsing, `--help`, error messages with the nearest option,
 * and exit codes come from that table. Results go to standard output, everything else to standard
 * error (dt_info, dt_warn); a verb returns 0 or a negative code with its message in the trail, and
 * never exits or prints an error by itself.
 *
 *     static const struct dt_cli_option options[] = {
 *         {"data", 0, "FILE", DT_CLI_STRING, .required = true, .doc = "what to evaluate on"},
 *         {"threads", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 4096, .doc = "..."},
 *         {0},
 *     };
 *     static int run(struct dt_cli *cli)
 *     {
 *         const char *data = dt_cli_string(cli, "data");
 *         int64_t threads = dt_cli_int(cli, "threads");
 *         ...
 *         if (dt_cli_flag(cli, "json"))
 *             return dt_cli_json(cli, object);
 *     }
 *     const struct dt_cli_verb dt_cli_verb_eval = {
 *         .name = "eval", .run = run, .arguments = "MODEL", .min_arguments = 1, .max_arguments = 1,
 *         .summary = "token-weighted mean loss of a model", .options = options, .json = true};
 *
 * Every verb has --help, --verbose and -C DIR; with `.json`, also --json. Asking for an option that
 * the verb does not declare is a programming error and stops the program in every build.
 */
#ifndef DT_CLI_CLI_H
#define DT_CLI_CLI_H

#include "base/error.h"
#include "base/log.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum dt_cli_type {
    DT_CLI_FLAG, /* --name, --no-name, --name=true|false */
    DT_CLI_INT,
    DT_CLI_FLOAT,
    DT_CLI_STRING, /* text or a path; one of `names` when given */
    DT_CLI_LIST,   /* may be given several times */
};

struct dt_cli_option {
    const char *name;     /* without dashes */
    char letter;          /* "-o"; 0: none */
    const char *argument; /* "FILE" for --help; NULL for flags */
    enum dt_cli_type type;
    const char *fallback; /* default as one would write it; NULL: none (0, NULL, empty) */
    bool required;
    double min, max;          /* of numbers, inclusive; both 0: any */
    const char *const *names; /* ends with NULL */
    const char *doc;
};

struct dt_cli;

struct dt_cli_verb {
    const char *name;
    int (*run)(struct dt_cli *cli);
    const char
        *arguments; /* "RUN.yaml", "build --tokenizer T -o PREFIX FILE..." for the usage line */
    int min_arguments, max_arguments;    /* max -1: any number */
    const char *summary;                 /* one line */
    const char *details;                 /* paragraphs for --help; may be NULL */
    const struct dt_cli_option *options; /* ends with name NULL; may be NULL */
    bool json;
    bool hidden; /* not for people: help does not list it */
    bool config; /* keys of RUN.yaml may follow as --section.key=value */
};

struct dt_cli_given { /* one option as it was given */
    const struct dt_cli_option *option;
    const char *value; /* "true" or "false" for flags */
};

struct dt_cli {
    const struct dt_cli_verb *verb;
    const char **arguments; /* positional, in order */
    int argument_count;
    const char **overrides; /* "section.key=value", for dt_run_config_load */
    int override_count;
    struct dt_cli_given *given;
    int given_count;
    bool help, json, verbose;
    const char *directory; /* -C */
    char **owned;          /* strings that parsing made */
    int owned_count;
    int json_written; /* documents on standard output */
};

/* Values of options; the last one given counts. */
bool dt_cli_flag(const struct dt_cli *cli, const char *name); /* also "json", "verbose" */
int64_t dt_cli_int(const struct dt_cli *cli, const char *name);
double dt_cli_float(const struct dt_cli *cli, const char *name);
const char *dt_cli_string(const struct dt_cli *cli, const char *name); /* NULL when not given */
bool dt_cli_given(const struct dt_cli *cli, const char *name);
/* The values of a DT_CLI_LIST in order; returns how many, writes up to `max`. */
int dt_cli_list(const struct dt_cli *cli, const char *name, const char **out, int max);

/* The one JSON document of --json to standard output, indented. Takes the reference; NULL is
 * DT_E_MEMORY. */
int dt_cli_json(struct dt_cli *cli, json_t *document);

/* DT_E_USAGE with the verb's usage line, for what the tables cannot express. */
int dt_cli_usage(const struct dt_cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- the frame: main.c, args.c, help.c ------------------------------------------------------- */

/* All verbs, in the order of verbs.def; ends with NULL. */
extern const struct dt_cli_verb *const dt_cli_verbs[];
const struct dt_cli_verb *dt_cli_find_verb(const char *name);
/* Verbs that are planned and answer "not built into this version". */
bool dt_cli_later_verb(const char *name);

/* Parse what follows the verb's name. Values stay valid until dt_cli_free. */
int dt_cli_parse(struct dt_cli *cli, const struct dt_cli_verb *verb, int argc, char **argv);
void dt_cli_free(struct dt_cli *cli);

void dt_cli_help(const struct dt_cli_verb *verb, FILE *f);
void dt_cli_help_all(FILE *f);
/* The whole program: returns the exit code. */
int dt_cli_main(int argc, char **argv);

#endif
