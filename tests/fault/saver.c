/* What a run does around a save, and nothing else: lock, clean up, find the newest checkpoint,
 * save, retain. The fault tests run it over the shim.
 *
 *     fault_saver OUTPUT STEP GENERATION KEEP
 *
 * Every byte of the state follows from (STEP, GENERATION). When the save fails, a second one, of
 * the next step, is tried at once, as a training loop would. Exit codes: 0 saved; 10 the first
 * failed, the second did not; 11 both failed; 12 the start failed. Messages of failures go to
 * standard error. */
#include "base/error.h"
#include "state/checkpoint.h"
#include "tests_fault_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fill(struct dt_checkpoint_writer *w, int64_t step, int generation)
{
    struct dt_tensor_spec specs[FAULT_TENSORS];
    struct dt_tensor_plan plan;
    static float data[FAULT_ELEMENTS];
    static const char *const stem[3] = {"model", "exp_avg", "exp_avg_sq"};
    char json[128];
    fault_specs(specs);
    for (int which = 0; which < 3; which++) {
        int file, rc;
        DT_TRY(dt_tensors_plan(specs, FAULT_TENSORS, stem[which], 0, &plan));
        DT_CHECK(done, rc, dt_checkpoint_add_tensors(w, which ? "optimizer" : "", &plan, &file));
        fault_fill(data, step, generation, which);
        /* Two writers' worth: the second half first. */
        size_t start = plan.offset[0], cut = 640 * sizeof(float);
        DT_CHECK(done, rc,
                 dt_checkpoint_write(w, file, start + cut, data + 640, sizeof data - cut));
        DT_CHECK(done, rc, dt_checkpoint_write(w, file, start, data, cut));
    done:
        dt_tensor_plan_free(&plan);
        DT_TRY(rc);
    }
    DT_TRY(dt_checkpoint_put(w, "config.json", "{}\n", 3));
    int n = snprintf(json, sizeof json, "{\"step\": %lld, \"generation\": %d}\n", (long long)step,
                     generation);
    return dt_checkpoint_put(w, "trainer.json", json, (size_t)n);
}

static int save(const char *dir, int64_t step, int generation, int64_t keep)
{
    struct dt_checkpoint_writer *w;
    DT_TRY(dt_checkpoint_begin(dir, step, &w));
    int rc = fill(w, step, generation);
    if (rc < 0) {
        dt_checkpoint_abort(w);
        return rc;
    }
    DT_TRY(dt_checkpoint_commit(w, NULL));
    return dt_checkpoint_retain(dir, keep, 0, false, NULL);
}

static int start(const char *output, char dir[DT_PATH], struct dt_run_lock *lock)
{
    char newest[DT_PATH];
    int64_t step;
    DT_TRY(dt_run_lock(output, lock));
    DT_TRY(dt_path_join(dir, output, "checkpoints"));
    DT_TRY(dt_checkpoint_clean(dir));
    return dt_checkpoint_newest(dir, newest, &step);
}

int main(int argc, char **argv)
{
    char dir[DT_PATH];
    struct dt_run_lock lock;
    if (argc != 5)
        return 2;
    int64_t step = atol(argv[2]), keep = atol(argv[4]);
    int generation = atoi(argv[3]);
    if (start(argv[1], dir, &lock) < 0) {
        fprintf(stderr, "%s\n", dt_error_message());
        return 12;
    }
    if (save(dir, step, generation, keep) == DT_OK)
        return 0;
    fprintf(stderr, "%s\n", dt_error_message());
    if (save(dir, step + 1, generation, keep) == DT_OK)
        return 10;
    fprintf(stderr, "%s\n", dt_error_message());
    return 11;
}
