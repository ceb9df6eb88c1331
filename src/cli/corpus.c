/* `ductile corpus build` tokenizes files into PREFIX.bin, .idx and .mask; `ductile corpus show`
 * prints what training would see: the tokens of a row, and which of them train. */
#include "cli/cli.h"

#include "base/arena.h"
#include "base/file.h"
#include "data/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int open_tokenizer(const struct dt_cli *cli, struct dt_tokenizer **out)
{
    const char *path = dt_cli_string(cli, "tokenizer");
    *out = NULL;
    return path ? dt_tokenizer_open(path, out) : DT_OK;
}

static int fill_options(const struct dt_cli *cli, const struct dt_tokenizer *t,
                        struct dt_data_options *o)
{
    const char *model = dt_cli_string(cli, "tokenizer");
    *o = (struct dt_data_options){
        .tokenizer = t,
        .format = dt_cli_string(cli, "format"),
        .chat_template = dt_cli_string(cli, "chat-template"),
        .model_dir = model && dt_file_is_dir(model) ? model : NULL,
        .vocab_size = dt_cli_int(cli, "vocab-size"),
        .on_bad_row = strcmp(dt_cli_string(cli, "on-bad-row"), "skip") == 0 ? DT_BAD_ROW_SKIP
                                                                            : DT_BAD_ROW_FAIL,
        .threads = (int)dt_cli_int(cli, "threads"),
        .end_of_text = -1,
    };
    const char *end = dt_cli_string(cli, "end-of-text");
    if (!t || strcmp(end, "none") == 0)
        return DT_OK;
    o->end_of_text =
        strcmp(end, "auto") == 0 ? dt_tokenizer_eos(t) : dt_tokenizer_id(t, end, strlen(end));
    if (o->end_of_text < 0 && strcmp(end, "auto") != 0)
        return DT_FAIL(DT_E_USAGE, "--end-of-text: the tokenizer has no token '%s'", end);
    if (o->end_of_text < 0)
        dt_warn(
            "the tokenizer names no eos_token, so nothing closes a text document; --end-of-text "
            "TOKEN sets one, --end-of-text none says that this is meant");
    return DT_OK;
}

static json_t *describe(const struct dt_corpus *c)
{
    struct dt_corpus_info i;
    char hash[24];
    dt_corpus_describe(c, &i);
    snprintf(hash, sizeof hash, "%016" PRIx64, i.hash);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s}", "format",
                     i.format, "chat_template", i.chat_template, "dtype", i.dtype, "documents",
                     (json_int_t)i.documents, "tokens", (json_int_t)i.tokens, "loss_tokens",
                     (json_int_t)i.loss_tokens, "text_bytes", (json_int_t)i.bytes, "rows",
                     (json_int_t)i.rows, "skipped", (json_int_t)i.skipped, "empty_lines",
                     (json_int_t)i.empty_lines, "max_id", (json_int_t)i.max_id, "masks",
                     (int)i.has_masks, "hash", hash);
}

static void print_description(const char *name, const struct dt_corpus *c)
{
    struct dt_corpus_info i;
    dt_corpus_describe(c, &i);
    printf("%s: %s%s%s%s, %" PRId64 " documents, %" PRId64 " tokens (%s), %" PRId64
           " of them train",
           name, i.format[0] ? i.format : "corpus", i.chat_template[0] ? " (" : "", i.chat_template,
           i.chat_template[0] ? ")" : "", i.documents, i.tokens, i.dtype, i.loss_tokens);
    if (i.bytes >= 0)
        printf(", %" PRId64 " bytes of text", i.bytes);
    if (i.skipped > 0)
        printf(", %" PRId64 " bad rows skipped", i.skipped);
    if (i.empty_lines > 0)
        printf(", %" PRId64 " empty lines", i.empty_lines);
    putchar('\n');
}

/* ---- build ---- */

static int build(struct dt_cli *cli)
{
    const char *prefix = dt_cli_string(cli, "output");
    struct dt_tokenizer *t;
    struct dt_corpus *c = NULL;
    struct dt_data_options o;
    int rc;
    if (!prefix)
        return dt_cli_usage(cli, "corpus build needs -o PREFIX");
    if (cli->argument_count < 2)
        return dt_cli_usage(cli, "corpus build needs a file");
    DT_TRY(open_tokenizer(cli, &t));
    DT_CHECK(done, rc, fill_options(cli, t, &o));
    o.files = cli->arguments + 1;
    o.file_count = cli->argument_count - 1;
    DT_CHECK(done, rc, dt_corpus_build(&o, prefix));
    DT_CHECK(done, rc, dt_corpus_open(prefix, &c));
    if (cli->json)
        rc = dt_cli_json(cli, describe(c));
    else
        print_description(prefix, c);
done:
    dt_corpus_close(c);
    dt_tokenizer_close(t);
    return rc;
}

/* ---- show ---- */

struct shown_row {
    int64_t number, length, trained;
    int32_t *ids;
    uint8_t *trains;
};

static int read_row(const struct dt_corpus *c, int64_t number, struct shown_row *r)
{
    *r = (struct shown_row){.number = number, .length = dt_corpus_length(c, number)};
    DT_TRY(DT_NEW(&r->ids, r->length + 1));
    DT_TRY(DT_NEW(&r->trains, r->length + 1));
    dt_corpus_read(c, number, 0, r->length, r->ids, r->trains);
    for (int64_t i = 0; i < r->length; i++)
        r->trained += r->trains[i];
    return DT_OK;
}

static void free_row(struct shown_row *r)
{
    free(r->ids);
    free(r->trains);
}

static int json_row(const struct dt_tokenizer *t, const struct shown_row *r, json_t *rows)
{
    json_t *ids = json_array(), *trains = json_array();
    for (int64_t i = 0; i < r->length; i++) {
        json_array_append_new(ids, json_integer(r->ids[i]));
        json_array_append_new(trains, json_integer(r->trains[i]));
    }
    json_t *row = json_pack("{s:I, s:I, s:I, s:o, s:o}", "row", (json_int_t)r->number, "tokens",
                            (json_int_t)r->length, "loss_tokens", (json_int_t)r->trained, "ids",
                            ids, "trains", trains);
    struct dt_text text = {0};
    int rc = t ? dt_decode(t, r->ids, r->length, false, &text) : DT_OK;
    if (rc == DT_OK && text.p)
        json_object_set_new(row, "text", json_stringn(text.p, text.n));
    dt_text_free(&text);
    json_array_append_new(rows, row);
    return rc;
}

/* One token: its id and its written form, '*' before what trains. Lines of about 96 columns. */
static void print_tokens(const struct dt_tokenizer *t, const struct shown_row *r, int64_t most)
{
    int column = 0;
    for (int64_t i = 0; i < r->length && i < most; i++) {
        size_t n = 0;
        const char *token = t ? dt_tokenizer_token(t, r->ids[i], &n) : NULL;
        int width = 3 + (int)n + 6;
        if (column + width > 96 && column > 0) {
            putchar('\n');
            column = 0;
        }
        column += printf("  %c%" PRId32, r->trains[i] ? '*' : ' ', r->ids[i]);
        if (token)
            column += printf(" %.*s", (int)(n < 200 ? n : 200), token);
    }
    putchar('\n');
    if (r->length > most)
        printf("  ... %" PRId64 " more (--tokens %" PRId64 " prints all)\n", r->length - most,
               r->length);
}

/* The text, with what trains between [[ and ]]. */
static int print_text(const struct dt_tokenizer *t, const struct shown_row *r, int64_t most)
{
    struct dt_text text = {0};
    int64_t end = r->length < most ? r->length : most;
    int rc = DT_OK;
    for (int64_t i = 0, k; rc == DT_OK && i < end; i = k) {
        for (k = i; k < end && r->trains[k] == r->trains[i]; k++)
            ;
        if (r->trains[i])
            rc = dt_text_append(&text, "[[", 2);
        if (rc == DT_OK)
            rc = dt_decode(t, r->ids + i, k - i, false, &text);
        if (rc == DT_OK && r->trains[i])
            rc = dt_text_append(&text, "]]", 2);
    }
    if (rc == DT_OK && text.p) {
        fwrite(text.p, 1, text.n, stdout);
        putchar('\n');
    }
    dt_text_free(&text);
    return rc;
}

static int show_rows(struct dt_cli *cli, const struct dt_corpus *c, const struct dt_tokenizer *t,
                     int64_t first, int64_t end)
{
    json_t *rows = cli->json ? json_array() : NULL;
    int rc = DT_OK;
    for (int64_t i = first; i < end && rc == DT_OK; i++) {
        struct shown_row r;
        rc = read_row(c, i, &r);
        if (rc == DT_OK && cli->json) {
            rc = json_row(t, &r, rows);
        } else if (rc == DT_OK) {
            int64_t most = dt_cli_int(cli, "tokens");
            printf("\nrow %" PRId64 ": %" PRId64 " tokens, %" PRId64 " train (*)\n", i, r.length,
                   r.trained);
            print_tokens(t, &r, most);
            rc = t ? print_text(t, &r, most) : DT_OK;
        }
        free_row(&r);
    }
    if (!rows)
        return rc;
    json_t *document = describe(c);
    if (rc == DT_OK && document) {
        json_object_set_new(document, "shown", rows);
        return dt_cli_json(cli, document);
    }
    json_decref(rows);
    json_decref(document);
    return rc;
}

static int show(struct dt_cli *cli)
{
    struct dt_tokenizer *t;
    struct dt_corpus *c = NULL;
    struct dt_data_options o;
    struct dt_corpus_info info;
    int64_t row = dt_cli_int(cli, "row");
    int rc;
    if (cli->argument_count != 2)
        return dt_cli_usage(cli, "corpus show takes one corpus or file");
    DT_TRY(open_tokenizer(cli, &t));
    DT_CHECK(done, rc, fill_options(cli, t, &o));
    o.row_limit = dt_cli_given(cli, "row") ? row + 1 : 3;
    DT_CHECK(done, rc, dt_corpus_of_file(&o, cli->arguments[1], &c));
    dt_corpus_describe(c, &info);
    int64_t first = dt_cli_given(cli, "row") ? row : 0, end = first + 1;
    if (!dt_cli_given(cli, "row"))
        end = info.documents < 3 ? info.documents : 3;
    if (end > info.documents) {
        rc = DT_FAIL(DT_E_USAGE, "--row %" PRId64 ": %s has %" PRId64 " documents", row,
                     cli->arguments[1], info.documents);
        goto done;
    }
    if (!cli->json)
        print_description(cli->arguments[1], c);
    rc = show_rows(cli, c, t, first, end);
done:
    dt_corpus_close(c);
    dt_tokenizer_close(t);
    return rc;
}

static int run(struct dt_cli *cli)
{
    if (strcmp(cli->arguments[0], "build") == 0)
        return build(cli);
    if (strcmp(cli->arguments[0], "show") == 0)
        return show(cli);
    return dt_cli_usage(cli, "corpus %s is unknown; there are build and show", cli->arguments[0]);
}

static const char *const bad_row_names[] = {"fail", "skip", NULL};

static const struct dt_cli_option options[] = {
    {"tokenizer", 0, "T", DT_CLI_STRING, .doc = "tokenizer.json or a directory with one"},
    {"output", 'o', "PREFIX", DT_CLI_STRING, .doc = "build: write PREFIX.bin, .idx and .mask"},
    {"row", 0, "N", DT_CLI_INT, .min = 0, .max = 1e15,
     .doc = "show: this one (default: the first 3)"},
    {"tokens", 0, "N", DT_CLI_INT, .fallback = "200", .min = 1, .max = 1e15,
     .doc = "show: at most so many of a row"},
    {"format", 0, "NAME", DT_CLI_STRING, .fallback = "auto",
     .doc = "of rows: auto, text, input_ids, prompt_completion, alpaca, sharegpt, messages"},
    {"chat-template", 0, "NAME", DT_CLI_STRING, .fallback = "auto", .doc = "as data.chat_template"},
    {"end-of-text", 0, "TOKEN", DT_CLI_STRING, .fallback = "auto", .doc = "as data.end_of_text"},
    {"on-bad-row", 0, "WHAT", DT_CLI_STRING, .fallback = "fail", .names = bad_row_names,
     .doc = "what to do with a row that cannot be used"},
    {"vocab-size", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 2147483647,
     .doc = "ids must be below (0: not checked)"},
    {"threads", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 256,
     .doc = "that tokenize (0: all cores)"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_corpus = {
    .name = "corpus",
    .run = run,
    .arguments = "build --tokenizer T -o PREFIX FILE... | show PREFIX [--row N]",
    .min_arguments = 1,
    .max_arguments = -1,
    .summary = "tokenize text and JSONL into a corpus; show its tokens and masks",
    .details =
        "`show` also takes a JSONL or text file with --tokenizer and prints what training on it\n"
        "would see: one token after the other with its id, '*' before those that train, then the\n"
        "text with what trains between [[ and ]].",
    .options = options,
    .json = true,
};
