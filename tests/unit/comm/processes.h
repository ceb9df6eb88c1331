/* Worker processes over UCX, for tests and benchmarks: this program started again as
 * `PROGRAM worker SCENARIO`, with the parent in the coordinator's place.
 *
 * For an epoch the parent tells every living worker its rank, their number and the epoch's; each
 * answers with its address and gets the table. What a worker has to say at the end of a part of its
 * scenario is one report: a code, some numbers, the words of a failure. */
#ifndef DT_TEST_COMM_PROCESSES_H
#define DT_TEST_COMM_PROCESSES_H

#include "base/error.h"
#include "comm/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CREW_MOST = 8, CREW_IN = 3, CREW_OUT = 4, CREW_PATIENCE_MS = 120000 };

struct crew {
    int32_t size;
    pid_t pid[CREW_MOST]; /* 0: gone */
    int to[CREW_MOST], from[CREW_MOST];
};

struct crew_seat {
    int32_t rank, size;
    int64_t epoch;
};

struct crew_report {
    int rc;
    double value[4];
    char words[512];
};

/* ---- Both sides ---- */

static int crew_write(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n <= 0)
            return DT_FAIL(DT_E_IO, "writing to a process: %s", strerror(errno));
        done += (size_t)n;
    }
    return DT_OK;
}

static int crew_read(int fd, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, CREW_PATIENCE_MS) <= 0)
            return DT_FAIL(DT_E_TIMEOUT, "a process says nothing");
        ssize_t n = read(fd, (char *)data + done, bytes - done);
        if (n <= 0)
            return DT_FAIL(DT_E_IO, "a process has gone");
        done += (size_t)n;
    }
    return DT_OK;
}

/* ---- The worker's side ---- */

/* Opens the next epoch, as the parent says. */
__attribute__((unused)) static int crew_join(double timeout, struct dt_comm **out)
{
    struct crew_seat seat;
    struct dt_comm_address table[CREW_MOST];
    unsigned char bytes[CREW_MOST][2048];
    const void *address;
    size_t size;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a parent that fails leaves none behind */
    DT_TRY(crew_read(CREW_IN, &seat, sizeof seat));
    struct dt_comm_options o = {
        .rank = seat.rank, .size = seat.size, .epoch = seat.epoch, .timeout = timeout};
    DT_TRY(dt_comm_ucx_new(o.rank, o.size, o.epoch, &o.transport));
    DT_TRY(dt_comm_open(&o, out));
    DT_TRY(dt_comm_address(*out, &address, &size));
    DT_TRY(crew_write(CREW_OUT, &size, sizeof size));
    DT_TRY(crew_write(CREW_OUT, address, size));
    for (int32_t i = 0; i < seat.size; i++) {
        DT_TRY(crew_read(CREW_IN, &table[i].bytes, sizeof size));
        if (table[i].bytes > sizeof bytes[i])
            return DT_FAIL(DT_E_INTERNAL, "an address of %zu bytes", table[i].bytes);
        DT_TRY(crew_read(CREW_IN, bytes[i], table[i].bytes));
        table[i].data = bytes[i];
    }
    return dt_comm_connect(*out, table);
}

__attribute__((unused)) static void crew_say(int rc, const double value[4])
{
    struct crew_report r = {.rc = rc};
    if (value)
        memcpy(r.value, value, sizeof r.value);
    snprintf(r.words, sizeof r.words, "%.500s", rc < 0 ? dt_error_message() : "");
    crew_write(CREW_OUT, &r, sizeof r);
}

/* ---- The parent's side ---- */

static int crew_spawn(struct crew *c, int32_t i, const char *scenario, char **environment)
{
    int to[2], from[2];
    char name[64];
    snprintf(name, sizeof name, "%s", scenario);
    char self[] = "/proc/self/exe", word[] = "worker", *argv[] = {self, word, name, NULL};
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        return DT_FAIL(DT_E_IO, "cannot make pipes: %s", strerror(errno));
    int in = fcntl(to[0], F_DUPFD_CLOEXEC, 16), out = fcntl(from[1], F_DUPFD_CLOEXEC, 16);
    posix_spawn_file_actions_t a;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, in, CREW_IN);
    posix_spawn_file_actions_adddup2(&a, out, CREW_OUT);
    posix_spawn_file_actions_addclosefrom_np(&a, CREW_OUT + 1);
    int why = posix_spawn(&c->pid[i], self, &a, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&a);
    close(to[0]);
    close(from[1]);
    close(in);
    close(out);
    c->to[i] = to[1];
    c->from[i] = from[0];
    return why ? DT_FAIL(DT_E_IO, "cannot start a process: %s", strerror(why)) : DT_OK;
}

/* `tls`: UCX_TLS of the workers, NULL for the default of dt_comm_environment. */
__attribute__((unused)) static int crew_start(struct crew *c, int32_t size, const char *scenario,
                                              const char *tls)
{
    const char *settings[16];
    char buffer[64], choice[64], *environment[512];
    int n = 0;
    *c = (struct crew){.size = size};
    DT_TRY(dt_comm_environment(true, NULL, buffer, sizeof buffer, settings));
    snprintf(choice, sizeof choice, "UCX_TLS=%s", tls ? tls : "");
    for (int i = 0; settings[i]; i++)
        environment[n++] =
            (char *)(uintptr_t)(tls && strncmp(settings[i], choice, 8) == 0 ? choice : settings[i]);
    for (int i = 0; environ[i] && n < 511; i++)
        environment[n++] = environ[i];
    environment[n] = NULL;
    for (int32_t i = 0; i < size; i++)
        DT_TRY(crew_spawn(c, i, scenario, environment));
    return DT_OK;
}

/* An address and its length; `old`: keeps what was there before, from an earlier epoch. */
struct crew_address {
    size_t bytes;
    unsigned char data[2048];
};

/* One epoch among those who live. With `stale` all but worker 1 itself get that address for it. */
__attribute__((unused)) static int crew_connect(struct crew *c, int64_t epoch,
                                                struct crew_address table[CREW_MOST],
                                                const struct crew_address *stale)
{
    int32_t n = 0, living[CREW_MOST];
    for (int32_t i = 0; i < c->size; i++)
        if (c->pid[i])
            living[n++] = i;
    for (int32_t k = 0; k < n; k++) {
        struct crew_seat seat = {k, n, epoch};
        DT_TRY(crew_write(c->to[living[k]], &seat, sizeof seat));
    }
    for (int32_t k = 0; k < n; k++) {
        DT_TRY(crew_read(c->from[living[k]], &table[k].bytes, sizeof table[k].bytes));
        if (table[k].bytes > sizeof table[k].data)
            return DT_FAIL(DT_E_INTERNAL, "an address of %zu bytes", table[k].bytes);
        DT_TRY(crew_read(c->from[living[k]], table[k].data, table[k].bytes));
    }
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < n; i++) {
            const struct crew_address *a = stale && i == 1 && k != 1 ? stale : &table[i];
            DT_TRY(crew_write(c->to[living[k]], &a->bytes, sizeof a->bytes));
            DT_TRY(crew_write(c->to[living[k]], a->data, a->bytes));
        }
    return DT_OK;
}

/* A report of every living worker; the first failure is returned, with its words. */
__attribute__((unused)) static int crew_hear(struct crew *c, struct crew_report out[CREW_MOST])
{
    for (int32_t i = 0; i < c->size; i++)
        if (c->pid[i]) {
            DT_TRY(crew_read(c->from[i], &out[i], sizeof out[i]));
            if (out[i].rc < 0)
                return DT_FAIL(out[i].rc, "process %d: %s", (int)i, out[i].words);
        }
    return DT_OK;
}

__attribute__((unused)) static void crew_kill(struct crew *c, int32_t i)
{
    if (!c->pid[i])
        return;
    kill(c->pid[i], SIGKILL);
    waitpid(c->pid[i], NULL, 0);
    close(c->to[i]);
    close(c->from[i]);
    c->pid[i] = 0;
}

/* Waits for their ends; DT_E_INTERNAL when one did not end well. */
__attribute__((unused)) static int crew_finish(struct crew *c)
{
    int status, rc = DT_OK;
    for (int32_t i = 0; i < c->size; i++)
        if (c->pid[i]) {
            close(c->to[i]);
            close(c->from[i]);
            if (waitpid(c->pid[i], &status, 0) < 0 || status != 0)
                rc = DT_FAIL(DT_E_INTERNAL, "process %d ended with status %d", (int)i, status);
            c->pid[i] = 0;
        }
    return rc;
}

#endif
