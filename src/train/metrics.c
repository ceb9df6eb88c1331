/* metrics.jsonl: one object a step, one an evaluation, one an event (docs/formats.md). A disk that
 * is full costs lines, never the run. */
#include "train/run.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int dt_run_metrics_open(struct dt_run *r)
{
    char path[DT_PATH];
    DT_TRY(dt_path_join(path, r->config->output, "metrics.jsonl"));
    r->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    r->metrics = fopen(path, "a+e");
    if (!r->metrics)
        return dt_file_fail("open", path);
    /* A line that a crash cut short must not swallow the next one. */
    if (fseek(r->metrics, -1, SEEK_END) == 0 && getc(r->metrics) != '\n')
        putc('\n', r->metrics);
    fseek(r->metrics, 0, SEEK_END);
    r->metrics_size = ftell(r->metrics);
    return DT_OK;
}

int64_t dt_run_resident_bytes(const struct dt_run *r)
{
    char text[128] = "";
    long long pages = 0;
    if (r->statm >= 0 && pread(r->statm, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%*s %lld", &pages);
    return pages * sysconf(_SC_PAGESIZE);
}

/* After each line: what is written must be there when the process is killed. */
static void end_line(struct dt_run *r)
{
    static bool told;
    fputc('\n', r->metrics);
    if (fflush(r->metrics) == 0) {
        r->metrics_size = ftell(r->metrics);
        return;
    }
    int why = errno;
    clearerr(r->metrics);
    /* Half a line must not stay in front of the next one that fits. */
    bool whole = ftruncate(fileno(r->metrics), r->metrics_size) == 0;
    if (!told)
        dt_warn("metrics.jsonl cannot be written (%s)%s; training goes on without", strerror(why),
                whole ? "" : " and ends in half a line");
    told = true;
}

/* JSON has no NaN. */
static void number(FILE *f, const char *name, double value)
{
    if (isfinite(value))
        fprintf(f, ",\"%s\":%.9g", name, value);
    else
        fprintf(f, ",\"%s\":null", name);
}

static double flops_of(const struct dt_run *r, const struct dt_global_batch *b)
{
    double flops = 0;
    for (int64_t i = 0; i < b->sequences; i++)
        flops += 3 * dt_arch_forward_flops(r->arch, b->length[i]);
    return flops;
}

static void show_step(struct dt_run *r, const struct dt_decision *d, double seconds, double speed,
                      double share)
{
    const struct dt_space_decision *s = &d->space[0];
    char peak[64] = "";
    if (share > 0)
        snprintf(peak, sizeof peak, " | %4.1f %% of peak", 100 * share);
    if (s->action == DT_SKIP)
        dt_warn("step %lld skipped: %s", (long long)d->step,
                s->denominator == 0 ? "no token trains" : "the loss or gradient is not finite");
    dt_info("step %5lld/%lld | loss %.4f | norm %.3f | lr %.2e | %.0f ms | %.0f tok/s%s | %.2f GiB",
            (long long)d->step, (long long)r->steps, s->loss, s->norm, (double)s->adamw.lr,
            1e3 * seconds, speed, peak, (double)dt_run_resident_bytes(r) / 0x1p30);
}

void dt_run_metric_step(struct dt_run *r, const struct dt_decision *d,
                        const struct dt_global_batch *b, double seconds)
{
    const struct dt_space_decision *s = &d->space[0];
    double speed = (double)b->tokens / seconds;
    double share = r->peak_gflops > 0 ? flops_of(r, b) / seconds / 1e9 / r->peak_gflops : 0;
    FILE *f = r->metrics;
    fprintf(f, "{\"step\":%lld,\"epoch\":%lld", (long long)d->step, (long long)b->epoch);
    number(f, "loss", s->loss);
    fprintf(f, ",\"tokens\":%lld,\"loss_tokens\":%lld,\"sequences\":%lld", (long long)b->tokens,
            (long long)b->loss_tokens, (long long)b->sequences);
    number(f, "grad_norm", s->norm);
    number(f, "lr", s->adamw.lr);
    number(f, "tokens_per_second", speed);
    number(f, "seconds", seconds);
    if (share > 0)
        number(f, "peak_fraction", share);
    fprintf(f, ",\"bytes_resident\":%lld%s}", (long long)dt_run_resident_bytes(r),
            s->action == DT_SKIP ? ",\"skipped\":true" : "");
    end_line(r);
    int64_t every = r->config->log.every;
    if (s->action == DT_SKIP || d->step == r->first + 1 || d->step == r->steps ||
        d->step % (every > 0 ? every : 1) == 0)
        show_step(r, d, seconds, speed, share);
}

void dt_run_metric_eval(struct dt_run *r, int64_t step, const struct dt_evaluation *e,
                        double seconds)
{
    double mean = e->loss / (double)(e->tokens > 0 ? e->tokens : 1);
    double bits = e->bytes > 0 ? e->loss / log(2) / (double)e->bytes : 0;
    FILE *f = r->metrics;
    fprintf(f, "{\"step\":%lld", (long long)step);
    number(f, "eval_loss", mean);
    fprintf(f, ",\"eval_tokens\":%lld,\"eval_sequences\":%lld", (long long)e->tokens,
            (long long)e->sequences);
    if (bits > 0)
        number(f, "eval_bits_per_byte", bits);
    number(f, "eval_seconds", seconds);
    fputc('}', f);
    end_line(r);
    char shown[64] = "";
    if (bits > 0)
        snprintf(shown, sizeof shown, " | %.3f bits per byte", bits);
    dt_info("eval  %5lld/%lld | loss %.4f%s | %lld tokens in %.1f s", (long long)step,
            (long long)r->steps, mean, shown, (long long)e->tokens, seconds);
}

void dt_run_metric_event(struct dt_run *r, const char *event, int64_t step, const char *detail)
{
    json_t *o =
        json_pack("{s:s, s:I, s:s*}", "event", event, "step", (json_int_t)step, "detail", detail);
    if (!o)
        return;
    json_dumpf(o, r->metrics, JSON_COMPACT);
    json_decref(o);
    end_line(r);
}
