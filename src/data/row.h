/* One row of a JSONL file: its format, its parts, and its ids with their loss masks. */
#ifndef DT_DATA_ROW_H
#define DT_DATA_ROW_H

#include "data/chat.h"
#include "data/corpus.h"
#include "data/tokenizer.h"

#include <jansson.h>

enum dt_row_format {
    DT_ROW_TEXT,     /* text */
    DT_ROW_IDS,      /* input_ids, labels? */
    DT_ROW_PROMPT,   /* prompt, completion */
    DT_ROW_ALPACA,   /* instruction, input?, output, system?, history? */
    DT_ROW_SHAREGPT, /* conversations: from, value */
    DT_ROW_MESSAGES, /* messages: role, content */
    DT_ROW_FORMATS
};
const char *dt_row_format_name(enum dt_row_format f);
/* DT_E_CONFIG with the names when unknown. */
int dt_row_format_parse(const char *name, enum dt_row_format *out);

struct dt_row {
    json_t *json; /* owns the strings below */
    enum dt_row_format format;
    struct dt_slice text; /* or the prompt */
    struct dt_slice completion;
    const json_t *ids, *labels; /* labels NULL: all train */
    struct dt_turn *turns;
    int64_t turn_count;
    char *owned; /* text that had to be joined */
};
/* All failures of a row are DT_E_DATA without the file's name; *reason is one of DT_BAD_*. */
int dt_row_parse(const char *line, size_t bytes, struct dt_row *row, int *reason);
/* Which formats' keys the object has, as bits 1 << format. */
unsigned dt_row_matches(const json_t *object);
/* Looks at the keys that `format` wants. */
int dt_row_read(struct dt_row *row, enum dt_row_format format, int *reason);
void dt_row_free(struct dt_row *row);
/* "a, b, c" of an object, for messages; shortened. */
const char *dt_row_keys(const json_t *object, char *buffer, size_t size);
const char *dt_row_expected(enum dt_row_format f); /* "prompt, completion" */

/* Ids and, one byte each, whether they train. Zero-initialise. */
struct dt_tokens {
    struct dt_ids ids;
    uint8_t *trains;
    int64_t marked, room;
};
int dt_tokens_mark(struct dt_tokens *t, bool trains); /* every id since the last mark */
int dt_tokens_mark_to(struct dt_tokens *t, int64_t end, bool trains);
void dt_tokens_clear(struct dt_tokens *t);
void dt_tokens_free(struct dt_tokens *t);

struct dt_row_encoder {
    struct dt_encoder *encoder; /* NULL: only rows of ids */
    const struct dt_chat *chat; /* NULL: no turns */
    int32_t end_of_text;        /* -1: none */
    int64_t id_limit;           /* ids are below */
};
/* Fills `out` (emptied first) and bytes and flags of `record`. DT_E_DATA with *reason for a bad
 * row, among them those with nothing to train on. */
int dt_row_encode(const struct dt_row_encoder *e, const struct dt_row *row, struct dt_tokens *out,
                  struct dt_document *record, int *reason);

#endif
