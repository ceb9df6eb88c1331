/* What is this file? The name says whether it is text, rows or a corpus; the first rows say which
 * kind of rows. Anything that could be read in two ways is an error that names both. */
#include "data/source.h"

#include "base/error.h"
#include "base/json.h"
#include "data/lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LOOK_ROWS = 100, LOOK_BYTES = 16 << 20 };

static bool named(const char *path, const char *suffix)
{
    char compressed[32];
    snprintf(compressed, sizeof compressed, "%s.gz", suffix);
    return dt_path_ends_with(path, suffix) || dt_path_ends_with(path, compressed);
}

static int kind_of(const char *path, enum dt_source_kind *out)
{
    char beside[DT_PATH + 8];
    *out = DT_SOURCE_TEXT;
    if (named(path, ".jsonl") || named(path, ".ndjson") || named(path, ".json"))
        *out = DT_SOURCE_ROWS;
    if (dt_path_ends_with(path, ".bin") || dt_path_ends_with(path, ".idx")) {
        *out = DT_SOURCE_CORPUS;
        return DT_OK;
    }
    if (dt_file_exists(path))
        return DT_OK;
    snprintf(beside, sizeof beside, "%s.idx", path);
    if (!dt_file_exists(beside))
        return DT_FAIL(DT_E_NOT_FOUND, "%s: no such file, and no %s.idx of a corpus", path,
                       path);
    *out = DT_SOURCE_CORPUS;
    return DT_OK;
}

static const char *format_names(unsigned formats, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int f = 0; f < DT_ROW_FORMATS; f++)
        if (formats >> f & 1 && used < size) {
            int n = snprintf(buffer + used, size - used, "%s%s", used ? ", " : "",
                             dt_row_format_name((enum dt_row_format)f));
            used += n > 0 ? (size_t)n : 0;
        }
    return buffer;
}

struct look {
    unsigned formats;  /* seen so far */
    int64_t first_row; /* that had one */
    int64_t rows;
    struct dt_error_state first_failure; /* of a row that says nothing */
};

static int look_at_row(struct look *l, const char *path, const char *line, size_t bytes,
                       int64_t number)
{
    struct dt_row row;
    char keys[160], names[128];
    int reason, rc = dt_row_parse(line, bytes, &row, &reason);
    unsigned m = rc == DT_OK ? dt_row_matches(row.json) : 0;
    if (rc == DT_OK && m == 0)
        rc = DT_FAIL(DT_E_DATA,
                     "found keys %s; expected those of one format: text | input_ids | prompt, "
                     "completion | instruction, output | conversations | messages",
                     dt_row_keys(row.json, keys, sizeof keys));
    l->rows++;
    if (m == 0) { /* perhaps a bad row; on_bad_row decides later */
        rc = dt_error_context(rc, "%s:%" PRId64, path, number);
        if (l->first_failure.code == DT_OK)
            dt_error_save(rc, &l->first_failure);
    } else if (m & (m - 1)) {
        rc = DT_FAIL(DT_E_DATA,
                     "%s:%" PRId64 ": its keys %s fit several formats (%s); say which with "
                     "data.format",
                     path, number, dt_row_keys(row.json, keys, sizeof keys),
                     format_names(m, names, sizeof names));
        dt_row_free(&row);
        return rc;
    } else if (l->formats && l->formats != m) {
        rc = DT_FAIL(DT_E_DATA,
                     "%s:%" PRId64 ": rows of several formats in one file (%s); line %" PRId64
                     " was another; split the file or say with data.format which to take",
                     path, number, format_names(l->formats | m, names, sizeof names), l->first_row);
        dt_row_free(&row);
        return rc;
    } else if (!l->formats) {
        l->formats = m;
        l->first_row = number;
    }
    dt_row_free(&row);
    return DT_OK;
}

static bool is_empty(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static int detect_rows(const char *path, enum dt_row_format *out)
{
    struct dt_lines *lines;
    struct look l = {0};
    DT_TRY(dt_lines_open(path, &lines));
    int rc;
    size_t seen = 0;
    while (l.rows < LOOK_ROWS && seen < LOOK_BYTES) {
        const char *line;
        size_t bytes;
        int64_t number;
        DT_CHECK(done, rc, dt_lines_next(lines, &line, &bytes, &number));
        if (!line)
            break;
        if (is_empty(line, bytes))
            continue;
        seen += bytes;
        DT_CHECK(done, rc, look_at_row(&l, path, line, bytes, number));
    }
    rc = DT_OK;
    if (l.rows == 0)
        rc = DT_FAIL(DT_E_DATA, "%s: holds no row, expected one JSON object a line", path);
    else if (l.formats == 0)
        rc = dt_error_restore(&l.first_failure);
    for (int f = 0; f < DT_ROW_FORMATS; f++)
        if (l.formats >> f & 1)
            *out = (enum dt_row_format)f;
done:
    dt_lines_close(lines);
    return rc;
}

int dt_source_detect(const char *path, const char *format, struct dt_source *out)
{
    *out = (struct dt_source){.path = path};
    DT_TRY(kind_of(path, &out->kind));
    if (out->kind != DT_SOURCE_ROWS)
        return DT_OK;
    if (format && strcmp(format, "auto") != 0)
        return dt_row_format_parse(format, &out->format);
    return detect_rows(path, &out->format);
}
