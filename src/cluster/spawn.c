#include "cluster/spawn.h"

#include "base/error.h"
#include "cluster/worker.h"
#include "comm/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIGH 16 /* sources of dup2 stand above every target */

extern char **environ;

/* The present environment with the transport's settings; free the array, not the strings. */
static int make_environment(bool local, const char *device, char *buffer, size_t size, char ***out)
{
    const char *settings[16];
    int added = 0, n = 0;
    DT_TRY(dt_comm_environment(local, device, buffer, size, settings));
    while (settings[added])
        added++;
    while (environ[n])
        n++;
    char **list = calloc((size_t)(n + added + 1), sizeof *list);
    if (!list)
        return DT_FAIL(DT_E_MEMORY, "no memory for a worker's environment");
    memcpy(list, environ, (size_t)n * sizeof *list);
    for (int i = 0; i < added; i++)
        list[n + i] = (char *)(uintptr_t)settings[i];
    *out = list;
    return DT_OK;
}

static int high(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    close(fd);
    return moved;
}

static int make_channels(struct dt_child *c, int child[2])
{
    int pair[2], log[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return DT_FAIL(DT_E_IO, "cannot make a socket pair for a worker: %s", strerror(errno));
    if (pipe2(log, O_CLOEXEC) != 0) {
        close(pair[0]);
        close(pair[1]);
        return DT_FAIL(DT_E_IO, "cannot make a pipe for a worker: %s", strerror(errno));
    }
    c->control = pair[0];
    c->log = log[0];
    fcntl(c->log, F_SETFL, O_NONBLOCK);
    child[0] = high(pair[1]);
    child[1] = high(log[1]);
    return DT_OK;
}

static int spawn(struct dt_child *c, const int child[2], char **environment)
{
    static char *const argv[] = {"ductile", "worker", NULL};
    posix_spawn_file_actions_t a;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, 2, DT_WORKER_LAST_WORDS);
    posix_spawn_file_actions_adddup2(&a, child[0], DT_WORKER_CONTROL);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&a, child[1], 1);
    posix_spawn_file_actions_adddup2(&a, child[1], 2);
    posix_spawn_file_actions_addclosefrom_np(&a, DT_WORKER_LAST_WORDS + 1);
    int why = posix_spawn(&c->pid, "/proc/self/exe", &a, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&a);
    return why == 0 ? DT_OK : DT_FAIL(DT_E_IO, "cannot start a worker: %s", strerror(why));
}

int dt_child_start(bool local, const char *device, struct dt_child *out)
{
    char buffer[1024], **environment = NULL;
    int child[2] = {-1, -1};
    *out = (struct dt_child){.pid = -1, .control = -1, .log = -1};
    DT_TRY(make_environment(local, device, buffer, sizeof buffer, &environment));
    int rc = make_channels(out, child);
    if (rc >= 0) {
        rc = spawn(out, child, environment);
        close(child[0]);
        close(child[1]);
        if (rc < 0) {
            close(out->control);
            close(out->log);
        }
    }
    free(environment);
    return rc;
}

void dt_child_words(int status, bool oom, char *out, size_t size)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && oom)
        snprintf(
            out, size,
            "was killed because its control group ran out of memory; lower microbatch.tokens or "
            "raise the limit");
    else if (WIFSIGNALED(status))
        snprintf(out, size, "was killed by signal %d (SIG%s)", WTERMSIG(status),
                 sigabbrev_np(WTERMSIG(status)) ? sigabbrev_np(WTERMSIG(status)) : "?");
    else
        snprintf(out, size, "exited with code %d", WEXITSTATUS(status));
}
