/* For tests that do something to the processes of one `ductile train`: who they are, whether they
 * are gone, what they left behind. The last words of workers go to the program's own standard
 * error, so the end of its stream is the end of all of them. */
#ifndef DT_TESTS_FAULT_CREW_H
#define DT_TESTS_FAULT_CREW_H

#include "live.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>

enum { CREW_MOST = 16 };

struct crew {
    pid_t pid[CREW_MOST]; /* workers, in the order of their start, which is that of their ranks */
    int count;
};

static inline double crew_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void crew_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* The children of `parent`: workers are started by its main thread. */
static inline void crew_look(pid_t parent, struct crew *c)
{
    char path[64];
    int pid;
    *c = (struct crew){0};
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *f = fopen(path, "r");
    while (f && c->count < CREW_MOST && fscanf(f, "%d", &pid) == 1)
        c->pid[c->count++] = (pid_t)pid;
    if (f)
        fclose(f);
}

/* Until there are `count`; false when the program ends first or a minute has passed. */
static inline bool crew_wait(pid_t parent, int count, struct crew *c)
{
    double until = crew_clock() + 60;
    for (;;) {
        crew_look(parent, c);
        if (c->count >= count)
            return true;
        if (crew_clock() > until ||
            waitid(P_PID, (id_t)parent, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) != 0)
            return false;
        crew_sleep(0.001);
    }
}

/* State letter of /proc/PID/stat, 0 when there is no such process. */
static inline char crew_state(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] ? name_end[2] : 0;
}

static inline bool crew_gone(const struct crew *c)
{
    for (int i = 0; i < c->count; i++) {
        char state = crew_state(c->pid[i]);
        if (state && state != 'Z')
            return false;
    }
    return true;
}

/* Shared-memory segments that a process of the run made; zero is right. */
static inline int crew_segments(pid_t parent, const struct crew *c)
{
    char line[512];
    int found = 0;
    FILE *f = fopen("/proc/sysvipc/shm", "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        int maker = 0; /* key shmid perms size cpid … */
        if (sscanf(line, "%*s %*s %*s %*s %d", &maker) != 1)
            continue;
        found += maker == (int)parent;
        for (int i = 0; i < c->count; i++)
            found += maker == (int)c->pid[i];
    }
    fclose(f);
    return found;
}

/* A process that ends closes its descriptors, and even counts as ended, a moment before its memory
 * is gone: waits for both. */
static inline bool crew_gone_by(pid_t parent, const struct crew *c, double until)
{
    while (!crew_gone(c) || crew_segments(parent, c) > 0) {
        if (crew_clock() > until)
            return false;
        crew_sleep(0.001);
    }
    return true;
}

/* What a run may have left in its directory, `orderly` or not; "" is right. */
static inline const char *crew_rubbish(const char *output, bool orderly)
{
    program_run("find %s -name '*.tmp*' -o -name '.tmp-*' -o -name '.old-*' -o -name '.del-*'%s",
                output, orderly ? " -o -name .control -o -name .cookie" : "");
    return program_out;
}

#endif
