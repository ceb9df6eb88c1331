/* What a file is, and the way from files to one corpus. */
#ifndef DT_DATA_SOURCE_H
#define DT_DATA_SOURCE_H

#include "data/row.h"

enum dt_source_kind { DT_SOURCE_TEXT, DT_SOURCE_ROWS, DT_SOURCE_CORPUS };

struct dt_source {
    const char *path;
    enum dt_source_kind kind;
    enum dt_row_format format; /* of rows; DT_ROW_TEXT for text */
};
/* By the file's name and, for rows, by its first rows (`format` "auto") or as `format` says. */
int dt_source_detect(const char *path, const char *format, struct dt_source *out);

/* What tokenizing needs beside the files; the same for all of them. */
struct dt_build {
    const struct dt_data_options *options;
    struct dt_chat *chat; /* NULL unless some source has turns */
    size_t item;          /* bytes of a token */
    int64_t id_limit;
};
int dt_build_open(const struct dt_data_options *o, const struct dt_source *sources, int64_t count,
                  struct dt_build *out);
void dt_build_close(struct dt_build *b);
/* Tokenizes the sources, in order, into one corpus. */
int dt_build_run(const struct dt_build *b, const struct dt_source *sources, int64_t count,
                 const char *prefix);

/* One source, in order, into a writer; counts go into `totals` (rows.c). */
int dt_rows_build(const struct dt_build *b, const struct dt_source *source,
                  struct dt_corpus_writer *w, struct dt_mask_header *totals);

#endif
