/* Rows of JSONL through everything that looks at them: keys, formats, turns, ids and labels, and
 * the built-in chat templates; an input that begins like a Jinja tag is run as a chat template
 * instead. covers: src/data/row_format.c src/data/row_encode.c src/data/jinja.c
 * src/data/jinja_expr.c covers: src/data/jinja_lex.c src/data/jinja_value.c
 * src/data/chat_recognise.c */
#include "base/error.h"
#include "data/chat_internal.h"
#include "data/row.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_turns(const struct dt_row *row)
{
    for (int k = 0; k < dt_chat_template_count; k++) {
        struct dt_text text = {0};
        (void)dt_chat_write_text(&dt_chat_templates[k], row->turns, row->turn_count, k & 1, "<s>",
                                 "</s>", &text);
        dt_text_free(&text);
    }
}

static void use_row(const char *line, size_t bytes)
{
    struct dt_row row;
    int reason;
    if (dt_row_parse(line, bytes, &row, &reason) != DT_OK)
        return;
    char keys[64];
    (void)dt_row_keys(row.json, keys, sizeof keys);
    (void)dt_row_matches(row.json);
    dt_row_free(&row);
    for (int f = 0; f < DT_ROW_FORMATS; f++) {
        struct dt_tokens tokens = {0};
        struct dt_document record;
        struct dt_row_encoder e = {.end_of_text = -1, .id_limit = 1000};
        if (dt_row_parse(line, bytes, &row, &reason) != DT_OK)
            abort(); /* it was readable a moment ago */
        if (dt_row_read(&row, (enum dt_row_format)f, &reason) == DT_OK) {
            use_turns(&row);
            if (dt_row_encode(&e, &row, &tokens, &record, &reason) == DT_OK &&
                (tokens.marked != tokens.ids.n || tokens.ids.n < 2))
                abort();
        }
        if (reason < 0 || reason >= DT_BAD_REASONS)
            abort();
        dt_tokens_free(&tokens);
        dt_row_free(&row);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const struct dt_chat_template *t;
    if (size >= 2 && text[0] == '{' && (text[1] == '%' || text[1] == '{' || text[1] == '#')) {
        (void)dt_chat_recognise_text(text, size, "template", "<s>", "</s>", &t);
        return 0;
    }
    while (size > 0) {
        const char *end = memchr(text, '\n', size);
        size_t n = end ? (size_t)(end - text) : size;
        use_row(text, n);
        n += end != NULL;
        text += n;
        size -= n;
    }
    return 0;
}
