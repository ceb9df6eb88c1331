#include "cluster/launch.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first of the names (ends with NULL) that is set, as a number; -1: none. */
static int number(const char *const *names, int64_t *out, const char **found)
{
    *out = -1;
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        if (!text || !*text)
            continue;
        *out = strtoll(text, &end, 10);
        *found = *names;
        if (*end || *out < 0 || *out > 1 << 20)
            return DT_FAIL(DT_E_CONFIG, "%s=%.40s in the environment is not a number of tasks",
                           *names, text);
        return DT_OK;
    }
    return DT_OK;
}

static int read_pair(const char *const *rank_names, const char *const *size_names,
                     struct dt_launch *l)
{
    const char *rank_name = "", *size_name = "";
    int64_t rank, size;
    DT_TRY(number(rank_names, &rank, &rank_name));
    DT_TRY(number(size_names, &size, &size_name));
    if (rank < 0 || size < 0)
        return DT_OK;
    if (rank >= size)
        return DT_FAIL(DT_E_CONFIG, "%s=%lld, but %s=%lld in the environment", rank_name,
                       (long long)rank, size_name, (long long)size);
    l->rank = (int32_t)rank;
    l->size = (int32_t)size;
    return 1;
}

static void set_job(struct dt_launch *l, const char *prefix, const char *id, const char *again)
{
    if (id)
        snprintf(l->job, sizeof l->job, "%s-%s%s%s", prefix, id, again ? "-" : "",
                 again ? again : "");
}

static int detect_mpi(struct dt_launch *l)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    int rc = read_pair(ranks, sizes, l);
    if (rc != 1)
        return rc;
    l->kind = DT_LAUNCH_MPI;
    l->workers = 1;
    const char *id = getenv("PMIX_NAMESPACE");
    id = id ? id : getenv("OMPI_MCA_ess_base_jobid");
    set_job(l, "mpi", id ? id : getenv("PMI_ID_JOB"), NULL);
    return rc;
}

static int detect_slurm(struct dt_launch *l)
{
    static const char *const ranks[] = {"SLURM_PROCID", NULL};
    static const char *const sizes[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL};
    if (!getenv("SLURM_STEP_ID") || !getenv("SLURM_JOB_ID"))
        return DT_OK;
    int rc = read_pair(ranks, sizes, l);
    if (rc != 1)
        return rc;
    l->kind = DT_LAUNCH_SLURM;
    char step[64];
    const char *again = getenv("SLURM_RESTART_COUNT");
    snprintf(step, sizeof step, "%.40s.%.10s", getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"));
    set_job(l, "slurm", step, again);
    return rc;
}

static int detect_torchrun(struct dt_launch *l)
{
    static const char *const nodes[] = {"NODE_RANK", "GROUP_RANK", NULL};
    static const char *const node_counts[] = {"NNODES", "GROUP_WORLD_SIZE", NULL};
    static const char *const ranks[] = {"RANK", NULL};
    static const char *const sizes[] = {"WORLD_SIZE", NULL};
    static const char *const local_sizes[] = {"LOCAL_WORLD_SIZE", NULL};
    static const char *const ports[] = {"MASTER_PORT", NULL};
    const char *host = getenv("MASTER_ADDR"), *name = "";
    int64_t local, port;
    if (!host)
        return DT_OK;
    DT_TRY(number(local_sizes, &local, &name));
    bool many = local > 1; /* several processes a machine: each is one worker */
    int rc = many ? read_pair(ranks, sizes, l) : read_pair(nodes, node_counts, l);
    if (rc == 0)
        rc = read_pair(ranks, sizes, l);
    if (rc != 1)
        return rc;
    DT_TRY(number(ports, &port, &name));
    l->kind = DT_LAUNCH_TORCHRUN;
    l->workers = many ? 1 : 0;
    snprintf(l->host, sizeof l->host, "%s", host);
    l->port = port > 0 ? (int32_t)port : 0;
    set_job(l, "torchrun", getenv("TORCHELASTIC_RUN_ID"), getenv("TORCHELASTIC_RESTART_COUNT"));
    return rc;
}

int dt_launch_detect(struct dt_launch *out)
{
    int (*const detect[])(struct dt_launch *) = {detect_mpi, detect_slurm, detect_torchrun};
    for (size_t i = 0; i < sizeof detect / sizeof *detect; i++) {
        *out = (struct dt_launch){.size = 1};
        int rc = detect[i](out);
        if (rc < 0)
            return rc;
        /* mpirun -np 1 still says how many workers there are. */
        if (rc == 1 && (out->size > 1 || out->kind == DT_LAUNCH_MPI))
            return DT_OK;
    }
    *out = (struct dt_launch){.size = 1};
    return DT_OK;
}

const char *dt_launcher_name(enum dt_launcher kind)
{
    static const char *const names[] = {[DT_LAUNCH_NONE] = "none",
                                        [DT_LAUNCH_TORCHRUN] = "torchrun's variables",
                                        [DT_LAUNCH_SLURM] = "Slurm",
                                        [DT_LAUNCH_MPI] = "mpirun"};
    return names[kind];
}
