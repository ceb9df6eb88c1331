/* OUTPUT/.control: how others of the same user find a run's coordinator. */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int path_of(const char *output, char path[DT_PATH])
{
    return dt_path_join(path, output, ".control");
}

int dt_control_file_write(const char *output, const struct dt_control_file *c)
{
    char path[DT_PATH];
    DT_TRY(path_of(output, path));
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:s}", "host", c->host, "address", c->address, "port",
                  c->port, "pid", (json_int_t)c->pid, "job", c->job, "secret", c->secret);
    if (!o)
        return DT_FAIL(DT_E_MEMORY, "no memory to write %s", path);
    mode_t before = umask(0077); /* the secret is nobody else's, from the first byte on */
    int rc = dt_json_save(path, o);
    umask(before);
    json_decref(o);
    return rc;
}

static int copy(struct dt_json_in in, const char *key, char *out, size_t size)
{
    const char *text;
    DT_TRY(dt_json_need_string(in, key, &text));
    snprintf(out, size, "%s", text);
    return DT_OK;
}

static int read_fields(struct dt_json_in in, struct dt_control_file *out)
{
    int64_t port;
    DT_TRY(copy(in, "host", out->host, sizeof out->host));
    DT_TRY(copy(in, "address", out->address, sizeof out->address));
    DT_TRY(copy(in, "job", out->job, sizeof out->job));
    DT_TRY(copy(in, "secret", out->secret, sizeof out->secret));
    DT_TRY(dt_json_need_int(in, "port", 1, 65535, &port));
    DT_TRY(dt_json_need_int(in, "pid", 1, INT64_MAX, &out->pid));
    out->port = (int32_t)port;
    return DT_OK;
}

int dt_control_file_read(const char *output, struct dt_control_file *out)
{
    char path[DT_PATH];
    json_t *json;
    *out = (struct dt_control_file){0};
    DT_TRY(path_of(output, path));
    if (!dt_file_exists(path))
        return DT_FAIL(DT_E_NOT_FOUND,
                       "%s is not there: no run with several workers is going on in %s", path,
                       output);
    DT_TRY(dt_json_load(path, 65536, DT_E_DATA, &json));
    struct dt_json_in in = {json, path, DT_E_DATA};
    int rc = read_fields(in, out);
    json_decref(json);
    return rc;
}

void dt_control_file_remove(const char *output)
{
    char path[DT_PATH];
    if (path_of(output, path) >= 0)
        unlink(path);
}
