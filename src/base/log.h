/* Words for people, on standard error. Results go to standard output and never through here. */
#ifndef DT_BASE_LOG_H
#define DT_BASE_LOG_H

enum dt_log_level { DT_LOG_ERROR, DT_LOG_WARN, DT_LOG_INFO, DT_LOG_DEBUG };

void dt_log_set_level(enum dt_log_level level); /* default DT_LOG_INFO */
void dt_log(enum dt_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define dt_info(...) dt_log(DT_LOG_INFO, __VA_ARGS__)
#define dt_warn(...) dt_log(DT_LOG_WARN, __VA_ARGS__)
#define dt_debug(...) dt_log(DT_LOG_DEBUG, __VA_ARGS__)

/* A progress line: redrawn in place on a terminal, otherwise one plain line every ten seconds or
 * when done == total. `unit` names what is counted ("bytes", "steps"); `detail` may be NULL. */
struct dt_progress {
    const char *title, *unit;
    double total;
    double started, last_shown; /* seconds, monotonic */
    int drawn;
};
void dt_progress_begin(struct dt_progress *p, const char *title, const char *unit, double total);
void dt_progress_update(struct dt_progress *p, double done, const char *detail);
void dt_progress_end(struct dt_progress *p); /* clears the drawn line */

#endif
