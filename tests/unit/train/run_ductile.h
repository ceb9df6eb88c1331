/* Runs the program as a user does, for tests that compare what it prints and writes. */
#ifndef DT_TEST_RUN_DUCTILE_H
#define DT_TEST_RUN_DUCTILE_H

#include "base/error.h"
#include "base/file.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void require(int rc)
{
    if (rc < 0)
        fail_msg("%s", dt_error_message());
}

/* A directory of this test alone; removed by scratch_close. */
static void scratch_open(char dir[DT_PATH])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, DT_PATH, "%s/ductile-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static void scratch_close(const char *dir)
{
    require(dt_remove_tree(dir));
}

/* `arguments` ends with NULL. Standard output comes back (free it). Anything but exit 0 fails the
 * test with what the program said on standard error. */
static char *run_ductile(const char *scratch, const char *const *arguments)
{
    const char *argv[32] = {DT_DUCTILE};
    char out[DT_PATH + 8], err[DT_PATH + 8], *text, *words;
    size_t size;
    int n = 1, status;
    for (; arguments[n - 1]; n++) {
        assert_true(n < 31);
        argv[n] = arguments[n - 1];
    }
    snprintf(out, sizeof out, "%s/stdout", scratch);
    snprintf(err, sizeof err, "%s/stderr", scratch);
    posix_spawn_file_actions_t actions;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, 2, err, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (posix_spawn(&pid, DT_DUCTILE, &actions, NULL, (char **)(uintptr_t)argv, environ) != 0)
        fail_msg("cannot start %s", DT_DUCTILE);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    require(dt_file_read(err, (size_t)1 << 24, &words, &size));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("ductile %s %s: status %d: %s", argv[1], argv[2], status, words);
    free(words);
    require(dt_file_read(out, (size_t)1 << 24, &text, &size));
    return text;
}

#endif
