/* Help, from the same tables that parse. */
#include "cli/cli.h"

#include "base/config.h"
#include "train/run_config.h"

#include <string.h>

static void put_option(FILE *f, const struct dt_cli_option *o)
{
    char head[96], letter[8] = "";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(head, sizeof head, "%s--%s%s%s", letter, o->name, o->argument ? " " : "",
             o->argument ? o->argument : "");
    fprintf(f, "  %-28s %s", head, o->doc ? o->doc : "");
    for (const char *const *n = o->names; n && *n; n++)
        fprintf(f, "%s%s", n == o->names ? ": " : ", ", *n);
    if (o->required)
        fputs(" (required)", f);
    else if (o->fallback)
        fprintf(f, " (default: %s)", o->fallback);
    if (o->type == DT_CLI_LIST)
        fputs(" (may be repeated)", f);
    fputc('\n', f);
}

void dt_cli_help(const struct dt_cli_verb *verb, FILE *f)
{
    fprintf(f, "usage: ductile %s %s%s[options]\n\n%s\n", verb->name, verb->arguments,
            verb->arguments[0] ? " " : "", verb->summary);
    if (verb->details)
        fprintf(f, "\n%s\n", verb->details);
    fputs("\noptions:\n", f);
    for (const struct dt_cli_option *o = verb->options; o && o->name; o++)
        put_option(f, o);
    if (verb->json)
        fprintf(f, "  %-28s %s\n", "--json",
                "one JSON document on standard output, nothing else there");
    fprintf(f, "  %-28s %s\n", "--verbose", "more words, and where a failure came from");
    fprintf(f, "  %-28s %s\n", "-C DIR", "change to DIR first");
    fprintf(f, "  %-28s %s\n", "--help", "this text");
    if (verb->config) {
        fputs("\nkeys of RUN.yaml, which may also be given here (paths are then relative to the "
              "current "
              "directory):\n",
              f);
        dt_config_help(&dt_run_config_table, f);
    }
}

void dt_cli_help_all(FILE *f)
{
    fputs("usage: ductile [-C DIR] VERB [arguments] [options]\n\n"
          "Trains Transformer language models.\n\nverbs:\n",
          f);
    for (size_t i = 0; dt_cli_verbs[i]; i++)
        if (!dt_cli_verbs[i]->hidden)
            fprintf(f, "  %-10s %s\n", dt_cli_verbs[i]->name, dt_cli_verbs[i]->summary);
    fputs("\nductile VERB --help tells about one. Exit codes: 0 done, 1 failure, 2 bad usage or "
          "configuration,\n3 bad data or model, 74 the last save failed, 75 stopped, start again "
          "to go "
          "on.\n",
          f);
}
