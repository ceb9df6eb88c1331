/* What kind of row is this, and are its keys as they should be?
 *
 * The format is told by which keys are there; a row that fits two formats fits none, because a
 * guess would train on the wrong thing in silence. Messages say which keys were found and which
 * expected. */
#include "base/error.h"
#include "base/json.h"
#include "data/row.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *expected;
} formats[DT_ROW_FORMATS] = {
    {"text", "text"},
    {"input_ids", "input_ids, and labels if some do not train"},
    {"prompt_completion", "prompt, completion"},
    {"alpaca", "instruction, output, and input, system, history if wanted"},
    {"sharegpt", "conversations, a list of {from, value}"},
    {"messages", "messages, a list of {role, content}"},
};

const char *dt_row_format_name(enum dt_row_format f)
{
    return formats[f].name;
}

const char *dt_row_expected(enum dt_row_format f)
{
    return formats[f].expected;
}

int dt_row_format_parse(const char *name, enum dt_row_format *out)
{
    for (int f = 0; f < DT_ROW_FORMATS; f++)
        if (strcmp(name, formats[f].name) == 0) {
            *out = (enum dt_row_format)f;
            return DT_OK;
        }
    return DT_FAIL(DT_E_CONFIG,
                   "row format '%s' is unknown; there are auto, text, input_ids, "
                   "prompt_completion, alpaca, sharegpt, messages",
                   name);
}

const char *dt_row_keys(const json_t *object, char *buffer, size_t size)
{
    size_t used = 0;
    const char *key;
    json_t *value;
    buffer[0] = '\0';
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        size_t n = strlen(key);
        if (used + (used ? 2 : 0) + n + 5 > size) {
            memcpy(buffer + used, " ...", 5);
            break;
        }
        if (used) {
            memcpy(buffer + used, ", ", 2);
            used += 2;
        }
        for (size_t i = 0; i < n; i++)
            buffer[used++] = (unsigned char)key[i] < ' ' || key[i] == 0x7f ? '?' : key[i];
        buffer[used] = '\0';
    }
    return buffer[0] ? buffer : "none";
}

int dt_row_parse(const char *line, size_t bytes, struct dt_row *row, int *reason)
{
    *row = (struct dt_row){0};
    *reason = DT_BAD_JSON;
    json_error_t e;
    row->json =
        json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!row->json)
        return DT_FAIL(DT_E_DATA, "byte %d: not valid JSON: %.120s", e.position, e.text);
    if (json_is_object(row->json))
        return DT_OK;
    *reason = DT_BAD_KEYS;
    char shown[64];
    int rc =
        DT_FAIL(DT_E_DATA, "found %s, expected one object a line%s",
                dt_json_shown(row->json, shown, sizeof shown),
                json_is_array(row->json) ? " (a JSON array becomes lines with jq -c '.[]')" : "");
    dt_row_free(row);
    return rc;
}

void dt_row_free(struct dt_row *row)
{
    json_decref(row->json);
    free(row->turns);
    free(row->owned);
    *row = (struct dt_row){0};
}

unsigned dt_row_matches(const json_t *object)
{
    unsigned m = 0;
    m |= json_object_get(object, "text") ? 1u << DT_ROW_TEXT : 0;
    m |= json_object_get(object, "input_ids") ? 1u << DT_ROW_IDS : 0;
    if (json_object_get(object, "prompt") && json_object_get(object, "completion"))
        m |= 1u << DT_ROW_PROMPT;
    if (json_object_get(object, "instruction") && json_object_get(object, "output"))
        m |= 1u << DT_ROW_ALPACA;
    m |= json_object_get(object, "conversations") ? 1u << DT_ROW_SHAREGPT : 0;
    m |= json_object_get(object, "messages") ? 1u << DT_ROW_MESSAGES : 0;
    return m;
}

/* A string value; null and absent are "" when it may be missing. */
static int take_string(const struct dt_row *row, const json_t *object, const char *key, bool needed,
                       struct dt_slice *out)
{
    const json_t *v = json_object_get(object, key);
    *out = (struct dt_slice){"", 0};
    if ((!v || json_is_null(v)) && !needed)
        return DT_OK;
    if (json_is_string(v)) {
        *out = (struct dt_slice){json_string_value(v), json_string_length(v)};
        return DT_OK;
    }
    char keys[160], shown[64];
    if (!v)
        return DT_FAIL(DT_E_DATA, "'%s' is missing: found keys %s; expected %s", key,
                       dt_row_keys(object, keys, sizeof keys), dt_row_expected(row->format));
    return DT_FAIL(DT_E_DATA, "'%s' is %s, expected a string", key,
                   dt_json_shown(v, shown, sizeof shown));
}

static int take_array(const struct dt_row *row, const char *key, bool needed, const json_t **out)
{
    const json_t *v = json_object_get(row->json, key);
    *out = NULL;
    if ((!v || json_is_null(v)) && !needed)
        return DT_OK;
    char keys[160], shown[64];
    if (!v)
        return DT_FAIL(DT_E_DATA, "'%s' is missing: found keys %s; expected %s", key,
                       dt_row_keys(row->json, keys, sizeof keys), dt_row_expected(row->format));
    if (!json_is_array(v))
        return DT_FAIL(DT_E_DATA, "'%s' is %s, expected a list", key,
                       dt_json_shown(v, shown, sizeof shown));
    *out = v;
    return DT_OK;
}

static int new_turns(struct dt_row *row, size_t room)
{
    row->turns = calloc(room ? room : 1, sizeof *row->turns);
    return row->turns ? DT_OK : DT_FAIL(DT_E_MEMORY, "cannot hold %zu turns", room);
}

static void add_turn(struct dt_row *row, enum dt_chat_role role, struct dt_slice content)
{
    row->turns[row->turn_count++] = (struct dt_turn){role, content};
}

/* instruction and input are one turn, joined by a newline. */
static int join_input(struct dt_row *row, struct dt_slice instruction, struct dt_slice input,
                      struct dt_slice *out)
{
    *out = input.n ? (instruction.n ? (struct dt_slice){NULL, 0} : input) : instruction;
    if (out->p)
        return DT_OK;
    size_t n = instruction.n + 1 + input.n;
    row->owned = malloc(n);
    if (!row->owned)
        return DT_FAIL(DT_E_MEMORY, "cannot join an instruction and its input of %zu bytes", n);
    memcpy(row->owned, instruction.p, instruction.n);
    row->owned[instruction.n] = '\n';
    memcpy(row->owned + instruction.n + 1, input.p, input.n);
    *out = (struct dt_slice){row->owned, n};
    return DT_OK;
}

static int read_alpaca(struct dt_row *row)
{
    struct dt_slice instruction, input, output, system, query;
    const json_t *history;
    DT_TRY(take_string(row, row->json, "instruction", true, &instruction));
    DT_TRY(take_string(row, row->json, "output", true, &output));
    DT_TRY(take_string(row, row->json, "input", false, &input));
    DT_TRY(take_string(row, row->json, "system", false, &system));
    DT_TRY(take_array(row, "history", false, &history));
    DT_TRY(new_turns(row, 2 * json_array_size(history) + 3));
    if (system.n)
        add_turn(row, DT_ROLE_SYSTEM, system);
    for (size_t i = 0; i < json_array_size(history); i++) {
        const json_t *pair = json_array_get(history, i);
        const json_t *q = json_array_get(pair, 0), *a = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(q) || !json_is_string(a))
            return DT_FAIL(DT_E_DATA, "history[%zu] is not a pair of strings [question, answer]",
                           i);
        add_turn(row, DT_ROLE_USER, (struct dt_slice){json_string_value(q), json_string_length(q)});
        add_turn(row, DT_ROLE_ASSISTANT,
                 (struct dt_slice){json_string_value(a), json_string_length(a)});
    }
    DT_TRY(join_input(row, instruction, input, &query));
    add_turn(row, DT_ROLE_USER, query);
    add_turn(row, DT_ROLE_ASSISTANT, output);
    return DT_OK;
}

static const struct {
    const char *name;
    enum dt_chat_role role;
} sharegpt_roles[] = {{"human", DT_ROLE_USER},       {"gpt", DT_ROLE_ASSISTANT},
                      {"system", DT_ROLE_SYSTEM},    {"function_call", DT_ROLE_ASSISTANT},
                      {"observation", DT_ROLE_TOOL}, {NULL, DT_ROLE_SYSTEM}},
  message_roles[] = {{"user", DT_ROLE_USER},
                     {"assistant", DT_ROLE_ASSISTANT},
                     {"system", DT_ROLE_SYSTEM},
                     {"tool", DT_ROLE_TOOL},
                     {NULL, DT_ROLE_SYSTEM}};

static int read_role(bool sharegpt, struct dt_slice name, size_t at, enum dt_chat_role *out)
{
    for (size_t i = 0;; i++) {
        const char *known = sharegpt ? sharegpt_roles[i].name : message_roles[i].name;
        if (!known)
            break;
        if (strlen(known) == name.n && memcmp(known, name.p, name.n) == 0) {
            *out = sharegpt ? sharegpt_roles[i].role : message_roles[i].role;
            return DT_OK;
        }
    }
    return DT_FAIL(DT_E_DATA, "%s[%zu]: '%s' is '%.40s', expected %s",
                   sharegpt ? "conversations" : "messages", at, sharegpt ? "from" : "role", name.p,
                   sharegpt ? "human, gpt, system, function_call or observation"
                            : "user, assistant, system or tool");
}

static int read_turns(struct dt_row *row)
{
    bool sharegpt = row->format == DT_ROW_SHAREGPT;
    const char *key = sharegpt ? "conversations" : "messages";
    const json_t *list;
    DT_TRY(take_array(row, key, true, &list));
    DT_TRY(new_turns(row, json_array_size(list) + 1));
    if (sharegpt) { /* some files keep the system prompt beside the list */
        struct dt_slice system;
        DT_TRY(take_string(row, row->json, "system", false, &system));
        if (system.n)
            add_turn(row, DT_ROLE_SYSTEM, system);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *turn = json_array_get(list, i);
        struct dt_slice name, content;
        enum dt_chat_role role = DT_ROLE_USER;
        char shown[64];
        if (!json_is_object(turn))
            return DT_FAIL(DT_E_DATA, "%s[%zu] is %s, expected an object", key, i,
                           dt_json_shown(turn, shown, sizeof shown));
        int rc = take_string(row, turn, sharegpt ? "from" : "role", true, &name);
        if (rc == DT_OK)
            rc = take_string(row, turn, sharegpt ? "value" : "content", true, &content);
        if (rc < 0)
            return dt_error_context(rc, "%s[%zu]", key, i);
        if (json_is_array(json_object_get(turn, "tool_calls")))
            return DT_FAIL(DT_E_DATA,
                           "%s[%zu]: tool_calls are not supported; write the call into "
                           "content as the model shall say it",
                           key, i);
        DT_TRY(read_role(sharegpt, name, i, &role));
        add_turn(row, role, content);
    }
    return DT_OK;
}

int dt_row_read(struct dt_row *row, enum dt_row_format format, int *reason)
{
    row->format = format;
    *reason = DT_BAD_KEYS;
    switch (format) {
    case DT_ROW_TEXT:
        return take_string(row, row->json, "text", true, &row->text);
    case DT_ROW_IDS:
        DT_TRY(take_array(row, "input_ids", true, &row->ids));
        return take_array(row, "labels", false, &row->labels);
    case DT_ROW_PROMPT:
        DT_TRY(take_string(row, row->json, "prompt", true, &row->text));
        return take_string(row, row->json, "completion", true, &row->completion);
    case DT_ROW_ALPACA:
        return read_alpaca(row);
    case DT_ROW_SHAREGPT:
    case DT_ROW_MESSAGES:
        return read_turns(row);
    case DT_ROW_FORMATS:
        break;
    }
    return DT_FAIL(DT_E_INTERNAL, "row format %d", (int)format);
}
