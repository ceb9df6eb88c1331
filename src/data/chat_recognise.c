/* Is the chat template that came with a model one of ours?
 *
 * Its text says little: the same template is written in many ways. So it is run on conversations
 * that are chosen to tell templates apart (with and without a system turn, several turns, white
 * space around the content, an answer asked for, turns in an order that some refuse), and ours must
 * write, or refuse, exactly the same in every case. A template that is none of ours is refused by
 * name: training with another one would go well and give a model that does not stop. */
#include "base/error.h"
#include "base/json.h"
#include "data/chat_internal.h"
#include "base/file.h"
#include "data/jinja.h"

#include <stdlib.h>
#include <string.h>

#define TURN(r, text)                                                                              \
    {                                                                                              \
        DT_ROLE_##r,                                                                               \
        {                                                                                          \
            text, sizeof text - 1                                                                  \
        }                                                                                          \
    }
static const struct dt_turn plain[] = {TURN(USER, "Who are you?"), TURN(ASSISTANT, "A model.")};
static const struct dt_turn with_system[] = {TURN(SYSTEM, "Be brief."), TURN(USER, "Who?"),
                                             TURN(ASSISTANT, "Me.")};
static const struct dt_turn several[] = {TURN(USER, "one"),   TURN(ASSISTANT, "two"),
                                         TURN(USER, "three"), TURN(ASSISTANT, "four"),
                                         TURN(USER, "five"),  TURN(ASSISTANT, "six")};
static const struct dt_turn system_several[] = {TURN(SYSTEM, "S s"), TURN(USER, "one"),
                                                TURN(ASSISTANT, "two"), TURN(USER, "three"),
                                                TURN(ASSISTANT, "four")};
static const struct dt_turn spaces[] = {TURN(SYSTEM, " \n s \n"), TURN(USER, "\n u  "),
                                        TURN(ASSISTANT, "  a\n "), TURN(USER, " v "),
                                        TURN(ASSISTANT, "\tb ")};
static const struct dt_turn two_users[] = {TURN(USER, "one"), TURN(USER, "two"),
                                           TURN(ASSISTANT, "three")};
static const struct dt_turn question[] = {TURN(USER, "one"), TURN(ASSISTANT, "two"),
                                          TURN(USER, "three")};
static const struct dt_turn thinking[] = {
    TURN(USER, "one"), TURN(ASSISTANT, "<think>\nx\n</think>\n\ny"), TURN(USER, "two"),
    TURN(ASSISTANT, "<think>\nz\n</think>\n\nw")};
static const struct dt_turn tools[] = {TURN(USER, "one"), TURN(ASSISTANT, "call"),
                                       TURN(TOOL, "result"), TURN(ASSISTANT, "two")};

static const struct probe {
    const struct dt_turn *turns;
    int64_t count;
    bool generation;
} probes[] = {{plain, 2, false},          {with_system, 3, false}, {several, 6, false},
              {system_several, 5, false}, {spaces, 5, false},      {two_users, 3, false},
              {question, 3, true},        {thinking, 4, false},    {tools, 4, false}};
enum { PROBES = sizeof probes / sizeof probes[0], PROBE_TOOLS = PROBES - 1 };

struct answer {
    struct dt_text text;
    bool refused;
};

/* Whether built-in template `t` answers every probe as the foreign one did. A tool's turn may be
 * refused by ours, since then no row with one gets through. */
static int matches(const struct dt_chat_template *t, const struct answer *theirs, const char *bos,
                   const char *eos, bool *out)
{
    *out = true;
    for (int i = 0; i < PROBES && *out; i++) {
        struct dt_text ours = {0};
        int rc = dt_chat_write_text(t, probes[i].turns, probes[i].count, probes[i].generation, bos,
                                    eos, &ours);
        bool refused = rc == DT_E_DATA;
        if (refused)
            dt_error_clear();
        else if (rc < 0) {
            dt_text_free(&ours);
            return rc;
        }
        if (i == PROBE_TOOLS && refused)
            *out = true;
        else if (refused != theirs[i].refused)
            *out = false;
        else if (!refused)
            *out = ours.n == theirs[i].text.n && memcmp(ours.p, theirs[i].text.p, ours.n) == 0;
        dt_text_free(&ours);
    }
    return DT_OK;
}

static int ask(const char *source, size_t bytes, const char *bos, const char *eos,
               struct answer *out)
{
    for (int i = 0; i < PROBES; i++) {
        int rc = dt_jinja_render(source, bytes, probes[i].turns, probes[i].count,
                                 probes[i].generation, bos, eos, &out[i].text, &out[i].refused);
        if (rc == DT_E_UNSUPPORTED &&
            i == PROBE_TOOLS) { /* tools are rarely in our part of Jinja */
            dt_error_clear();
            out[i].refused = true;
            rc = DT_OK;
        }
        DT_TRY(rc);
    }
    return DT_OK;
}

static int none_of_ours(const char *where, const char *why)
{
    return DT_FAIL(
        DT_E_UNSUPPORTED,
        "%s: the chat template is none that is known here (%s); set data.chat_template to the "
        "one to train with: chatml, chatml-qwen2, chatml-qwen2.5, llama2, llama3, mistral, "
        "mistral-v1 or alpaca",
        where, why);
}

int dt_chat_recognise_text(const char *source, size_t bytes, const char *where, const char *bos,
                           const char *eos, const struct dt_chat_template **out)
{
    struct answer answers[PROBES] = {0};
    *out = NULL;
    int rc = ask(source, bytes, bos, eos, answers);
    if (rc == DT_E_UNSUPPORTED) {
        char why[512];
        strncpy(why, dt_error_message(), sizeof why - 1);
        why[sizeof why - 1] = '\0';
        rc = none_of_ours(where, why);
    }
    for (int i = 0; rc == DT_OK && i < dt_chat_template_count && !*out; i++) {
        bool same = false;
        rc = matches(&dt_chat_templates[i], answers, bos, eos, &same);
        if (same)
            *out = &dt_chat_templates[i];
    }
    if (rc == DT_OK && !*out)
        rc = none_of_ours(where, "it writes something else");
    for (int i = 0; i < PROBES; i++)
        dt_text_free(&answers[i].text);
    return rc;
}

/* A list of named templates: the one for talking is "default". */
static const json_t *pick_named(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *name = json_object_get(entry, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0)
            return json_object_get(entry, "template");
    }
    return NULL;
}

static int recognise_config(const char *path, const char *bos, const char *eos,
                            const struct dt_chat_template **out)
{
    json_t *config;
    DT_TRY(dt_json_load(path, (size_t)64 << 20, DT_E_MODEL, &config));
    const json_t *t = json_object_get(config, "chat_template");
    int rc = DT_OK;
    if (json_is_array(t)) {
        t = pick_named(t);
        if (!t)
            rc = none_of_ours(path, "a list of named ones without one named 'default'");
    }
    if (rc == DT_OK && t && !json_is_null(t)) {
        if (json_is_string(t))
            rc = dt_chat_recognise_text(json_string_value(t), json_string_length(t), path, bos, eos,
                                        out);
        else
            rc = none_of_ours(path, "it is neither text nor a list");
    }
    json_decref(config);
    return rc;
}

int dt_chat_recognise(const char *model_dir, const char *bos, const char *eos,
                      const struct dt_chat_template **out)
{
    char path[DT_PATH];
    *out = NULL;
    DT_TRY(dt_path_join(path, model_dir, "chat_template.jinja"));
    if (dt_file_exists(path)) {
        char *text;
        size_t size;
        DT_TRY(dt_file_read(path, (size_t)1 << 20, &text, &size));
        int rc = dt_chat_recognise_text(text, size, path, bos, eos, out);
        free(text);
        return rc;
    }
    DT_TRY(dt_path_join(path, model_dir, "tokenizer_config.json"));
    return dt_file_exists(path) ? recognise_config(path, bos, eos, out) : DT_OK;
}
