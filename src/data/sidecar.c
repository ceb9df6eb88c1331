/* PREFIX.mask: what Megatron's two files cannot say about a corpus.
 *
 * Which tokens train, how many bytes of text stand behind them, from which line a document came,
 * and the checksums of all three files, so that a damaged or mixed-up corpus is noticed when it is
 * opened and not by a strange loss. */
#include "base/error.h"
#include "data/corpus.h"

#include <inttypes.h>
#include <string.h>

const char *const dt_bad_reasons[DT_BAD_REASONS] = {
    "not valid JSON", "missing or wrong keys", "wrong ids or labels",
    "turns that cannot be written", "nothing to train on"};

const char dt_mask_magic[8] = "DTMASK\0\1";

uint64_t dt_mask_checksum(const struct dt_mask_header *header, uint64_t body_hash)
{
    struct dt_mask_header h = *header;
    h.hash = 0;
    return body_hash ^ dt_hash(&h, sizeof h) * UINT64_C(0x9e3779b97f4a7c15);
}

int dt_mask_parse(const unsigned char *data, size_t size, const char *path, struct dt_mask *out)
{
    *out = (struct dt_mask){0};
    struct dt_mask_header *h = &out->header;
    if (size < sizeof *h || memcmp(data, dt_mask_magic, sizeof dt_mask_magic) != 0)
        return DT_FAIL(DT_E_DATA,
                       "%s: not a mask file of this version; remove it or build the corpus "
                       "again",
                       path);
    memcpy(h, data, sizeof *h);
    const unsigned char *body = data + sizeof *h;
    size_t rest = size - sizeof *h;
    if (h->documents < 0 || (uint64_t)h->documents > rest / sizeof(struct dt_document) ||
        h->tokens < 0 || (uint64_t)h->tokens > h->bin_bytes)
        return DT_FAIL(DT_E_DATA,
                       "%s: %" PRId64 " documents and %" PRId64 " tokens do not fit its %zu "
                       "bytes; it is damaged or cut off",
                       path, h->documents, h->tokens, size);
    size_t bits = h->has_bits ? ((size_t)h->tokens + 63) / 64 * 8 : 0;
    size_t records = (size_t)h->documents * sizeof(struct dt_document);
    if (bits > rest || records != rest - bits)
        return DT_FAIL(DT_E_DATA, "%s: has %zu bytes, %zu were expected; it is damaged or cut off",
                       path, size, sizeof *h + bits + records);
    if (dt_mask_checksum(h, dt_hash(body, rest)) != h->hash ||
        memchr(h->format, 0, sizeof h->format) == NULL ||
        memchr(h->chat_template, 0, sizeof h->chat_template) == NULL)
        return DT_FAIL(DT_E_DATA, "%s: its checksum is wrong; build the corpus again", path);
    out->bits = h->has_bits ? body : NULL;
    out->records = body + bits;
    return DT_OK;
}

void dt_mask_record(const struct dt_mask *m, int64_t document, struct dt_document *out)
{
    memcpy(out, m->records + (size_t)document * sizeof *out, sizeof *out);
}

int64_t dt_mask_count(const unsigned char *bits, int64_t first, int64_t count)
{
    int64_t n = 0, i = first, end = first + count;
    for (; i < end && i % 8 != 0; i++)
        n += bits[i / 8] >> (i % 8) & 1;
    for (; i + 8 <= end; i += 8)
        n += __builtin_popcount(bits[i / 8]);
    for (; i < end; i++)
        n += bits[i / 8] >> (i % 8) & 1;
    return n;
}
