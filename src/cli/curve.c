#include "cli/curve.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_point(struct dt_curve *c, double x, double y)
{
    while (c->count && c->x[c->count - 1] >= x)
        c->count--;
    if (c->count == c->room) {
        size_t room = c->room ? 2 * c->room : 256;
        double *xs = realloc(c->x, room * sizeof *xs);
        if (xs)
            c->x = xs;
        double *ys = realloc(c->y, room * sizeof *ys);
        if (ys)
            c->y = ys;
        if (!xs || !ys)
            return DT_FAIL(DT_E_MEMORY, "cannot hold a curve of %zu points", room);
        c->room = room;
    }
    c->x[c->count] = x;
    c->y[c->count++] = y;
    return DT_OK;
}

static int add_line(struct dt_curves *c, const json_t *line)
{
    const json_t *step = json_object_get(line, "step"), *loss = json_object_get(line, "loss"),
                 *eval = json_object_get(line, "eval_loss");
    if (!json_is_number(step))
        return DT_OK;
    if (json_is_number(loss) && isfinite(json_number_value(loss)))
        DT_TRY(add_point(&c->train, json_number_value(step), json_number_value(loss)));
    if (json_is_number(eval) && isfinite(json_number_value(eval)))
        DT_TRY(add_point(&c->eval, json_number_value(step), json_number_value(eval)));
    return DT_OK;
}

static int read_lines(const char *path, char *text, size_t size, struct dt_curves *out)
{
    size_t number = 1;
    for (char *p = text, *end; p < text + size; p = end + 1, number++) {
        end = memchr(p, '\n', (size_t)(text + size - p));
        if (!end)
            break; /* no newline: the run was killed while it wrote this */
        char where[DT_PATH + 32];
        json_t *line;
        snprintf(where, sizeof where, "%s:%zu", path, number);
        DT_TRY(dt_json_parse(p, (size_t)(end - p), where, DT_E_DATA, &line));
        int rc = add_line(out, line);
        json_decref(line);
        DT_TRY(rc);
    }
    return DT_OK;
}

int dt_curves_load(const char *path, struct dt_curves *out)
{
    char *text;
    size_t size;
    *out = (struct dt_curves){0};
    DT_TRY(dt_file_read(path, (size_t)4 << 30, &text, &size));
    int rc = read_lines(path, text, size, out);
    free(text);
    if (rc < 0)
        dt_curves_free(out);
    return rc;
}

void dt_curves_free(struct dt_curves *c)
{
    free(c->train.x);
    free(c->train.y);
    free(c->eval.x);
    free(c->eval.y);
    *c = (struct dt_curves){0};
}

/* ---- Drawing ---- */

#define WIDTH 860.0
#define HEIGHT 480.0
#define LEFT 64.0
#define RIGHT 24.0
#define TOP 52.0
#define BOTTOM 52.0
#define POINTS 600 /* more than a line of this width can show */
#define TRAIN_COLOR "#2f6fb0"
#define EVAL_COLOR "#d1602b"

struct axes {
    FILE *f;
    double x0, x1, y0, y1; /* values at the ends */
};

static double at_x(const struct axes *a, double x)
{
    return LEFT + (x - a->x0) / (a->x1 - a->x0) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct axes *a, double y)
{
    return HEIGHT - BOTTOM - (y - a->y0) / (a->y1 - a->y0) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about `n` steps cover the span. */
static double tick_step(double span, int n)
{
    double raw = span / n, power = pow(10, floor(log10(raw))), rest = raw / power;
    return power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
}

static void widen(const struct dt_curve *c, struct axes *a)
{
    for (size_t i = 0; i < c->count; i++) {
        a->x0 = fmin(a->x0, c->x[i]);
        a->x1 = fmax(a->x1, c->x[i]);
        a->y0 = fmin(a->y0, c->y[i]);
        a->y1 = fmax(a->y1, c->y[i]);
    }
}

static void choose_axes(const struct dt_curves *c, struct axes *a)
{
    a->x0 = 0;
    a->x1 = a->y1 = -INFINITY;
    a->y0 = INFINITY;
    widen(&c->train, a);
    widen(&c->eval, a);
    if (a->x1 <= a->x0)
        a->x1 = a->x0 + 1;
    if (a->y1 - a->y0 < 1e-6)
        a->y1 = a->y0 + 1;
    double step = tick_step(a->y1 - a->y0, 6);
    a->y0 = floor(a->y0 / step) * step;
    a->y1 = ceil(a->y1 / step) * step;
}

static void draw_frame(const struct axes *a)
{
    double step = tick_step(a->y1 - a->y0, 6);
    int digits = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    for (double y = a->y0; y <= a->y1 + step / 2; y += step)
        fprintf(a->f,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>\n"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n",
                LEFT, at_y(a, y), WIDTH - RIGHT, at_y(a, y), LEFT - 8, at_y(a, y) + 4, digits, y);
    step = fmax(1, tick_step(a->x1 - a->x0, 8));
    for (double x = a->x0; x <= a->x1 + 1e-9; x += step)
        fprintf(a->f,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#444\"/>\n"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                at_x(a, x), HEIGHT - BOTTOM, at_x(a, x), HEIGHT - BOTTOM + 5, at_x(a, x),
                HEIGHT - BOTTOM + 19, x);
    fprintf(
        a->f,
        "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#444\"/>\n"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n"
        "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">loss (nats per "
        "token)</text>\n",
        LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12,
        (TOP + HEIGHT - BOTTOM) / 2);
}

/* Long runs are drawn as means of equal groups of points. */
static void draw_curve(const struct axes *a, const struct dt_curve *c, const char *color, bool dots)
{
    size_t group = (c->count + POINTS - 1) / POINTS;
    fprintf(a->f,
            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-linejoin=\"round\" "
            "points=\"",
            color);
    for (size_t i = 0; i < c->count; i += group) {
        size_t end = i + group < c->count ? i + group : c->count;
        double x = 0, y = 0;
        for (size_t k = i; k < end; k++) {
            x += c->x[k] / (double)(end - i);
            y += c->y[k] / (double)(end - i);
        }
        fprintf(a->f, "%.1f,%.1f ", at_x(a, x), at_y(a, y));
    }
    fprintf(a->f, "\"/>\n");
    for (size_t i = 0; dots && i < c->count; i++)
        fprintf(a->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", at_x(a, c->x[i]),
                at_y(a, c->y[i]), color);
}

static void draw_legend(const struct axes *a, const struct dt_curves *c)
{
    double x = WIDTH - RIGHT - 272, y = TOP + 12;
    fprintf(a->f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"272\" height=\"%d\" fill=\"#fff\" "
            "fill-opacity=\"0.85\" stroke=\"#ccc\"/>\n",
            x, y - 4, c->train.count && c->eval.count ? 48 : 28);
    const struct dt_curve *curves[2] = {&c->train, &c->eval};
    for (int i = 0; i < 2; i++) {
        const struct dt_curve *curve = curves[i];
        if (!curve->count)
            continue;
        fprintf(a->f,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"2\"/>\n<text x=\"%.1f\" y=\"%.1f\">%s: %.4f at step %.0f</text>\n",
                x + 10, y + 10, x + 34, y + 10, i ? EVAL_COLOR : TRAIN_COLOR, x + 42, y + 14,
                i ? "evaluation" : "training", curve->y[curve->count - 1],
                curve->x[curve->count - 1]);
        y += 20;
    }
}

static void draw_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '&')
            fprintf(f, "&#%d;", *text);
        else
            fputc(*text, f);
    }
}

int dt_curves_draw(const struct dt_curves *c, const char *title, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    if (!c->train.count && !c->eval.count)
        return DT_FAIL(DT_E_DATA, "there is no loss to draw yet");
    struct axes a = {.f = open_memstream(&text, &size)};
    if (!a.f)
        return DT_FAIL(DT_E_MEMORY, "cannot draw %s: out of memory", path);
    choose_axes(c, &a);
    fprintf(a.f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"%.1f\" y=\"30\" font-size=\"16\">",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    draw_text(a.f, title);
    fprintf(a.f, "</text>\n");
    draw_frame(&a);
    draw_curve(&a, &c->train, TRAIN_COLOR, c->train.count == 1);
    draw_curve(&a, &c->eval, EVAL_COLOR, c->eval.count <= 60);
    draw_legend(&a, c);
    fprintf(a.f, "</svg>\n");
    bool whole = ferror(a.f) == 0;
    int rc = fclose(a.f) == 0 && whole
                 ? dt_file_write(path, text, size)
                 : DT_FAIL(DT_E_MEMORY, "cannot draw %s: out of memory", path);
    free(text);
    return rc;
}
