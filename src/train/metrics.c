/* metrics.jsonl: one object a step, one an evaluation, one an event (docs/formats.md). A disk that
 * is full costs lines, never the run. */
#include "train/book.h"
#include "train/run.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int book__metrics_open(struct dt_book *r)
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

int64_t dt_book_resident(const struct dt_book *r)
{
    char text[128] = "";
    long long pages = 0;
    if (r->statm >= 0 && pread(r->statm, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%*s %lld", &pages);
    return pages * sysconf(_SC_PAGESIZE);
}

/* After each line: what is written must be there when the process is killed. */
static void end_line(struct dt_book *r)
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

static void show_step(struct dt_book *r, const struct dt_decision *d, double seconds, double speed,
                      double share, int64_t resident)
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
            1e3 * seconds, speed, peak, (double)resident / 0x1p30);
}

void book__metrics_step(struct dt_book *r, const struct dt_decision *d, const struct dt_vote *v,
                        double seconds, int64_t resident)
{
    const struct dt_space_decision *s = &d->space[0];
    double speed = (double)v->tokens / seconds;
    double share = r->peak_gflops > 0 ? v->flops / seconds / 1e9 / r->peak_gflops : 0;
    FILE *f = r->metrics;
    fprintf(f, "{\"step\":%lld,\"epoch\":%lld", (long long)d->step, (long long)v->data_epoch);
    number(f, "loss", s->loss);
    fprintf(f, ",\"tokens\":%lld,\"loss_tokens\":%lld,\"sequences\":%lld", (long long)v->tokens,
            (long long)s->denominator, (long long)v->sequences);
    number(f, "grad_norm", s->norm);
    number(f, "lr", s->adamw.lr);
    number(f, "tokens_per_second", speed);
    number(f, "seconds", seconds);
    if (share > 0)
        number(f, "peak_fraction", share);
    fprintf(f, ",\"bytes_resident\":%lld%s}", (long long)resident,
            s->action == DT_SKIP ? ",\"skipped\":true" : "");
    end_line(r);
    int64_t every = r->config->log.every;
    if (s->action == DT_SKIP || d->step == r->first + 1 || d->step == r->steps ||
        d->step % (every > 0 ? every : 1) == 0)
        show_step(r, d, seconds, speed, share, resident);
}

void book__metrics_eval(struct dt_book *r, int64_t step, const struct dt_evaluation *e,
                        double seconds)
{
    double loss = e->finite ? dt_loss_value(&e->loss) : NAN;
    double mean = loss / (double)(e->tokens > 0 ? e->tokens : 1);
    double bits = e->bytes > 0 ? loss / log(2) / (double)e->bytes : 0;
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

void dt_book_event(struct dt_book *r, const char *event, int64_t step, const char *detail)
{
    if (!r->metrics)
        return;
    json_t *o =
        json_pack("{s:s, s:I, s:s*}", "event", event, "step", (json_int_t)step, "detail", detail);
    if (!o)
        return;
    json_dumpf(o, r->metrics, JSON_COMPACT);
    json_decref(o);
    end_line(r);
}
