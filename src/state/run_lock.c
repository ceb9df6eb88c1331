/* One run a directory. The kernel's lock decides (it dies with its holder); what stands in the file
 * is only for the message to the second one. The file is never removed: a third process could lock
 * the removed one while a fourth locks its successor. */
#include "state/checkpoint.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static int busy(const char *output, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    json_t *json = NULL;
    const char *host = "an unknown host", *since = "an unknown time";
    int64_t pid = 0;
    /* The holder may be just about to write it: no more than less to say. */
    if (dt_file_read(path, 4096, &text, &size) == DT_OK &&
        dt_json_parse(text, size, path, DT_E_IO, &json) == DT_OK) {
        struct dt_json_in in = {json, path, DT_E_IO};
        if (dt_json_get_string(in, "host", &host) < 0 ||
            dt_json_get_string(in, "since", &since) < 0 ||
            dt_json_get_int(in, "pid", 1, INT32_MAX, &pid) < 0)
            pid = 0;
    }
    int rc = DT_FAIL(DT_E_BUSY,
                     "%s is in use by another run: process %" PRId64 " on %s, since %s. Stop that "
                     "one, or choose another 'output'",
                     output, pid, host, since);
    free(text);
    json_decref(json);
    return rc;
}

static int write_holder(int fd, const char *path)
{
    char host[256] = "", since[32], text[512];
    time_t now = time(NULL);
    struct tm tm;
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    json_t *json = json_pack("{s:s, s:i, s:s}", "host", host, "pid", (int)getpid(), "since", since);
    size_t n = json ? json_dumpb(json, text, sizeof text, 0) : 0;
    json_decref(json);
    if (n == 0 || n > sizeof text)
        return DT_FAIL(DT_E_INTERNAL, "cannot write %s", path);
    if (ftruncate(fd, 0) != 0)
        return dt_file_fail("write", path);
    return dt_fd_write_at(fd, path, text, n, 0);
}

int dt_run_lock(const char *output, struct dt_run_lock *out)
{
    out->fd = -1;
    DT_TRY(dt_mkdirs(output));
    DT_TRY(dt_path_join(out->path, output, ".lock"));
    int fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return dt_file_fail("open", out->path);
    int rc;
    do
        rc = flock(fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return busy(output, out->path);
    }
    if (rc !=
        0) /* a network disk mounted without locks: better to train unguarded than not at all */
        dt_warn("%s cannot be locked (%s): nothing keeps a second run out of %s", out->path,
                strerror(errno), output);
    rc = write_holder(fd, out->path);
    if (rc < 0) {
        close(fd);
        return dt_error_pass(rc, __FILE__, __LINE__);
    }
    out->fd = fd;
    return DT_OK;
}

void dt_run_unlock(struct dt_run_lock *lock)
{
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = -1;
}
