/* `ductile config`: checks a RUN.yaml and prints what it resolves to, without touching anything
 * else.
 * `--markdown` prints the page of all keys (docs/config.md is its output). */
#include "cli/cli.h"

#include "train/run_config.h"

static void print_page(void)
{
    fputs("# Configuration\n\n"
          "<!-- Written by `ductile config --markdown`; a test compares. Change "
          "src/train/run_config_table.c "
          "instead. -->\n\n"
          "A run is described by one YAML file, `RUN.yaml`. Every key can also follow a verb that "
          "takes a "
          "configuration, as\n`--section.key=value` (the value is YAML, so lists work; `--flag`, "
          "`--no-flag` "
          "and `--flag=false` for true and false).\nRelative paths are relative to the file that "
          "says them, "
          "on the command line to the current directory.\nAll problems of a file are reported at "
          "once, with "
          "file, line and the nearest key; nothing else happens before.\n`ductile config RUN.yaml` "
          "checks a "
          "file and prints the resolved form, which a run also keeps as `OUTPUT/config.yaml`.\n\n"
          "*On resume*: `free` keys may change when a run goes on, `confirm` keys change what is "
          "trained and "
          "need\n`--allow-change=KEY`, `may grow` keys may be raised freely.\n",
          stdout);
    dt_config_markdown(&dt_run_config_table, stdout);
}

static int run(struct dt_cli *cli)
{
    struct dt_run_config cfg;
    if (dt_cli_flag(cli, "markdown")) {
        print_page();
        return DT_OK;
    }
    if (cli->argument_count != 1)
        return dt_cli_usage(cli, "no configuration file given");
    DT_TRY(dt_run_config_load(cli->arguments[0], cli->overrides, cli->override_count, &cfg));
    dt_run_config_print(&cfg, stdout);
    dt_run_config_free(&cfg);
    return DT_OK;
}

static const struct dt_cli_option options[] = {
    {"markdown", .doc = "print the documentation of all keys instead"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_config = {
    .name = "config",
    .run = run,
    .arguments = "RUN.yaml",
    .max_arguments = 1,
    .summary = "check a configuration and print what it resolves to",
    .options = options,
    .config = true,
};
