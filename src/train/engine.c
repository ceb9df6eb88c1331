/* What computes, on one worker: state with its weights, executor, and the thread that reads data.
 */
#include "train/run.h"

#include "base/error.h"

#include <stdio.h>

static int load_checkpoint(struct dt_engine *e, const char *path)
{
    struct dt_checkpoint c;
    DT_TRY(dt_checkpoint_open(path, &c));
    int rc = dt_state_load_checkpoint(&e->state, &c);
    dt_checkpoint_close(&c);
    return rc;
}

static int load_model(struct dt_engine *e, const struct dt_run *r)
{
    struct dt_tensor_set set;
    if (r->config->init == DT_INIT_RANDOM) {
        dt_state_init(&e->state, (uint64_t)r->config->seed);
        return DT_OK;
    }
    int rc = dt_tensors_open(r->model_dir, &set);
    if (rc < 0)
        return dt_error_context(rc, "to train from nothing give `init: random`");
    rc = dt_state_load_model(&e->state, &set);
    dt_tensors_close(&set);
    return rc;
}

int dt_engine_open(struct dt_engine *e, const struct dt_run *r)
{
    struct dt_state_options so =
        dt_state_options_of(r->config, r->trainable, r->options->rank, r->options->comm);
    struct dt_executor_options eo = dt_executor_options_of(r->config, r->bound, r->options->rank);
    *e = (struct dt_engine){0};
    DT_TRY(dt_state_open(r->arch, &so, &e->state));
    DT_TRY(r->checkpoint[0] ? load_checkpoint(e, r->checkpoint) : load_model(e, r));
    DT_TRY(dt_executor_open(&e->state, &eo, &e->executor));
    return dt_loader_new(r->train, r->sampler, &e->executor.plan, so.rank, &r->bound, r->first,
                         r->steps, &e->loader);
}

void dt_engine_close(struct dt_engine *e)
{
    dt_loader_free(e->loader);
    dt_executor_close(&e->executor);
    dt_state_close(&e->state);
    *e = (struct dt_engine){0};
}

double dt_engine_peak(const struct dt_run *r, char *words, size_t size)
{
    bool strict = r->config->train.dtype == DT_RUN_FLOAT32;
    snprintf(words, size, "kernels: %s (%s), %d threads, %s", dt_k->name, dt_k->gemm_name,
             dt_ops_threads(), strict ? "float32" : "bfloat16");
    return dt_ops_peak_gflops(strict ? DT_F32 : DT_BF16, 0.1);
}
