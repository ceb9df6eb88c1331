#include "base/log.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum dt_log_level max_level = DT_LOG_INFO;
static bool line_drawn; /* a progress line stands on the terminal and must be cleared first */

void dt_log_set_level(enum dt_log_level level)
{
    max_level = level;
}

void dt_log(enum dt_log_level level, const char *fmt, ...)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    if (level > max_level)
        return;
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    /* One write a line, so that lines of several threads or processes do not mix. */
    fprintf(stderr, "%s%s%s\n", line_drawn ? "\r\033[K" : "", prefix[level], text);
    line_drawn = false;
}

void dt_progress_begin(struct dt_progress *p, const char *title, const char *unit, double total)
{
    *p = (struct dt_progress){.title = title, .unit = unit, .total = total};
    p->started = p->last_shown = dt_clock_seconds();
}

static void human(double v, char *out, size_t size)
{
    static const char *const suffix[] = {"", "k", "M", "G", "T"};
    int i = 0;
    for (; v >= 10000 && i < 4; i++)
        v /= 1000;
    snprintf(out, size, "%.*f %s", i ? 1 : 0, v, suffix[i]);
}

void dt_progress_update(struct dt_progress *p, double done, const char *detail)
{
    bool terminal = isatty(STDERR_FILENO);
    double now = dt_clock_seconds();
    bool last = done >= p->total;
    if (now - p->last_shown < (terminal ? 0.1 : 10.0) && !(last && p->drawn))
        return;
    p->last_shown = now;
    p->drawn = 1;
    double spent = now - p->started;
    double left = done > 0 ? spent * (p->total - done) / done : 0;
    char a[32], b[32];
    human(done, a, sizeof a);
    human(p->total, b, sizeof b);
    double percent = p->total > 0 ? 100 * done / p->total : 100;
    fprintf(stderr, "%s%s: %s/ %s%s (%.0f %%), %.0f s left%s%s%s", terminal ? "\r\033[K" : "",
            p->title, a, b, p->unit, percent, left, detail ? " · " : "", detail ? detail : "",
            terminal ? "" : "\n");
    line_drawn = terminal;
}

void dt_progress_end(struct dt_progress *p)
{
    if (line_drawn && p->drawn)
        fprintf(stderr, "\r\033[K");
    line_drawn = false;
}
