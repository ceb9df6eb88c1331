/* A row becomes ids and, for each, whether it trains.
 *
 * Where a prompt meets a completion the text is encoded once as a whole, since tokens may join
 * across the border; the ids that the prompt alone would have had do not train, all others do. */
#include "base/error.h"
#include "base/json.h"
#include "data/row.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int dt_tokens_mark(struct dt_tokens *t, bool trains)
{
    return dt_tokens_mark_to(t, t->ids.n, trains);
}

int dt_tokens_mark_to(struct dt_tokens *t, int64_t end, bool trains)
{
    if (end > t->room) {
        int64_t room = 2 * t->room > end ? 2 * t->room : end + 64;
        uint8_t *more = realloc(t->trains, (size_t)room);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold the loss mask of %" PRId64 " tokens", end);
        t->trains = more;
        t->room = room;
    }
    if (end > t->marked)
        memset(t->trains + t->marked, trains, (size_t)(end - t->marked));
    t->marked = end > t->marked ? end : t->marked;
    return DT_OK;
}

void dt_tokens_clear(struct dt_tokens *t)
{
    t->ids.n = 0;
    t->marked = 0;
}

void dt_tokens_free(struct dt_tokens *t)
{
    dt_ids_free(&t->ids);
    free(t->trains);
    *t = (struct dt_tokens){0};
}

static int need_tokenizer(const struct dt_row_encoder *e)
{
    if (e->encoder)
        return DT_OK;
    return DT_FAIL(DT_E_CONFIG, "rows of text need a tokenizer; only rows of input_ids do without");
}

static int encode_text(const struct dt_row_encoder *e, const struct dt_row *row,
                       struct dt_tokens *out, struct dt_document *record)
{
    DT_TRY(need_tokenizer(e));
    DT_TRY(dt_encode(e->encoder, row->text.p, row->text.n, 0, &out->ids));
    if (e->end_of_text >= 0)
        DT_TRY(dt_ids_push(&out->ids, e->end_of_text));
    record->bytes = (int64_t)row->text.n;
    return dt_tokens_mark(out, true);
}

static int encode_prompt(const struct dt_row_encoder *e, const struct dt_row *row,
                         struct dt_tokens *out, struct dt_document *record)
{
    DT_TRY(need_tokenizer(e));
    struct dt_ids prompt = {0};
    struct dt_text both = {0};
    int rc;
    DT_CHECK(done, rc, dt_encode(e->encoder, row->text.p, row->text.n, 0, &prompt));
    DT_CHECK(done, rc, dt_text_append(&both, row->text.p, row->text.n));
    DT_CHECK(done, rc, dt_text_append(&both, row->completion.p, row->completion.n));
    DT_CHECK(done, rc, dt_encode(e->encoder, both.p, both.n, 0, &out->ids));
    int64_t same = 0;
    while (same < prompt.n && same < out->ids.n && prompt.p[same] == out->ids.p[same])
        same++;
    DT_CHECK(done, rc, dt_tokens_mark_to(out, same, false));
    if (e->end_of_text >= 0)
        DT_CHECK(done, rc, dt_ids_push(&out->ids, e->end_of_text));
    DT_CHECK(done, rc, dt_tokens_mark(out, true));
    record->bytes = (int64_t)row->completion.n;
    record->flags = DT_DOCUMENT_ROW;
done:
    dt_ids_free(&prompt);
    dt_text_free(&both);
    return rc;
}

static int check_id(const struct dt_row_encoder *e, const json_t *v, size_t i)
{
    char shown[64];
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= e->id_limit)
        return DT_FAIL(DT_E_DATA, "input_ids[%zu] is %s, expected an id from 0 to %" PRId64, i,
                       dt_json_shown(v, shown, sizeof shown), e->id_limit - 1);
    return DT_OK;
}

static int encode_ids(const struct dt_row_encoder *e, const struct dt_row *row,
                      struct dt_tokens *out, struct dt_document *record)
{
    size_t n = json_array_size(row->ids);
    char shown[64];
    if (row->labels && json_array_size(row->labels) != n)
        return DT_FAIL(DT_E_DATA, "%zu input_ids but %zu labels", n, json_array_size(row->labels));
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(row->ids, i);
        DT_TRY(check_id(e, v, i));
        DT_TRY(dt_ids_push(&out->ids, (int32_t)json_integer_value(v)));
        if (!row->labels)
            continue;
        const json_t *l = json_array_get(row->labels, i);
        bool trains = json_is_integer(l) && json_integer_value(l) == json_integer_value(v);
        if (!trains && !(json_is_integer(l) && json_integer_value(l) == -100))
            return DT_FAIL(DT_E_DATA,
                           "labels[%zu] is %s, expected -100 (does not train) or "
                           "input_ids[%zu], which is %" PRId64,
                           i, dt_json_shown(l, shown, sizeof shown), i,
                           (int64_t)json_integer_value(v));
        DT_TRY(dt_tokens_mark(out, trains));
    }
    record->flags = row->labels ? DT_DOCUMENT_ROW : 0;
    record->bytes = -1;
    return dt_tokens_mark(out, true);
}

static int encode_turns(const struct dt_row_encoder *e, const struct dt_row *row,
                        struct dt_tokens *out, struct dt_document *record)
{
    DT_TRY(need_tokenizer(e));
    if (!e->chat)
        return DT_FAIL(DT_E_CONFIG,
                       "rows of turns need a chat template and the model has none; set "
                       "data.chat_template (chatml, llama2, llama3, mistral, alpaca)");
    record->flags = DT_DOCUMENT_ROW;
    return dt_chat_encode(e->chat, e->encoder, row->turns, row->turn_count, false, out,
                          &record->bytes);
}

static bool any_trains(const struct dt_tokens *t)
{
    for (int64_t i = 1; i < t->ids.n; i++)
        if (t->trains[i])
            return true;
    return false;
}

int dt_row_encode(const struct dt_row_encoder *e, const struct dt_row *row, struct dt_tokens *out,
                  struct dt_document *record, int *reason)
{
    dt_tokens_clear(out);
    *record = (struct dt_document){0};
    *reason = DT_BAD_KEYS; /* text that is no UTF-8 */
    switch (row->format) {
    case DT_ROW_TEXT:
        DT_TRY(encode_text(e, row, out, record));
        break;
    case DT_ROW_IDS:
        *reason = DT_BAD_IDS;
        DT_TRY(encode_ids(e, row, out, record));
        break;
    case DT_ROW_PROMPT:
        DT_TRY(encode_prompt(e, row, out, record));
        break;
    default:
        *reason = DT_BAD_CHAT;
        DT_TRY(encode_turns(e, row, out, record));
        break;
    }
    *reason = DT_BAD_EMPTY;
    if (any_trains(out))
        return DT_OK;
    return DT_FAIL(DT_E_DATA, "nothing to train on: %" PRId64 " token%s, none of them a target",
                   out->ids.n, out->ids.n == 1 ? "" : "s");
}
