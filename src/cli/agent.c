/* `ductile agent --join HOST:PORT`: this machine's part of a run whose coordinator is elsewhere. */
#include "cli/cli.h"

#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

/* HOST:PORT, or [ADDRESS]:PORT. */
static int split(const char *text, char *host, size_t size, int *port)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || colon == text || *end || number < 1 || number > 65535)
        return DT_FAIL(DT_E_USAGE, "--join: \"%.80s\" is not HOST:PORT", text);
    bool bracket = text[0] == '[' && colon[-1] == ']';
    int n = snprintf(host, size, "%.*s", (int)(colon - text) - 2 * bracket, text + bracket);
    *port = (int)number;
    return n < (int)size ? DT_OK : DT_FAIL(DT_E_USAGE, "--join: the host name is too long");
}

static int run(struct dt_cli *cli)
{
    char host[256];
    struct dt_agent_join o = {.host = host,
                              .secret_file = dt_cli_string(cli, "secret"),
                              .network = dt_cli_string(cli, "network"),
                              .timeout = dt_cli_float(cli, "timeout")};
    DT_TRY(split(dt_cli_string(cli, "join"), host, sizeof host, &o.port));
    return dt_cluster_agent(&o);
}

static const struct dt_cli_option options[] = {
    {"join", 0, "HOST:PORT", DT_CLI_STRING, .required = true,
     .doc = "the coordinator, as `ductile train` prints it"},
    {"network", 0, "ADDRESS/BITS", DT_CLI_STRING,
     .doc =
         "the trusted network; this machine's workers use its address in it. Without, the address "
         "that the connection to the coordinator has"},
    {"secret", 0, "FILE", DT_CLI_STRING,
     .doc = "file (mode 0600) with the job's secret; else DUCTILE_SECRET in the environment"},
    {"timeout", 0, "SECONDS", DT_CLI_FLOAT, .fallback = "300", .min = 0, .max = 86400,
     .doc = "how long to look for the coordinator"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_agent = {
    .name = "agent",
    .run = run,
    .arguments = "--join HOST:PORT",
    .summary = "start and watch this machine's workers for a run elsewhere",
    .details = "Ends with the run, and with its exit code: 75 when something was lost or stopped.",
    .options = options,
};
