/* The loss curve of a run: read from metrics.jsonl, drawn as SVG. */
#ifndef DT_CLI_CURVE_H
#define DT_CLI_CURVE_H

#include <stddef.h>

struct dt_curve {
    double *x, *y; /* ascending x */
    size_t count, room;
};

struct dt_curves {
    struct dt_curve train, eval; /* loss in nats a token over the step */
};

/* A run that was resumed tells some steps twice: the later word counts. A last line that was cut by
 * a kill is passed over. DT_E_DATA with file:line for anything else that is no metrics.jsonl. */
int dt_curves_load(const char *path, struct dt_curves *out);
void dt_curves_free(struct dt_curves *c);

/* Writes the picture. DT_E_DATA when there is nothing to draw. */
int dt_curves_draw(const struct dt_curves *c, const char *title, const char *path);

#endif
