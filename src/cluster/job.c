#include "cluster/job.h"

#include "base/error.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {[DT_JOB_TRAIN] = "train", [DT_JOB_COMM] = "comm"};

int dt_job_print(const struct dt_job *j, char **text)
{
    json_t *o = json_pack(
        "{s:s, s:i, s:i, s:i, s:I, s:f, s:f, s:b, s:s, s:I, s:s, s:s}", "kind", kinds[j->kind],
        "rank", j->rank, "workers", j->workers, "threads", j->threads, "epoch",
        (json_int_t)j->epoch, "timeout", j->timeout, "start_timeout", j->start_timeout, "verbose",
        j->verbose, "yaml", j->yaml ? j->yaml : "", "first", (json_int_t)j->first, "checkpoint",
        j->checkpoint ? j->checkpoint : "", "checkpoints", j->checkpoints ? j->checkpoints : "");
    *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    return *text ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory to write a worker's job");
}

static int read_kind(struct dt_json_in in, enum dt_job_kind *out)
{
    const char *kind;
    DT_TRY(dt_json_need_string(in, "kind", &kind));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i]) == 0) {
            *out = (enum dt_job_kind)i;
            return DT_OK;
        }
    return DT_FAIL(DT_E_DATA, "the coordinator asks for a job of kind '%.40s'", kind);
}

static int read_text(struct dt_json_in in, const char *key, char **out)
{
    const char *text;
    DT_TRY(dt_json_need_string(in, key, &text));
    *out = strdup(text);
    return *out ? DT_OK : DT_FAIL(DT_E_MEMORY, "no memory for a worker's job");
}

static int read_number(struct dt_json_in in, const char *key, int64_t min, int32_t *out)
{
    int64_t value;
    DT_TRY(dt_json_need_int(in, key, min, 4096, &value));
    *out = (int32_t)value;
    return DT_OK;
}

static int read_job(struct dt_json_in in, struct dt_job *j)
{
    DT_TRY(read_kind(in, &j->kind));
    DT_TRY(read_number(in, "workers", 1, &j->workers));
    DT_TRY(read_number(in, "rank", 0, &j->rank));
    DT_TRY(read_number(in, "threads", 1, &j->threads));
    DT_TRY(dt_json_need_int(in, "epoch", 0, INT64_MAX, &j->epoch));
    DT_TRY(dt_json_need_real(in, "timeout", &j->timeout));
    DT_TRY(dt_json_need_real(in, "start_timeout", &j->start_timeout));
    DT_TRY(dt_json_need_bool(in, "verbose", &j->verbose));
    DT_TRY(dt_json_need_int(in, "first", 0, INT64_MAX, &j->first));
    DT_TRY(read_text(in, "yaml", &j->yaml));
    DT_TRY(read_text(in, "checkpoint", &j->checkpoint));
    return read_text(in, "checkpoints", &j->checkpoints);
}

int dt_job_parse(const char *text, size_t bytes, struct dt_job *out)
{
    json_t *json;
    *out = (struct dt_job){0};
    DT_TRY(dt_json_parse(text, bytes, "the coordinator's job", DT_E_DATA, &json));
    struct dt_json_in in = {json, "the coordinator's job", DT_E_DATA};
    int rc = read_job(in, out);
    json_decref(json);
    return rc;
}

void dt_job_free(struct dt_job *j)
{
    free(j->yaml);
    free(j->checkpoint);
    free(j->checkpoints);
    *j = (struct dt_job){0};
}
