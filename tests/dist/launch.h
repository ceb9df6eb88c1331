/* For tests of the ways to start several tasks: a tiny run by one worker to compare with, and what
 * a launcher needs (a free port, a look for its tools). */
#ifndef DT_TESTS_LAUNCH_H
#define DT_TESTS_LAUNCH_H

#include "program.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <math.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#define LAUNCH_STEPS 4
/* Every run of these tests; %s is its directory. */
#define LAUNCH_TRAIN "$D train run.yaml --output=%s --train.steps=4 --eval.every=0"
#define LAUNCH_SKIPPED 77

/* Gradients are summed in another order with another number of workers: a few units in the last
 * place of a float, which four steps hardly amplify. */
#define LAUNCH_TOLERANCE 1e-6

/* What the test cannot do without: a shell condition, and what to say. Exits when it fails. */
static inline void launch_need(const char *condition, const char *what)
{
    char command[512];
    snprintf(command, sizeof command, "{ %s ; } >/dev/null 2>&1", condition);
    if (system(command) == 0)
        return;
    fprintf(stderr, "SKIPPED: %s\n", what);
    exit(LAUNCH_SKIPPED);
}

/* Nobody listens on it at this moment. */
static inline int launch_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0)
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

/* The losses of a run's steps from its metrics.jsonl; returns how many there are. */
static inline int launch_losses(const char *run, double loss[LAUNCH_STEPS])
{
    char path[512], line[4096];
    int count = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", program_dir, run);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"loss\":");
        if (!at)
            continue;
        if (count < LAUNCH_STEPS)
            loss[count] = atof(at + strlen("\"loss\":"));
        count++;
    }
    if (f)
        fclose(f);
    return count;
}

/* The run made every step, with the losses of the run in "one". */
static inline void launch_expect_same(const char *run)
{
    double a[LAUNCH_STEPS], b[LAUNCH_STEPS];
    assert_int_equal(launch_losses("one", a), LAUNCH_STEPS);
    assert_int_equal(launch_losses(run, b), LAUNCH_STEPS);
    for (int i = 0; i < LAUNCH_STEPS; i++)
        if (!(fabs(a[i] - b[i]) <= LAUNCH_TOLERANCE * a[i]))
            fail_msg("step %d: loss %.9g by one worker, %.9g in %s", i + 1, a[i], b[i], run);
}

/* No process works in the test's directory any more, a second from now at the latest. */
static inline void launch_expect_nobody(void)
{
    char where[512], link[64], found[64] = "";
    for (int tries = 0; tries < 20; tries++) {
        DIR *all = opendir("/proc");
        const struct dirent *e;
        found[0] = '\0';
        while (all && (e = readdir(all))) {
            snprintf(link, sizeof link, "/proc/%.20s/cwd", e->d_name);
            ssize_t n = readlink(link, where, sizeof where - 1);
            where[n > 0 ? n : 0] = '\0';
            if (strcmp(where, program_dir) == 0)
                snprintf(found, sizeof found, "%.20s", e->d_name);
        }
        closedir(all);
        if (!found[0])
            return;
        usleep(50000);
    }
    fail_msg("process %s is left behind", found);
}

static inline int launch_open(void **state)
{
    (void)state;
    program_open("launch");
    program_tiny_run();
    return program_run(LAUNCH_TRAIN, "one") == 0 ? 0 : (fputs(program_out, stderr), -1);
}

static inline int launch_close(void **state)
{
    (void)state;
    program_close();
    return 0;
}

#endif
