/* Rows of one file through all cores into a corpus, in the order of the file.
 *
 * The caller's thread reads lines into batches and writes results; workers parse and tokenize.
 * Batches live in a ring and are written strictly in the order they were read, so neither the
 * number of threads nor their luck changes a byte, and the first bad row is always the same one. */
#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "data/lines.h"
#include "data/source.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_ROWS = 512, BATCH_BYTES = 256 << 10, MOST_THREADS = 256 };
enum batch_state { BATCH_FREE, BATCH_READY, BATCH_TAKEN, BATCH_DONE };

struct batch_row {
    size_t start, bytes; /* in text */
    int64_t line;
    int64_t first, count; /* in ids; count -1: bad */
    struct dt_document record;
    int reason;
};

struct batch {
    enum batch_state state;
    char *text;
    size_t used, room;
    struct batch_row rows[BATCH_ROWS];
    int64_t row_count;
    struct dt_tokens tokens;       /* of all rows, one behind the other */
    struct dt_error_state failure; /* of the first bad row */
    int64_t failed_row;
};

struct crew {
    const struct dt_build *build;
    const struct dt_source *source;
    pthread_mutex_t mutex;
    pthread_cond_t ready, done;
    struct batch *ring;
    int64_t ring_size, head, tail, next; /* read, written, taken by a worker: counts of batches */
    bool stop;
    pthread_t threads[MOST_THREADS];
    int thread_count;
    struct dt_error_state startup; /* of a worker that could not begin */
};

/* ---- a worker ---- */

static int encode_row(const struct crew *c, const struct dt_row_encoder *e, struct batch *b,
                      struct batch_row *r, struct dt_tokens *scratch)
{
    struct dt_row row;
    DT_TRY(dt_row_parse(b->text + r->start, r->bytes, &row, &r->reason));
    int rc = dt_row_read(&row, c->source->format, &r->reason);
    if (rc == DT_OK)
        rc = dt_row_encode(e, &row, scratch, &r->record, &r->reason);
    dt_row_free(&row);
    DT_TRY(rc);
    r->record.line = r->line;
    r->first = b->tokens.ids.n;
    DT_TRY(dt_ids_append(&b->tokens.ids, scratch->ids.p, scratch->ids.n));
    DT_TRY(dt_tokens_mark(&b->tokens, true));
    memcpy(b->tokens.trains + r->first, scratch->trains, (size_t)scratch->ids.n);
    r->count = scratch->ids.n;
    return DT_OK;
}

static void encode_batch(const struct crew *c, const struct dt_row_encoder *e, struct batch *b,
                         struct dt_tokens *scratch)
{
    dt_tokens_clear(&b->tokens);
    b->failure.code = DT_OK;
    for (int64_t i = 0; i < b->row_count; i++) {
        struct batch_row *r = &b->rows[i];
        int rc = encode_row(c, e, b, r, scratch);
        if (rc == DT_OK)
            continue;
        r->count = -1;
        rc = dt_error_context(rc, "%s:%" PRId64, c->source->path, r->line);
        if (b->failure.code == DT_OK) {
            dt_error_save(rc, &b->failure);
            b->failed_row = i;
        }
        if (rc != DT_E_DATA) { /* no bad row but no memory, no template ... */
            dt_error_save(rc, &b->failure);
            break;
        }
    }
}

static void *work(void *argument)
{
    struct crew *c = argument;
    struct dt_tokens scratch = {0};
    struct dt_row_encoder e = {.chat = c->build->chat,
                               .end_of_text = c->build->options->end_of_text,
                               .id_limit = c->build->id_limit};
    int rc = DT_OK;
    if (c->build->options->tokenizer)
        rc = dt_encoder_new(c->build->options->tokenizer, &e.encoder);
    pthread_mutex_lock(&c->mutex);
    if (rc < 0 && c->startup.code == DT_OK)
        dt_error_save(rc, &c->startup);
    while (rc == DT_OK) {
        while (!c->stop && c->next == c->head)
            pthread_cond_wait(&c->ready, &c->mutex);
        if (c->stop)
            break;
        struct batch *b = &c->ring[c->next++ % c->ring_size];
        b->state = BATCH_TAKEN;
        pthread_mutex_unlock(&c->mutex);
        encode_batch(c, &e, b, &scratch);
        pthread_mutex_lock(&c->mutex);
        b->state = BATCH_DONE;
        pthread_cond_signal(&c->done);
    }
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->mutex);
    dt_encoder_free(e.encoder);
    dt_tokens_free(&scratch);
    return NULL;
}

/* ---- reading ---- */

static bool is_empty(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static int add_line(struct batch *b, const char *line, size_t bytes, int64_t number)
{
    if (b->room - b->used < bytes) {
        size_t room = b->used + bytes + BATCH_BYTES;
        char *more = realloc(b->text, room);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold a row of %zu bytes", bytes);
        b->text = more;
        b->room = room;
    }
    if (bytes)
        memcpy(b->text + b->used, line, bytes);
    b->rows[b->row_count++] = (struct batch_row){.start = b->used, .bytes = bytes, .line = number};
    b->used += bytes;
    return DT_OK;
}

/* *more is false when the file, or the number of rows asked for, has ended. */
static int read_batch(const struct crew *c, struct dt_lines *lines, struct batch *b,
                      struct dt_mask_header *totals, bool *more)
{
    int64_t limit = c->build->options->row_limit;
    b->used = 0;
    b->row_count = 0;
    while (b->row_count < BATCH_ROWS && b->used < BATCH_BYTES) {
        const char *line;
        size_t bytes;
        int64_t number;
        if (limit > 0 && totals->rows >= limit)
            *more = false;
        else
            DT_TRY(dt_lines_next(lines, &line, &bytes, &number));
        if (!*more || !line) {
            *more = false;
            break;
        }
        if (is_empty(line, bytes)) {
            totals->empty_lines++;
            continue;
        }
        totals->rows++;
        DT_TRY(add_line(b, line, bytes, number));
    }
    return DT_OK;
}

/* ---- writing ---- */

static int write_batch(const struct crew *c, struct batch *b, struct dt_corpus_writer *w,
                       struct dt_mask_header *totals)
{
    bool fatal = b->failure.code != DT_OK && b->failure.code != DT_E_DATA;
    if (fatal || (b->failure.code != DT_OK && c->build->options->on_bad_row == DT_BAD_ROW_FAIL)) {
        int rc = dt_error_restore(&b->failure);
        return fatal
                   ? rc
                   : DT_FAIL(rc, "%s (on_bad_row: skip leaves such rows out)", b->failure.message);
    }
    for (int64_t i = 0; i < b->row_count; i++) {
        const struct batch_row *r = &b->rows[i];
        if (r->count < 0) {
            bool first = true;
            for (int k = 0; k < DT_BAD_REASONS; k++)
                first = first && totals->skipped[k] == 0;
            if (first)
                dt_warn("skipping bad rows; the first: %s", b->failure.message);
            totals->skipped[r->reason]++;
            continue;
        }
        DT_TRY(dt_corpus_writer_add(w, b->tokens.ids.p + r->first, b->tokens.trains + r->first,
                                    r->count, &r->record));
    }
    return DT_OK;
}

/* ---- together ---- */

static int start_crew(struct crew *c)
{
    int wanted = c->build->options->threads;
    if (wanted <= 0)
        wanted = (int)sysconf(_SC_NPROCESSORS_ONLN);
    wanted = wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
    c->ring_size = 2 * wanted + 2;
    DT_TRY(DT_NEW(&c->ring, c->ring_size));
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->ready, NULL);
    pthread_cond_init(&c->done, NULL);
    for (; c->thread_count < wanted; c->thread_count++)
        if (pthread_create(&c->threads[c->thread_count], NULL, work, c) != 0)
            break;
    if (c->thread_count == 0)
        return DT_FAIL(DT_E_MEMORY, "cannot start a thread to tokenize with");
    return DT_OK;
}

static void end_crew(struct crew *c)
{
    if (!c->ring)
        return;
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    pthread_cond_broadcast(&c->ready);
    pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < c->thread_count; i++)
        pthread_join(c->threads[i], NULL);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->ready);
    pthread_cond_destroy(&c->done);
    for (int64_t i = 0; i < c->ring_size; i++) {
        free(c->ring[i].text);
        dt_tokens_free(&c->ring[i].tokens);
    }
    free(c->ring);
}

/* Waits for the oldest batch and writes it. */
static int write_oldest(struct crew *c, struct dt_corpus_writer *w, struct dt_mask_header *totals)
{
    struct batch *b = &c->ring[c->tail % c->ring_size];
    pthread_mutex_lock(&c->mutex);
    while (b->state != BATCH_DONE && c->startup.code == DT_OK)
        pthread_cond_wait(&c->done, &c->mutex);
    int failed = c->startup.code;
    pthread_mutex_unlock(&c->mutex);
    if (failed)
        return dt_error_restore(&c->startup);
    DT_TRY(write_batch(c, b, w, totals));
    b->state = BATCH_FREE;
    c->tail++;
    return DT_OK;
}

static int run_crew(struct crew *c, struct dt_lines *lines, struct dt_corpus_writer *w,
                    struct dt_mask_header *totals, struct dt_progress *progress)
{
    bool more = true;
    while (more || c->tail < c->head) {
        if (!more || c->head - c->tail == c->ring_size) {
            DT_TRY(write_oldest(c, w, totals));
            dt_progress_update(progress, (double)dt_lines_position(lines), NULL);
            continue;
        }
        struct batch *b = &c->ring[c->head % c->ring_size];
        DT_TRY(read_batch(c, lines, b, totals, &more));
        if (b->row_count == 0)
            continue;
        pthread_mutex_lock(&c->mutex);
        b->state = BATCH_READY;
        c->head++;
        pthread_cond_signal(&c->ready);
        pthread_mutex_unlock(&c->mutex);
    }
    return DT_OK;
}

static int build_text(const struct dt_build *b, struct dt_lines *lines, const char *path,
                      struct dt_corpus_writer *w)
{
    struct dt_row row = {.format = DT_ROW_TEXT};
    struct dt_row_encoder e = {.end_of_text = b->options->end_of_text, .id_limit = b->id_limit};
    struct dt_tokens tokens = {0};
    struct dt_document record;
    int reason, rc;
    if (b->options->tokenizer)
        DT_TRY(dt_encoder_new(b->options->tokenizer, &e.encoder));
    DT_CHECK(done, rc, dt_lines_rest(lines, &row.text.p, &row.text.n));
    rc = dt_row_encode(&e, &row, &tokens, &record, &reason);
    if (rc < 0) {
        dt_error_context(rc, "%s", path);
        goto done;
    }
    DT_CHECK(done, rc, dt_corpus_writer_add(w, tokens.ids.p, NULL, tokens.ids.n, &record));
done:
    dt_encoder_free(e.encoder);
    dt_tokens_free(&tokens);
    return rc;
}

int dt_rows_build(const struct dt_build *b, const struct dt_source *source,
                  struct dt_corpus_writer *w, struct dt_mask_header *totals)
{
    struct dt_lines *lines;
    size_t size;
    DT_TRY(dt_file_size(source->path, &size));
    DT_TRY(dt_lines_open(source->path, &lines));
    char title[256];
    snprintf(title, sizeof title, "tokenizing %s", dt_path_basename(source->path));
    struct dt_progress progress;
    dt_progress_begin(&progress, title, "bytes", (double)size);
    struct crew crew = {.build = b, .source = source};
    int rc;
    if (source->kind == DT_SOURCE_TEXT) {
        DT_CHECK(done, rc, build_text(b, lines, source->path, w));
        totals->rows++;
    } else {
        DT_CHECK(done, rc, start_crew(&crew));
        DT_CHECK(done, rc, run_crew(&crew, lines, w, totals, &progress));
    }
done:
    end_crew(&crew);
    dt_progress_end(&progress);
    dt_lines_close(lines);
    return rc;
}
