/* Documents of all files as one list of samples.
 *
 * A text document of n tokens has n - 1 predictions; they are cut into pieces of at most
 * max_length, so piece k reads the tokens [k M, (k+1) M] and its first token is the last one of the
 * piece before. A fine-tuning row is one sample, truncated. Only 24 bytes a document are held;
 * everything else is computed from the mapped index. */
#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct document_ref {
    int64_t first_sample, document;
    int64_t source; /* index of the corpus */
};

struct dt_dataset {
    struct dt_corpus **corpora;
    int64_t corpus_count;
    int64_t max_length;
    struct document_ref *refs; /* ref_count + 1: the last is the end */
    int64_t ref_count, ref_room;
    int64_t samples, tokens, loss_tokens, bytes;
    uint64_t hash;
};

struct file_counts {
    int64_t kept, held_out, truncated, cut_off, dropped, tokens, loss;
};

static bool is_held_out(const struct dt_data_options *o, uint64_t document_hash)
{
    struct dt_rng_key key = {o->seed, DT_RNG_SPLIT, 0, document_hash};
    return dt_rng_uniform(key, 0) < o->eval_fraction;
}

/* Without a sidecar the identity of a document has to be computed. */
static int document_hash(const struct dt_corpus *c, int64_t document, const struct dt_document *r,
                         uint64_t *out)
{
    *out = r->hash;
    if (c->has_mask)
        return DT_OK;
    int64_t n = dt_corpus_length(c, document);
    int32_t *ids = malloc((size_t)n * sizeof *ids + 1);
    if (!ids)
        return DT_FAIL(DT_E_MEMORY, "cannot read a document of %" PRId64 " tokens", n);
    dt_corpus_read(c, document, 0, n, ids, NULL);
    *out = dt_hash(ids, (size_t)n * sizeof *ids);
    free(ids);
    return DT_OK;
}

static int push_ref(struct dt_dataset *d, struct document_ref ref)
{
    if (d->ref_count + 1 >= d->ref_room) {
        int64_t room = 2 * d->ref_room + 256;
        void *more = realloc(d->refs, (size_t)room * sizeof *d->refs);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold the list of %" PRId64 " documents", room);
        d->refs = more;
        d->ref_room = room;
    }
    d->refs[d->ref_count++] = ref;
    d->refs[d->ref_count] = (struct document_ref){.first_sample = d->samples};
    return DT_OK;
}

static int bad_document(const struct dt_corpus *c, int64_t document, const struct dt_document *r,
                        int64_t length, int64_t kept)
{
    char where[64];
    snprintf(where, sizeof where, r->line ? "line %" PRId64 : "document %" PRId64,
             r->line ? r->line : document);
    if (kept < length)
        return DT_FAIL(DT_E_DATA,
                       "%s, %s: cut to max_length %" PRId64 " it has nothing left to train on; "
                       "raise data.max_length or leave such rows out with on_bad_row: skip",
                       dt_path_basename(c->prefix), where, kept - 1);
    return DT_FAIL(DT_E_DATA,
                   "%s, %s: %" PRId64 " token%s and nothing to train on; leave such rows out "
                   "with on_bad_row: skip",
                   dt_path_basename(c->prefix), where, length, length == 1 ? "" : "s");
}

static int add_document(struct dt_dataset *d, const struct dt_data_options *o, int64_t source,
                        int64_t document, struct file_counts *counts)
{
    const struct dt_corpus *c = d->corpora[source];
    struct dt_document r;
    dt_corpus_document(c, document, &r);
    if (o->part != DT_PART_ALL && o->eval_fraction > 0) {
        uint64_t hash;
        DT_TRY(document_hash(c, document, &r, &hash));
        if (is_held_out(o, hash) != (o->part == DT_PART_EVAL)) {
            counts->held_out++;
            return DT_OK;
        }
    }
    bool row = r.flags & DT_DOCUMENT_ROW;
    int64_t n = dt_corpus_length(c, document), kept = n;
    if (row && n > o->max_length + 1)
        kept = o->max_length + 1;
    int64_t loss = kept < n ? dt_corpus_loss(c, document, kept) : r.loss;
    if (loss < 1) {
        if (o->on_bad_row == DT_BAD_ROW_FAIL)
            return bad_document(c, document, &r, n, kept);
        counts->dropped++;
        return DT_OK;
    }
    counts->truncated += kept < n;
    counts->cut_off += n - kept;
    counts->kept++;
    counts->tokens += kept - 1;
    counts->loss += loss;
    d->bytes = d->bytes < 0 || r.bytes < 0 || kept < n ? -1 : d->bytes + r.bytes;
    struct document_ref ref = {d->samples, document, source};
    d->samples += row ? 1 : (n - 1 + o->max_length - 1) / o->max_length;
    return push_ref(d, ref);
}

static void tell(const struct dt_corpus *c, const char *path, const struct file_counts *n)
{
    struct dt_corpus_info info;
    char words[1024];
    int used = 0;
    dt_corpus_describe(c, &info);
    words[0] = '\0';
#define ADD(...) used += snprintf(words + used, sizeof words - (size_t)used, __VA_ARGS__)
    for (int i = 0; info.skipped > 0 && i < DT_BAD_REASONS; i++)
        if (c->mask.header.skipped[i])
            ADD("; %" PRId64 " rows skipped: %s", c->mask.header.skipped[i], dt_bad_reasons[i]);
    if (n->dropped)
        ADD("; %" PRId64 " dropped, nothing to train on", n->dropped);
    if (n->truncated)
        ADD("; %" PRId64 " truncated, losing %" PRId64 " tokens", n->truncated, n->cut_off);
    if (n->held_out)
        ADD("; %" PRId64 " belong to the other part", n->held_out);
    if (info.empty_lines > 0)
        ADD("; %" PRId64 " empty lines", info.empty_lines);
    if (!c->has_mask)
        ADD("; no .mask beside it: every token trains");
#undef ADD
    dt_info("%s: %s%s%s%s, %" PRId64 " documents, %" PRId64 " tokens, %" PRId64 " of them train%s",
            path, info.format[0] ? info.format : "corpus", info.chat_template[0] ? " (" : "",
            info.chat_template, info.chat_template[0] ? ")" : "", n->kept, n->tokens, n->loss,
            words);
}

static int check_vocabulary(const struct dt_corpus *c, const char *path, int64_t vocab_size)
{
    if (vocab_size <= 0 || c->max_id < vocab_size)
        return DT_OK;
    return DT_FAIL(DT_E_DATA,
                   "%s: holds the id %" PRId64 ", the model's vocabulary has %" PRId64
                   "; it was made with another tokenizer",
                   path, c->max_id, vocab_size);
}

static int add_file(struct dt_dataset *d, const struct dt_data_options *o, int64_t i)
{
    struct file_counts counts = {0};
    DT_TRY(dt_corpus_of_file(o, o->files[i], &d->corpora[i]));
    d->corpus_count = i + 1;
    const struct dt_corpus *c = d->corpora[i];
    DT_TRY(check_vocabulary(c, o->files[i], o->vocab_size));
    for (int64_t k = 0; k < c->idx.documents; k++)
        DT_TRY(add_document(d, o, i, k, &counts));
    d->tokens += counts.tokens;
    d->loss_tokens += counts.loss;
    uint64_t parts[2] = {d->hash, c->hash};
    d->hash = dt_hash(parts, sizeof parts);
    dt_corpus_forget(c);
    tell(c, o->files[i], &counts);
    return DT_OK;
}

static int check_options(const struct dt_data_options *o)
{
    if (o->file_count < 1)
        return DT_FAIL(DT_E_CONFIG, "no data file is given");
    if (o->max_length < 1)
        return DT_FAIL(DT_E_CONFIG, "data.max_length is %" PRId64 ", expected at least 1",
                       o->max_length);
    if (!(o->eval_fraction >= 0 && o->eval_fraction < 1))
        return DT_FAIL(DT_E_CONFIG, "data.eval_fraction is %g, expected at least 0 and below 1",
                       o->eval_fraction);
    return DT_OK;
}

static int check_not_empty(const struct dt_dataset *d, const struct dt_data_options *o)
{
    if (d->samples > 0)
        return DT_OK;
    if (o->part == DT_PART_ALL || o->eval_fraction <= 0)
        return DT_FAIL(DT_E_DATA, "%s%s: nothing to train on is left", o->files[0],
                       o->file_count > 1 ? " and the other files" : "");
    return DT_FAIL(DT_E_DATA,
                   "data.eval_fraction %g leaves the %s part without a document: there are too "
                   "few; name files in data.eval instead",
                   o->eval_fraction, o->part == DT_PART_EVAL ? "evaluation" : "training");
}

int dt_dataset_open(const struct dt_data_options *o, struct dt_dataset **out)
{
    struct dt_dataset *d;
    int rc;
    *out = NULL;
    DT_TRY(check_options(o));
    DT_TRY(DT_NEW(&d, 1));
    d->max_length = o->max_length;
    DT_CHECK(failed, rc, DT_NEW(&d->corpora, o->file_count));
    for (int64_t i = 0; i < o->file_count; i++)
        DT_CHECK(failed, rc, add_file(d, o, i));
    DT_CHECK(failed, rc, check_not_empty(d, o));
    uint64_t fraction = 0;
    memcpy(&fraction, &o->eval_fraction, sizeof fraction);
    bool split = o->part != DT_PART_ALL && o->eval_fraction > 0;
    uint64_t parts[5] = {d->hash, (uint64_t)o->max_length, split ? (uint64_t)o->part : 0,
                         split ? fraction : 0, split ? o->seed : 0};
    d->hash = dt_hash(parts, sizeof parts);
    *out = d;
    return DT_OK;
failed:
    dt_dataset_close(d);
    return rc;
}

void dt_dataset_forget(const struct dt_dataset *d)
{
    for (int64_t i = 0; i < d->corpus_count; i++)
        dt_corpus_forget(d->corpora[i]);
}

void dt_dataset_close(struct dt_dataset *d)
{
    if (!d)
        return;
    for (int64_t i = 0; i < d->corpus_count; i++)
        dt_corpus_close(d->corpora[i]);
    free(d->corpora);
    free(d->refs);
    free(d);
}

int64_t dt_dataset_samples(const struct dt_dataset *d)
{
    return d->samples;
}

int64_t dt_dataset_tokens(const struct dt_dataset *d)
{
    return d->tokens;
}

int64_t dt_dataset_loss_tokens(const struct dt_dataset *d)
{
    return d->loss_tokens;
}

int64_t dt_dataset_bytes(const struct dt_dataset *d)
{
    return d->bytes > 0 ? d->bytes : 0;
}

uint64_t dt_dataset_hash(const struct dt_dataset *d)
{
    return d->hash;
}

/* Document of a sample, and the range of its input tokens. */
static const struct document_ref *locate(const struct dt_dataset *d, int64_t sample,
                                         const struct dt_corpus **c, int64_t *first,
                                         int64_t *length)
{
    int64_t low = 0, high = d->ref_count; /* refs[low] starts at or before the sample */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (d->refs[middle].first_sample <= sample)
            low = middle;
        else
            high = middle;
    }
    const struct document_ref *r = &d->refs[low];
    *c = d->corpora[r->source];
    int64_t inputs = dt_corpus_length(*c, r->document) - 1;
    *first = (sample - r->first_sample) * d->max_length;
    *length = inputs - *first < d->max_length ? inputs - *first : d->max_length;
    return r;
}

int64_t dt_dataset_length(const struct dt_dataset *d, int64_t sample)
{
    const struct dt_corpus *c;
    int64_t first, length;
    locate(d, sample, &c, &first, &length);
    return length;
}

void dt_dataset_read(const struct dt_dataset *d, int64_t sample, int32_t *ids, int32_t *targets)
{
    const struct dt_corpus *c;
    int64_t first, length;
    const struct document_ref *r = locate(d, sample, &c, &first, &length);
    dt_corpus_read(c, r->document, first, length, ids, NULL);
    for (int64_t i = 0; i < length;) {
        enum { PART = 256 };
        uint8_t trains[PART];
        int64_t n = length - i < PART ? length - i : PART;
        dt_corpus_read(c, r->document, first + i + 1, n, targets + i, trains);
        for (int64_t k = 0; k < n; k++)
            targets[i + k] = trains[k] ? targets[i + k] : -1;
        i += n;
    }
}
