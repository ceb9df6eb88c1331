/* `ductile ctl status DIR`: what a run with several workers is doing. */
#include "cli/cli.h"

#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

static void print_worker(const json_t *w)
{
    json_t *waits = json_object_get(w, "waits_for");
    printf("%6lld  %-24s %8lld  %-18s %8lld %9.1f MiB",
           (long long)json_integer_value(json_object_get(w, "rank")),
           json_string_value(json_object_get(w, "host")),
           (long long)json_integer_value(json_object_get(w, "pid")),
           json_is_true(json_object_get(w, "alive"))
               ? json_string_value(json_object_get(w, "phase"))
               : "dead",
           (long long)json_integer_value(json_object_get(w, "step")),
           (double)json_integer_value(json_object_get(w, "bytes_resident")) / 0x1p20);
    if (waits)
        printf("  waits for worker %lld since %.1f s", (long long)json_integer_value(waits),
               json_number_value(json_object_get(w, "waiting_seconds")));
    putchar('\n');
}

static void print_status(const json_t *o)
{
    const json_t *w;
    size_t i;
    printf("%s: step %lld of %lld, epoch %lld, newest checkpoint %lld, %lld machine(s)\n",
           json_string_value(json_object_get(o, "stage")),
           (long long)json_integer_value(json_object_get(o, "step")),
           (long long)json_integer_value(json_object_get(o, "steps")),
           (long long)json_integer_value(json_object_get(o, "epoch")),
           (long long)json_integer_value(json_object_get(o, "saved_step")),
           (long long)json_integer_value(json_object_get(o, "machines")));
    printf("worker  host                      process  doing                  step    resident\n");
    json_array_foreach(json_object_get(o, "workers"), i, w) print_worker(w);
}

static int run(struct dt_cli *cli)
{
    char *text;
    if (strcmp(cli->arguments[0], "status") != 0)
        return DT_FAIL(DT_E_USAGE, "ctl knows `status`, not \"%.40s\"", cli->arguments[0]);
    DT_TRY(dt_cluster_status(cli->arguments[1], &text));
    json_t *o = json_loads(text, 0, NULL);
    free(text);
    if (!o)
        return DT_FAIL(DT_E_DATA, "the coordinator's answer is no JSON");
    if (cli->json)
        return dt_cli_json(cli, o);
    print_status(o);
    json_decref(o);
    return DT_OK;
}

const struct dt_cli_verb dt_cli_verb_ctl = {
    .name = "ctl",
    .run = run,
    .arguments = "status RUN_DIRECTORY",
    .min_arguments = 2,
    .max_arguments = 2,
    .summary = "look at a run with several workers: who does what, who waits for whom",
    .json = true,
};
