/* `ductile tokenize`: text to ids and back, a line each; or learn a tokenizer. */
#include "cli/cli.h"

#include "base/file.h"
#include "data/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 256 };

/* ---- Text to ids, ids to text ---- */

struct job {
    struct dt_tokenizer *tokenizer;
    struct dt_encoder *encoder;
    unsigned flags;
    bool skip_special;
    struct dt_ids ids;
    struct dt_text text;
};

static int encode_line(struct job *job, const char *line, size_t n)
{
    job->ids.n = 0;
    DT_TRY(dt_encode(job->encoder, line, n, job->flags, &job->ids));
    for (int64_t i = 0; i < job->ids.n; i++)
        printf(i ? " %d" : "%d", job->ids.p[i]);
    putchar('\n');
    return DT_OK;
}

static int decode_line(struct job *job, const char *line)
{
    job->ids.n = 0;
    for (const char *p = line; *p;) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        size_t size;
        if (end == p || errno || id < 0 || id > INT32_MAX ||
            !dt_tokenizer_token(job->tokenizer, (int32_t)id, &size))
            return DT_FAIL(DT_E_DATA,
                           "\"%.40s\" does not begin with an id of this tokenizer (0 to %lld)", p,
                           (long long)dt_tokenizer_vocab_size(job->tokenizer) - 1);
        DT_TRY(dt_ids_push(&job->ids, (int32_t)id));
        p = end + strspn(end, " \t\r,");
    }
    job->text.n = 0;
    DT_TRY(dt_decode(job->tokenizer, job->ids.p, job->ids.n, job->skip_special, &job->text));
    fwrite(job->text.p, 1, job->text.n, stdout);
    putchar('\n');
    return DT_OK;
}

static int each_line(struct job *job, FILE *f, const char *name, bool decode)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int rc = DT_OK;
    for (long number = 1; rc == DT_OK && (n = getline(&line, &room, f)) >= 0; number++) {
        if (n > 0 && line[n - 1] == '\n')
            line[--n] = '\0';
        rc = decode ? decode_line(job, line) : encode_line(job, line, (size_t)n);
        if (rc < 0)
            dt_error_context(rc, "%s:%ld", name, number);
    }
    free(line);
    if (rc == DT_OK && ferror(f))
        rc = DT_FAIL(DT_E_IO, "cannot read %s: %s", name, strerror(errno));
    if (rc == DT_OK && (fflush(stdout) != 0 || ferror(stdout)))
        rc = DT_FAIL(DT_E_IO, "cannot write to standard output: %s", strerror(errno));
    return rc;
}

static int translate(struct dt_cli *cli)
{
    struct job job = {0};
    const char *file = dt_cli_string(cli, "file");
    if (cli->argument_count != 1)
        return dt_cli_usage(cli, "expected one TOKENIZER, found %d arguments", cli->argument_count);
    job.flags = (dt_cli_flag(cli, "special") ? DT_ENCODE_SPECIAL : 0u) |
                (dt_cli_flag(cli, "plain") ? DT_ENCODE_PLAIN : 0u);
    job.skip_special = dt_cli_flag(cli, "skip-special");
    DT_TRY(dt_tokenizer_open(cli->arguments[0], &job.tokenizer));
    int rc = dt_encoder_new(job.tokenizer, &job.encoder);
    FILE *f = file ? fopen(file, "rb") : stdin;
    if (rc == DT_OK && !f)
        rc = dt_file_fail("open", file);
    if (rc == DT_OK)
        rc = each_line(&job, f, file ? file : "standard input", dt_cli_flag(cli, "decode"));
    if (f && file)
        fclose(f);
    dt_ids_free(&job.ids);
    dt_text_free(&job.text);
    dt_encoder_free(job.encoder);
    dt_tokenizer_close(job.tokenizer);
    return rc;
}

/* ---- Learning ---- */

static int train(struct dt_cli *cli)
{
    const char *special[MAX_LIST];
    struct dt_tokenizer_training t = {
        .files = cli->arguments,
        .file_count = cli->argument_count,
        .vocab_size = dt_cli_int(cli, "vocab-size"),
        .special = special,
        .special_count = dt_cli_list(cli, "special-token", special, MAX_LIST),
        .min_frequency = dt_cli_int(cli, "min-frequency"),
        .directory = dt_cli_string(cli, "output"),
    };
    if (!t.directory)
        return dt_cli_usage(cli, "--train needs -o DIR, where the tokenizer goes");
    if (t.special_count > MAX_LIST)
        return dt_cli_usage(cli, "more than %d special tokens", MAX_LIST);
    if (t.special_count == 0)
        special[t.special_count++] = "<|endoftext|>";
    DT_TRY(dt_tokenizer_train(&t));
    struct dt_tokenizer *learned;
    DT_TRY(dt_tokenizer_open(t.directory, &learned));
    long long size = (long long)dt_tokenizer_vocab_size(learned);
    printf("%s: %lld tokens\n", dt_tokenizer_path(learned), size);
    dt_tokenizer_close(learned);
    return DT_OK;
}

static int run(struct dt_cli *cli)
{
    return dt_cli_flag(cli, "train") ? train(cli) : translate(cli);
}

static const struct dt_cli_option options[] = {
    {"file", 0, "FILE", DT_CLI_STRING, .doc = "read this instead of standard input"},
    {"special", 0, NULL, DT_CLI_FLAG,
     .doc = "add the tokens that the tokenizer's template adds (bos ...)"},
    {"plain", 0, NULL, DT_CLI_FLAG, .doc = "take special tokens inside the text as ordinary text"},
    {"decode", 0, NULL, DT_CLI_FLAG, .doc = "the way back: lines of ids to text"},
    {"skip-special", 0, NULL, DT_CLI_FLAG, .doc = "with --decode: leave special tokens out"},
    {"train", 0, NULL, DT_CLI_FLAG,
     .doc = "learn a byte-level BPE from FILE... (text or JSONL, .gz too)"},
    {"vocab-size", 0, "N", DT_CLI_INT, .fallback = "4096", .min = 257, .max = 1 << 22,
     .doc = "with --train: tokens in all"},
    {"min-frequency", 0, "N", DT_CLI_INT, .fallback = "2", .min = 1, .max = 1e9,
     .doc = "with --train: a pair that occurs less often is not merged"},
    {"special-token", 0, "TEXT", DT_CLI_LIST,
     .doc = "with --train: a special token; the first one ends a text (default <|endoftext|>)"},
    {"output", 'o', "DIR", DT_CLI_STRING, .doc = "with --train: where tokenizer.json goes"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_tokenize = {
    .name = "tokenize",
    .run = run,
    .arguments = "TOKENIZER | --train -o DIR FILE...",
    .min_arguments = 1,
    .max_arguments = -1,
    .summary = "text to token ids, ids to text, or learn a tokenizer",
    .details = "Per input line one line of ids separated by spaces, without special tokens unless "
               "--special is given. TOKENIZER is a tokenizer.json or a directory that holds one.",
    .options = options,
};
