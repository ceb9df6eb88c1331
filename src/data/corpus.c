/* An open corpus: two or three mapped files that were checked against each other.
 *
 * With a sidecar the checksums are compared (one pass over the .bin at memory speed). Without one
 * the same pass finds the largest id, so that nobody meets a token outside of the vocabulary later.
 */
#include "data/corpus.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t token_at(const struct dt_corpus *c, size_t offset)
{
    if (c->idx.item == 2) {
        uint16_t v;
        memcpy(&v, c->bin_map.data + offset, sizeof v);
        return v;
    }
    int32_t v;
    memcpy(&v, c->bin_map.data + offset, sizeof v);
    return v;
}

static int check_tokens(struct dt_corpus *c)
{
    int64_t low = 0, high = -1;
    for (size_t at = 0; at < c->bin_map.size; at += c->idx.item) {
        int64_t v = token_at(c, at);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    if (low < 0)
        return DT_FAIL(DT_E_DATA, "%s.bin: holds the id %" PRId64 ", ids are at least 0", c->prefix,
                       low);
    c->max_id = high;
    return DT_OK;
}

static int check_mask(struct dt_corpus *c, uint64_t bin_hash, uint64_t idx_hash)
{
    const struct dt_mask_header *h = &c->mask.header;
    if (h->bin_bytes != c->bin_map.size || h->documents != c->idx.documents ||
        h->item != c->idx.item || h->tokens != c->tokens)
        return DT_FAIL(DT_E_DATA,
                       "%s.mask: was made for a .bin of %" PRIu64 " bytes and %" PRId64
                       " documents, here are %zu and %" PRId64
                       "; remove it or build the corpus again",
                       c->prefix, h->bin_bytes, h->documents, c->bin_map.size, c->idx.documents);
    if (h->bin_hash != bin_hash || h->idx_hash != idx_hash)
        return DT_FAIL(DT_E_DATA,
                       "%s%s: is not what it was when %s.mask was written (checksum); build "
                       "the corpus again",
                       c->prefix, h->bin_hash != bin_hash ? ".bin" : ".idx", c->prefix);
    c->max_id = h->max_id;
    c->loss_tokens = h->loss_tokens;
    return DT_OK;
}

static int open_files(struct dt_corpus *c)
{
    char path[DT_PATH + 8];
    snprintf(path, sizeof path, "%s.bin", c->prefix);
    DT_TRY(dt_file_map(path, &c->bin_map));
    snprintf(path, sizeof path, "%s.idx", c->prefix);
    DT_TRY(dt_file_map(path, &c->idx_map));
    DT_TRY(dt_idx_parse(c->idx_map.data, c->idx_map.size, c->bin_map.size, path, &c->idx));
    c->tokens = (int64_t)(c->bin_map.size / c->idx.item);
    uint64_t bin_hash, idx_hash;
    DT_TRY(dt_map_hash(&c->bin_map, &bin_hash));
    DT_TRY(dt_map_hash(&c->idx_map, &idx_hash));
    uint64_t parts[3] = {bin_hash, idx_hash, 0};
    snprintf(path, sizeof path, "%s.mask", c->prefix);
    c->has_mask = dt_file_exists(path);
    if (c->has_mask) {
        DT_TRY(dt_file_map(path, &c->mask_map));
        DT_TRY(dt_mask_parse(c->mask_map.data, c->mask_map.size, path, &c->mask));
        DT_TRY(check_mask(c, bin_hash, idx_hash));
        parts[2] = c->mask.header.hash;
    } else {
        DT_TRY(check_tokens(c));
        for (int64_t d = 0; d < c->idx.documents; d++) {
            int64_t n = dt_corpus_length(c, d);
            c->loss_tokens += n > 1 ? n - 1 : 0;
        }
    }
    c->hash = dt_hash(parts, sizeof parts);
    return DT_OK;
}

void dt_corpus_forget(const struct dt_corpus *c)
{
    dt_map_forget(&c->bin_map);
    dt_map_forget(&c->idx_map);
    dt_map_forget(&c->mask_map);
}

int dt_corpus_open(const char *prefix, struct dt_corpus **out)
{
    struct dt_corpus *c = calloc(1, sizeof *c);
    if (!c)
        return DT_FAIL(DT_E_MEMORY, "cannot allocate a corpus");
    size_t n = strlen(prefix);
    if (dt_path_ends_with(prefix, ".bin") || dt_path_ends_with(prefix, ".idx"))
        n -= 4;
    int rc;
    if (n >= sizeof c->prefix - 32) {
        rc = DT_FAIL(DT_E_USAGE, "the path %.80s... is too long", prefix);
        goto failed;
    }
    memcpy(c->prefix, prefix, n);
    DT_CHECK(failed, rc, open_files(c));
    *out = c;
    return DT_OK;
failed:
    dt_corpus_close(c);
    return rc;
}

void dt_corpus_close(struct dt_corpus *c)
{
    if (!c)
        return;
    dt_file_unmap(&c->bin_map);
    dt_file_unmap(&c->idx_map);
    dt_file_unmap(&c->mask_map);
    if (c->temporary) {
        char dir[DT_PATH];
        if (dt_path_dirname(dir, c->prefix) == DT_OK)
            (void)dt_remove_tree(dir); /* made by us for this corpus alone */
    }
    free(c);
}

void dt_corpus_describe(const struct dt_corpus *c, struct dt_corpus_info *out)
{
    const struct dt_mask_header *h = &c->mask.header;
    *out = (struct dt_corpus_info){.format = h->format, /* "" without a sidecar */
                                   .chat_template = h->chat_template,
                                   .dtype = c->idx.item == 2 ? "U16" : "I32",
                                   .documents = c->idx.documents,
                                   .tokens = c->tokens,
                                   .loss_tokens = c->loss_tokens,
                                   .bytes = c->has_mask ? h->bytes : -1,
                                   .rows = c->has_mask ? h->rows : -1,
                                   .empty_lines = c->has_mask ? h->empty_lines : -1,
                                   .skipped = c->has_mask ? 0 : -1,
                                   .max_id = c->max_id,
                                   .has_masks = c->mask.bits != NULL,
                                   .hash = c->hash};
    for (int i = 0; c->has_mask && i < DT_BAD_REASONS; i++)
        out->skipped += h->skipped[i];
}

int64_t dt_corpus_length(const struct dt_corpus *c, int64_t document)
{
    size_t offset;
    int64_t length;
    dt_idx_document(&c->idx, document, &offset, &length);
    return length;
}

void dt_corpus_read(const struct dt_corpus *c, int64_t document, int64_t first, int64_t count,
                    int32_t *ids, uint8_t *trains)
{
    size_t offset;
    int64_t length;
    dt_idx_document(&c->idx, document, &offset, &length);
    offset += (size_t)first * c->idx.item;
    for (int64_t i = 0; i < count; i++)
        ids[i] = token_at(c, offset + (size_t)i * c->idx.item);
    if (!trains)
        return;
    size_t token = offset / c->idx.item;
    for (int64_t i = 0; i < count; i++) {
        size_t t = token + (size_t)i;
        trains[i] = (uint8_t)(c->mask.bits ? c->mask.bits[t / 8] >> (t % 8) & 1 : 1);
    }
    if (first == 0 && count > 0)
        trains[0] = 0; /* nothing stands before it that could predict it */
}

void dt_corpus_document(const struct dt_corpus *c, int64_t document, struct dt_document *out)
{
    *out = (struct dt_document){.bytes = -1};
    if (c->has_mask) {
        dt_mask_record(&c->mask, document, out);
        return;
    }
    int64_t n = dt_corpus_length(c, document);
    out->loss = n > 1 ? n - 1 : 0;
}

int64_t dt_corpus_loss(const struct dt_corpus *c, int64_t document, int64_t length)
{
    size_t offset;
    int64_t n;
    dt_idx_document(&c->idx, document, &offset, &n);
    length = length < n ? length : n;
    if (length < 2)
        return 0;
    if (!c->mask.bits)
        return length - 1;
    return dt_mask_count(c->mask.bits, (int64_t)(offset / c->idx.item) + 1, length - 1);
}
