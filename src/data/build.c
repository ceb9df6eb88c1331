/* Several sources into one corpus: what all of them share is decided before the first row is read.
 */
#include "base/arena.h"
#include "base/error.h"
#include "data/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_turns(const struct dt_source *s)
{
    return s->kind == DT_SOURCE_ROWS && s->format >= DT_ROW_ALPACA;
}

static int open_chat(const struct dt_data_options *o, const struct dt_source *s,
                     struct dt_build *out)
{
    if (out->chat)
        return DT_OK;
    if (!o->tokenizer)
        return DT_FAIL(DT_E_CONFIG, "%s: rows of turns need a tokenizer", s->path);
    DT_TRY(dt_chat_open(o->chat_template, o->model_dir, o->tokenizer, o->end_of_text, &out->chat));
    if (!out->chat && s->format == DT_ROW_ALPACA)
        DT_TRY(dt_chat_open("alpaca", NULL, o->tokenizer, o->end_of_text, &out->chat));
    if (!out->chat)
        return DT_FAIL(DT_E_CONFIG,
                       "%s: %s rows need a chat template and the model has none; set "
                       "data.chat_template (chatml, llama2, llama3, mistral, alpaca)",
                       s->path, dt_row_format_name(s->format));
    return DT_OK;
}

int dt_build_open(const struct dt_data_options *o, const struct dt_source *sources, int64_t count,
                  struct dt_build *out)
{
    *out = (struct dt_build){.options = o, .item = 2};
    out->id_limit = o->vocab_size > 0 ? o->vocab_size : INT32_MAX;
    for (int64_t i = 0; i < count; i++) {
        bool ids = sources[i].kind == DT_SOURCE_ROWS && sources[i].format == DT_ROW_IDS;
        if (!ids && !o->tokenizer)
            return DT_FAIL(DT_E_CONFIG,
                           "%s: text needs a tokenizer; only rows of input_ids and .bin "
                           "corpora do without",
                           sources[i].path);
        int64_t limit = ids ? out->id_limit : dt_tokenizer_vocab_size(o->tokenizer);
        if (limit > UINT16_MAX + 1)
            out->item = 4;
        if (has_turns(&sources[i])) {
            int rc = open_chat(o, &sources[i], out);
            if (rc < 0) {
                dt_build_close(out);
                return rc;
            }
        }
    }
    if (o->end_of_text > UINT16_MAX)
        out->item = 4;
    return DT_OK;
}

void dt_build_close(struct dt_build *b)
{
    dt_chat_close(b->chat);
    b->chat = NULL;
}

int dt_build_run(const struct dt_build *b, const struct dt_source *sources, int64_t count,
                 const char *prefix)
{
    struct dt_corpus_writer *w;
    struct dt_mask_header totals = {0};
    bool masks = false;
    for (int64_t i = 0; i < count; i++) {
        const char *name = dt_row_format_name(sources[i].format);
        bool same = i == 0 || strcmp(totals.format, name) == 0;
        snprintf(totals.format, sizeof totals.format, "%s", same ? name : "mixed");
        masks = masks || sources[i].format != DT_ROW_TEXT;
    }
    if (b->chat)
        snprintf(totals.chat_template, sizeof totals.chat_template, "%s", dt_chat_name(b->chat));
    DT_TRY(dt_corpus_writer_new(prefix, b->item, masks, &w));
    for (int64_t i = 0; i < count; i++) {
        int rc = dt_rows_build(b, &sources[i], w, &totals);
        if (rc < 0) {
            dt_corpus_writer_abandon(w);
            return rc;
        }
    }
    return dt_corpus_writer_finish(w, &totals);
}

int dt_corpus_build(const struct dt_data_options *o, const char *prefix)
{
    struct dt_source *sources;
    struct dt_build build = {0};
    int rc;
    DT_TRY(DT_NEW(&sources, o->file_count));
    for (int64_t i = 0; i < o->file_count; i++) {
        DT_CHECK(done, rc, dt_source_detect(o->files[i], o->format, &sources[i]));
        if (sources[i].kind == DT_SOURCE_CORPUS) {
            rc = DT_FAIL(DT_E_USAGE, "%s is a tokenized corpus already; give text or JSONL files",
                         o->files[i]);
            goto done;
        }
    }
    DT_CHECK(done, rc, dt_build_open(o, sources, o->file_count, &build));
    DT_CHECK(done, rc, dt_build_run(&build, sources, o->file_count, prefix));
done:
    dt_build_close(&build);
    free(sources);
    return rc;
}
