/* `ductile doctor`: what this machine gives a run, in the numbers that the other verbs use. */
#include "cli/cli.h"

#include "base/machine.h"
#include "cluster/cluster.h"
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PEAK_SECONDS 0.5
#define GIB (1024.0 * 1024 * 1024)

struct findings {
    char cpu[128], huge_pages[32];
    int threads, cores;
    struct dt_machine_memory memory;
    int64_t memory_free;
    const char *kernels;
    double peak_f32, peak_bf16; /* GFLOP/s, 0: not measured */
    int64_t disk_free; /* bytes for us in the current directory's file system; -1 unknown */
};

static const char *const sets[] = {"avx512bf16", "avx512", "avx2", "portable", "reference"};

static int look(struct dt_cli *cli, struct findings *f)
{
    struct statvfs disk;
    *f = (struct findings){.disk_free = -1};
    dt_machine_cpu_name(f->cpu, sizeof f->cpu);
    dt_machine_huge_pages(f->huge_pages, sizeof f->huge_pages);
    f->cores = dt_machine_cores();
    f->threads = (int)dt_cli_int(cli, "threads");
    if (f->threads == 0)
        f->threads = dt_machine_threads();
    dt_machine_memory(&f->memory);
    f->memory_free = dt_machine_memory_free();
    if (statvfs(".", &disk) == 0)
        f->disk_free = (int64_t)(disk.f_bavail * disk.f_frsize);
    DT_TRY(dt_kernels_select(dt_cli_string(cli, "kernels")));
    f->kernels = dt_k->name;
    if (dt_cli_flag(cli, "measure")) {
        dt_ops_set_threads(f->threads);
        f->peak_f32 = dt_ops_peak_gflops(DT_F32, PEAK_SECONDS);
        f->peak_bf16 = dt_ops_peak_gflops(DT_BF16, PEAK_SECONDS);
    }
    return DT_OK;
}

static int print_json(struct dt_cli *cli, const struct findings *f)
{
    json_t *usable = json_array();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (dt_kernels_find(sets[i]))
            json_array_append_new(usable, json_string(sets[i]));
    return dt_cli_json(
        cli,
        json_pack("{s:s, s:i, s:i, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f}",
                  "version", DT_VERSION, "cores", f->cores, "threads", f->threads, "cpu", f->cpu,
                  "kernels", f->kernels, "kernel_sets", usable, "memory_total_bytes",
                  (json_int_t)f->memory.total, "memory_available_bytes",
                  (json_int_t)f->memory.available, "memory_limit_bytes",
                  (json_int_t)f->memory.limit, "memory_limit_used_bytes",
                  (json_int_t)f->memory.used, "memory_free_bytes", (json_int_t)f->memory_free,
                  "huge_pages", f->huge_pages, "disk_free_bytes", (json_int_t)f->disk_free,
                  "peak_gflops_float32", f->peak_f32, "peak_gflops_bfloat16", f->peak_bf16));
}

static void print_text(const struct findings *f)
{
    printf("version      %s\n", DT_VERSION);
    printf("cpu          %s, %d cores online, %d threads for a run\n", f->cpu, f->cores,
           f->threads);
    printf("kernels      %s (this CPU runs:", f->kernels);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (dt_kernels_find(sets[i]))
            printf(" %s", sets[i]);
    printf(")\n");
    if (f->peak_f32 > 0)
        printf(
            "peak         %.0f GFLOP/s float32, %.0f GFLOP/s bfloat16, measured with %d threads\n",
            f->peak_f32, f->peak_bf16, f->threads);
    printf("memory       %.1f GiB, %.1f GiB available", (double)f->memory.total / GIB,
           (double)f->memory.available / GIB);
    if (f->memory.limit)
        printf(", limited to %.1f GiB of which %.1f GiB are used", (double)f->memory.limit / GIB,
               (double)f->memory.used / GIB);
    printf("; a run may take %.1f GiB\n", (double)f->memory_free / GIB);
    printf("huge pages   %s\n", f->huge_pages);
    if (f->disk_free >= 0)
        printf("disk         %.1f GiB free in the current directory\n", (double)f->disk_free / GIB);
}

/* What is worth changing before a run. */
static void advise(const struct findings *f)
{
    if (f->threads < f->cores)
        dt_warn("%d of %d cores are used: affinity, a quota, or --threads", f->threads, f->cores);
    if (strcmp(f->huge_pages, "never") == 0)
        dt_warn("transparent huge pages are off; \"madvise\" makes large models faster");
    if (f->disk_free >= 0 && f->disk_free < (int64_t)1 << 30)
        dt_warn(
            "less than 1 GiB of disk is free here; checkpoints need three times the model or more");
    if (access(".", W_OK) != 0)
        dt_warn("the current directory cannot be written");
}

/* ---- --comm: every link between local workers ---- */

static json_t *flatten(const char *text)
{
    json_t *all = json_loads(text ? text : "[]", 0, NULL), *list = json_array(), *some, *link;
    size_t i, k;
    json_array_foreach(all, i, some) json_array_foreach(some, k, link)
        json_array_append(list, link);
    json_decref(all);
    return list;
}

static int measure_links(struct dt_cli *cli)
{
    char *text = NULL;
    size_t i;
    json_t *link;
    DT_TRY(dt_cluster_measure((int32_t)dt_cli_int(cli, "workers"), &text));
    json_t *links = flatten(text);
    free(text);
    if (cli->json)
        return dt_cli_json(cli, json_pack("{s:o}", "links", links));
    printf("link       latency     bandwidth  path\n");
    json_array_foreach(links, i, link)
        printf("%3lld - %-3lld %7.1f us %8.2f GB/s  %s\n",
               (long long)json_integer_value(json_object_get(link, "from")),
               (long long)json_integer_value(json_object_get(link, "to")),
               json_number_value(json_object_get(link, "latency_us")),
               json_number_value(json_object_get(link, "bandwidth_gbs")),
               json_string_value(json_object_get(link, "path")));
    json_decref(links);
    return DT_OK;
}

static int run(struct dt_cli *cli)
{
    struct findings f;
    if (dt_cli_flag(cli, "comm"))
        return measure_links(cli);
    DT_TRY(look(cli, &f));
    advise(&f);
    if (cli->json)
        return print_json(cli, &f);
    print_text(&f);
    return DT_OK;
}

static const struct dt_cli_option options[] = {
    {"threads", 0, "N", DT_CLI_INT, .fallback = "0", .max = 4096,
     .doc = "threads to measure with; 0 is what a run would use"},
    {"kernels", 0, "SET", DT_CLI_STRING, .fallback = "auto", .doc = "kernel set to use"},
    {"measure", .fallback = "true",
     .doc = "measure the peak of the CPU, about a second; --no-measure leaves it out"},
    {"comm", .type = DT_CLI_FLAG,
     .doc = "instead: start workers and measure latency and bandwidth of every pair"},
    {"workers", 0, "N", DT_CLI_INT, .fallback = "2", .min = 2, .max = 64,
     .doc = "workers of --comm"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_doctor = {
    .name = "doctor",
    .run = run,
    .arguments = "",
    .summary = "what this machine offers: CPU, kernels, threads, memory, disk, measured peak",
    .options = options,
    .json = true,
};
