/* The public functions of libductile (include/ductile/ductile.h): a thin front over the room's own,
 * and the only symbols that leave the shared library. */
#include "ductile/ductile.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "train/evaluate.h"
#include "train/run.h"

#include <math.h>
#include <signal.h>

const char *ductile_version(void)
{
    return DT_VERSION;
}

const char *ductile_error_message(void)
{
    return dt_error_message();
}

const char *ductile_error_name(int code)
{
    return dt_error_name(code);
}

int ductile_error_exit_code(int code)
{
    return dt_error_exit_code(code);
}

void ductile_set_quiet(int quiet)
{
    dt_log_set_level(quiet ? DT_LOG_WARN : DT_LOG_INFO);
}

int ductile_train(const char *run_yaml, const char *const *overrides, int count)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    enum { SIGNALS = sizeof numbers / sizeof *numbers };
    struct sigaction before[SIGNALS];
    struct dt_train_options options = {0};
    struct dt_run_config config;
    dt_error_clear();
    DT_TRY(dt_run_config_load(run_yaml, overrides, count, &config));
    for (int i = 0; i < SIGNALS; i++)
        sigaction(numbers[i], NULL, &before[i]);
    int rc = dt_train_run(&config, &options);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(numbers[i], &before[i], NULL);
    dt_run_config_free(&config);
    return rc;
}

static int evaluate(const struct dt_file_options *o, struct ductile_evaluation *out)
{
    struct dt_file_evaluation e = {0};
    struct dt_evaluation r = {0};
    int rc = dt_file_evaluation_open(o, &e);
    if (rc >= 0)
        rc = dt_evaluate(&e.executor, e.data, 0, NULL, true, &r);
    dt_file_evaluation_close(&e);
    if (rc < 0)
        return rc;
    double loss = r.finite ? dt_loss_value(&r.loss) : NAN;
    out->loss = loss / (double)r.tokens;
    out->tokens = r.tokens;
    out->sequences = r.sequences;
    out->bits_per_byte = r.bytes > 0 ? loss / log(2) / (double)r.bytes : 0;
    return DT_OK;
}

int ductile_evaluate(const char *model, const char *data,
                     const struct ductile_evaluate_options *options, struct ductile_evaluation *out)
{
    struct ductile_evaluate_options o = options ? *options : (struct ductile_evaluate_options){0};
    struct dt_file_options file = {
        .model = model,
        .data = data,
        .format = "auto",
        .chat_template = "auto",
        .end_of_text = "auto",
        .max_length = o.max_length,
        .compute = o.float32 ? DT_F32 : DT_BF16,
    };
    *out = (struct ductile_evaluation){0};
    dt_error_clear();
    if (o.threads < 0 || o.max_length < 0)
        return DT_FAIL(DT_E_USAGE,
                       "ductile_evaluate: threads (%d) and max_length (%lld) are at least 0",
                       o.threads, (long long)o.max_length);
    DT_TRY(dt_kernels_select(o.kernels ? o.kernels : "auto"));
    dt_ops_set_threads(o.threads > 0 ? o.threads : dt_machine_threads());
    return evaluate(&file, out);
}
