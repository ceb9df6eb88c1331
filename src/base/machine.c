#include "base/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The start of a small file of /proc or /sys as text; false when there is none. */
static bool read_small(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(out, 1, size - 1, f);
    out[n] = '\0';
    fclose(f);
    return n > 0;
}

/* The number after "name" at the start of a line, 0 when it is not there. */
static int64_t field(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n) == 0)
            return strtoll(p + n, NULL, 10);
    }
    return 0;
}

static int64_t read_number(const char *directory, const char *file)
{
    char path[1100], text[64];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    if (!read_small(path, text, sizeof text) || strncmp(text, "max", 3) == 0)
        return 0;
    return strtoll(text, NULL, 10);
}

/* The directory of this process's control group: `controller` "" is version 2. A container often
 * sees a path that is not there; its own group is then the root of the mount. */
static bool group_directory(const char *controller, char *out, size_t size)
{
    char text[4096];
    if (!read_small("/proc/self/cgroup", text, sizeof text))
        return false;
    char *save, *line = strtok_r(text, "\n", &save);
    for (; line; line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        names++;
        char padded[256], wanted[64];
        snprintf(padded, sizeof padded, ",%s,", names);
        snprintf(wanted, sizeof wanted, ",%s,", controller);
        if (controller[0] ? !strstr(padded, wanted) : names[0] != '\0')
            continue;
        const char *root = "/sys/fs/cgroup", *slash = controller[0] ? "/" : "";
        snprintf(out, size, "%s%s%s%.600s", root, slash, controller, strcmp(path, "/") ? path : "");
        if (access(out, F_OK) != 0)
            snprintf(out, size, "%s%s%s", root, slash, controller);
        return access(out, F_OK) == 0;
    }
    return false;
}

/* To the parent group; false at the root of the mount. */
static bool parent(char *directory)
{
    char *slash = strrchr(directory, '/');
    if (!slash || strlen(directory) <= strlen("/sys/fs/cgroup"))
        return false;
    *slash = '\0';
    return true;
}

static void consider_limit(struct dt_machine_memory *m, int64_t limit, int64_t used)
{
    /* Version 1 writes "no limit" as a number beyond any machine. */
    if (limit <= 0 || limit >= (int64_t)1 << 60)
        return;
    if (m->limit == 0 || limit - used < m->limit - m->used) {
        m->limit = limit;
        m->used = used;
    }
}

static void group_memory(struct dt_machine_memory *m, const char *controller,
                         const char *limit_file, const char *used_file, const char *cache_field)
{
    char directory[1024], path[1100], text[8192];
    if (!group_directory(controller, directory, sizeof directory))
        return;
    do {
        int64_t used = read_number(directory, used_file);
        snprintf(path, sizeof path, "%s/memory.stat", directory);
        if (read_small(path, text, sizeof text))
            used -= field(text, cache_field);
        consider_limit(m, read_number(directory, limit_file), used > 0 ? used : 0);
    } while (parent(directory));
}

static int64_t group_field(const char *controller, const char *file, const char *name)
{
    char directory[1024], path[1100], text[8192];
    if (!group_directory(controller, directory, sizeof directory))
        return 0;
    snprintf(path, sizeof path, "%s/%s", directory, file);
    return read_small(path, text, sizeof text) ? field(text, name) : 0;
}

int64_t dt_machine_oom_kills(void)
{
    return group_field("", "memory.events", "oom_kill ") +
           group_field("memory", "memory.oom_control", "oom_kill ");
}

void dt_machine_memory(struct dt_machine_memory *out)
{
    char text[8192];
    struct rlimit limit;
    *out = (struct dt_machine_memory){0};
    if (read_small("/proc/meminfo", text, sizeof text)) {
        out->total = field(text, "MemTotal:") * 1024;
        out->available = field(text, "MemAvailable:") * 1024;
    }
    group_memory(out, "", "memory.max", "memory.current", "inactive_file ");
    group_memory(out, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                 "total_inactive_file ");
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        read_small("/proc/self/statm", text, sizeof text))
        consider_limit(out, (int64_t)limit.rlim_cur,
                       strtoll(text, NULL, 10) * sysconf(_SC_PAGESIZE));
}

int64_t dt_machine_memory_free(void)
{
    struct dt_machine_memory m;
    dt_machine_memory(&m);
    int64_t under_limit = m.limit - m.used;
    if (m.limit && under_limit < m.available)
        return under_limit > 0 ? under_limit : 0;
    return m.available;
}

/* Cores that the quota of the control groups is worth, rounded up; 0: no quota. */
static int64_t quota_cores(void)
{
    char directory[1024], path[1100], text[128], *end;
    int64_t least = 0;
    if (group_directory("", directory, sizeof directory)) {
        do {
            snprintf(path, sizeof path, "%s/cpu.max", directory);
            if (!read_small(path, text, sizeof text))
                continue;
            int64_t quota = strtoll(text, &end, 10), period = strtoll(end, NULL, 10);
            if (quota > 0 && period > 0 && (!least || (quota + period - 1) / period < least))
                least = (quota + period - 1) / period;
        } while (parent(directory));
    }
    if (group_directory("cpu", directory, sizeof directory)) {
        do {
            int64_t quota = read_number(directory, "cpu.cfs_quota_us");
            int64_t period = read_number(directory, "cpu.cfs_period_us");
            if (quota > 0 && period > 0 && (!least || (quota + period - 1) / period < least))
                least = (quota + period - 1) / period;
        } while (parent(directory));
    }
    return least;
}

int dt_machine_threads(void)
{
    /* A fixed set holds 1 024 cores; larger machines need a larger one. */
    int cores = dt_machine_cores(), size = 8192;
    cpu_set_t *set = CPU_ALLOC((size_t)size);
    if (set) {
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)size), set) == 0)
            cores = CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)size), set);
        CPU_FREE(set);
    }
    int64_t quota = quota_cores();
    if (quota > 0 && quota < cores)
        cores = (int)quota;
    return cores > 0 ? cores : 1;
}

int dt_machine_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

void dt_machine_cpu_name(char *out, size_t size)
{
    char text[4096];
    snprintf(out, size, "unknown");
    if (!read_small("/proc/cpuinfo", text, sizeof text))
        return;
    const char *p = strstr(text, "model name");
    p = p ? strchr(p, ':') : NULL;
    if (p) {
        p += strspn(p, ": \t");
        snprintf(out, size, "%.*s", (int)strcspn(p, "\n"), p);
    }
}

void dt_machine_huge_pages(char *out, size_t size)
{
    char text[128];
    snprintf(out, size, "unknown");
    if (!read_small("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text))
        return;
    const char *p = strchr(text, '[');
    if (p)
        snprintf(out, size, "%.*s", (int)strcspn(p + 1, "]"), p + 1);
}
