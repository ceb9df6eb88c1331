/* `ductile generate MODEL --prompt TEXT`: the continuation to standard output, as it comes. */
#include "cli/model_options.h"

#include "base/json.h"
#include "data/row.h"
#include "train/generate.h"

#include <stdlib.h>
#include <string.h>

struct ends {
    int32_t id[16];
    int n;
};

struct speech {
    struct dt_session session;
    struct dt_tokenizer *tokenizer;
    struct dt_generator generator;
    struct dt_ids prompt, said;
    struct dt_text text;
    int64_t shown; /* ids of `said` already printed */
    struct ends ends;
};

static void add_end(struct ends *e, int64_t id)
{
    for (int i = 0; i < e->n; i++)
        if (e->id[i] == id)
            return;
    if (id >= 0 && e->n < (int)(sizeof e->id / sizeof *e->id))
        e->id[e->n++] = (int32_t)id;
}

static void add_ends(struct ends *e, const json_t *value)
{
    if (json_is_integer(value))
        add_end(e, json_integer_value(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        add_end(e, json_integer_value(json_array_get(value, i)));
}

/* Any id that generation_config.json lists; without it config.json's and the tokenizer's eos. */
static int find_ends(struct speech *s)
{
    char path[DT_PATH];
    json_t *config;
    DT_TRY(dt_path_join(path, s->session.path, "generation_config.json"));
    if (dt_file_exists(path)) {
        DT_TRY(dt_json_load(path, (size_t)1 << 20, DT_E_MODEL, &config));
        add_ends(&s->ends, json_object_get(config, "eos_token_id"));
        json_decref(config);
    }
    if (s->ends.n == 0) {
        add_end(&s->ends, s->session.arch->eos);
        add_end(&s->ends, s->tokenizer ? dt_tokenizer_eos(s->tokenizer) : -1);
    }
    return DT_OK;
}

static bool is_end(const struct ends *e, int32_t id)
{
    for (int i = 0; i < e->n; i++)
        if (e->id[i] == id)
            return true;
    return false;
}

static int print_new(struct speech *s, bool last)
{
    s->text.n = 0;
    DT_TRY(dt_decode_next(s->tokenizer, s->said.p, s->said.n, &s->shown, last, &s->text));
    fwrite(s->text.p, 1, s->text.n, stdout);
    fflush(stdout);
    return DT_OK;
}

/* Returns in *why what ended it. */
static int speak(struct dt_cli *cli, struct speech *s, int64_t most, bool ids_only,
                 const char **why)
{
    struct dt_sampling how = {.temperature = dt_cli_float(cli, "temperature"),
                              .top_k = dt_cli_int(cli, "top-k"),
                              .top_p = dt_cli_float(cli, "top-p"),
                              .seed = (uint64_t)dt_cli_int(cli, "seed")};
    bool ignore = dt_cli_flag(cli, "ignore-eos");
    *why = "the number of new tokens is reached";
    DT_TRY(dt_generator_feed(&s->generator, s->prompt.p, s->prompt.n));
    for (int64_t i = 0; i < most; i++) {
        int32_t id = dt_generator_choose(&s->generator, &how);
        if (!ignore && is_end(&s->ends, id)) {
            *why = "an end token came";
            break;
        }
        DT_TRY(dt_ids_push(&s->said, id));
        if (!ids_only)
            DT_TRY(print_new(s, false));
        if (s->generator.cache.length == s->generator.cache.capacity) {
            *why = "the context is full";
            break;
        }
        if (i + 1 < most)
            DT_TRY(dt_generator_feed(&s->generator, &id, 1));
    }
    if (!ids_only)
        return print_new(s, true);
    for (int64_t i = 0; i < s->said.n; i++)
        printf("%s%d", i ? " " : "", s->said.p[i]);
    return DT_OK;
}

static int encode_text(struct speech *s, const char *text)
{
    struct dt_encoder *e;
    DT_TRY(dt_encoder_new(s->tokenizer, &e));
    int rc = dt_encode(e, text, strlen(text), DT_ENCODE_SPECIAL, &s->prompt);
    dt_encoder_free(e);
    return rc;
}

/* The text as a user's turn, and the opening of the assistant's. */
static int encode_chat(struct speech *s, const char *template, const char *text)
{
    struct dt_turn turn = {.role = DT_ROLE_USER, .content = {text, strlen(text)}};
    struct dt_tokens tokens = {0};
    struct dt_encoder *e = NULL;
    struct dt_chat *chat;
    int64_t spoken;
    int32_t end = s->ends.n > 0 ? s->ends.id[0] : -1;
    DT_TRY(dt_chat_open(template, s->session.path, s->tokenizer, end, &chat));
    if (!chat)
        return DT_FAIL(DT_E_NOT_FOUND, "%s has no chat template; give --chat-template NAME",
                       s->session.path);
    int rc = dt_encoder_new(s->tokenizer, &e);
    if (rc >= 0)
        rc = dt_chat_encode(chat, e, &turn, 1, true, &tokens, &spoken);
    if (rc >= 0)
        rc = dt_ids_append(&s->prompt, tokens.ids.p, tokens.ids.n);
    dt_encoder_free(e);
    dt_tokens_free(&tokens);
    dt_chat_close(chat);
    return rc;
}

static int read_prompt(struct dt_cli *cli, struct speech *s)
{
    const char *text = dt_cli_string(cli, "prompt"), *ids = dt_cli_string(cli, "ids");
    if (ids)
        DT_TRY(dt_cli_ids(ids, s->session.arch->V, &s->prompt));
    else if (!text)
        return dt_cli_usage(cli, "give --prompt TEXT (or --ids 1,2,3)");
    else if (!s->tokenizer)
        return DT_FAIL(DT_E_NOT_FOUND,
                       "%s holds no tokenizer.json, so text cannot be read; give --ids",
                       s->session.path);
    else if (dt_cli_flag(cli, "chat"))
        DT_TRY(encode_chat(s, dt_cli_string(cli, "chat-template"), text));
    else
        DT_TRY(encode_text(s, text));
    if (s->prompt.n == 0)
        return DT_FAIL(DT_E_USAGE, "the prompt is empty: there is nothing to continue");
    return DT_OK;
}

static int generate(struct dt_cli *cli, struct speech *s, enum dt_dtype compute)
{
    const char *why;
    DT_TRY(dt_session_open(cli->arguments[0], DT_STATE_WEIGHTS, &s->session));
    DT_TRY(dt_tokenizer_of(s->session.path, s->session.arch, &s->tokenizer));
    DT_TRY(find_ends(s));
    DT_TRY(read_prompt(cli, s));
    int64_t most = dt_cli_int(cli, "max-new-tokens"), context = s->session.arch->positions;
    if (s->prompt.n >= context)
        return DT_FAIL(DT_E_DATA, "the prompt has %lld tokens, the context holds %lld",
                       (long long)s->prompt.n, (long long)context);
    if (context > s->prompt.n + most)
        context = s->prompt.n + most;
    DT_TRY(dt_generator_open(&s->session, compute, context, &s->generator));
    DT_TRY(speak(cli, s, most, s->tokenizer == NULL || dt_cli_flag(cli, "print-ids"), &why));
    fputc('\n', stdout);
    fflush(stdout); /* where both streams go to one file, the text comes first */
    dt_info("stopped after %lld tokens: %s", (long long)s->said.n, why);
    return DT_OK;
}

static int run(struct dt_cli *cli)
{
    struct speech s = {0};
    enum dt_dtype compute;
    DT_TRY(dt_cli_model_options(cli, &compute));
    int rc = generate(cli, &s, compute);
    if (s.generator.model.arch)
        dt_generator_close(&s.generator);
    dt_ids_free(&s.prompt);
    dt_ids_free(&s.said);
    dt_text_free(&s.text);
    dt_tokenizer_close(s.tokenizer);
    dt_session_close(&s.session);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"prompt", 0, "TEXT", DT_CLI_STRING, .doc = "what to continue; with --chat a user's message"},
    {"ids", 0, "1,2,3", DT_CLI_STRING, .doc = "the prompt as ids"},
    {"print-ids", .type = DT_CLI_FLAG, .doc = "print ids instead of text"},
    {"max-new-tokens", 0, "N", DT_CLI_INT, .fallback = "128", .min = 0, .max = 1 << 30,
     .doc = "stop after so many"},
    {"temperature", 0, "T", DT_CLI_FLOAT, .fallback = "0", .min = 0, .max = 100,
     .doc = "0: always the likeliest token"},
    {"top-k", 0, "K", DT_CLI_INT, .fallback = "0", .min = 0, .max = 1 << 30,
     .doc = "of the K likeliest only; 0: all"},
    {"top-p", 0, "P", DT_CLI_FLOAT, .fallback = "1", .min = 0, .max = 1,
     .doc = "of the fewest likeliest tokens that hold this share"},
    {"seed", 0, "S", DT_CLI_INT, .fallback = "1", .min = 0, .max = 9e15, .doc = "of the choice"},
    {"chat", .type = DT_CLI_FLAG, .doc = "wrap the prompt in the model's chat template"},
    {"chat-template", 0, "NAME", DT_CLI_STRING, .fallback = "auto", .doc = "as data.chat_template"},
    {"ignore-eos", .type = DT_CLI_FLAG, .doc = "go on past end tokens"},
    DT_CLI_MODEL_OPTIONS,
    {0},
};

const struct dt_cli_verb dt_cli_verb_generate = {
    .name = "generate",
    .run = run,
    .arguments = "MODEL",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "continue a text",
    .options = options,
};
