/* The index of a Megatron corpus, checked once so that nobody has to check again.
 *
 * Everything in the file is a claim: counts, sizes and pointers are compared with the length of
 * both files before anything is read through them, in 64 bits and without sums that could overflow.
 */
#include "base/error.h"
#include "data/corpus.h"

#include <inttypes.h>
#include <string.h>

static const char idx_magic[9] = "MMIDIDX\0";

static uint64_t load_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static int64_t load_i64(const unsigned char *base, int64_t i)
{
    return (int64_t)load_u64(base + 8 * (size_t)i);
}

static int64_t load_i32(const unsigned char *base, int64_t i)
{
    const unsigned char *p = base + 4 * (size_t)i;
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

static int parse_dtype(int code, const char *path, size_t *item)
{
    static const char *const names[] = {"?",     "uint8",   "int8",    "int16", "int32",
                                        "int64", "float64", "float32", "uint16"};
    *item = code == 8 ? 2 : 4;
    if (code == 4 || code == 8)
        return DT_OK;
    if (code >= 1 && code <= 7)
        return DT_FAIL(DT_E_DATA,
                       "%s: tokens of dtype %s (code %d); only uint16 (8) and int32 (4) are read",
                       path, names[code], code);
    return DT_FAIL(DT_E_DATA, "%s: unknown dtype code %d; uint16 is 8 and int32 is 4", path, code);
}

/* Header and lengths; afterwards the three arrays lie inside of the file. */
static int parse_header(const unsigned char *data, size_t size, const char *path,
                        struct dt_idx *out)
{
    if (size < DT_IDX_HEADER || memcmp(data, idx_magic, sizeof idx_magic) != 0)
        return DT_FAIL(DT_E_DATA,
                       "%s: %s; a Megatron index begins with MMIDIDX and has at least %d bytes",
                       path, size < DT_IDX_HEADER ? "too short" : "not an index", DT_IDX_HEADER);
    uint64_t version = load_u64(data + 9);
    if (version != 1)
        return DT_FAIL(DT_E_DATA, "%s: version %" PRIu64 " of the index format; only 1 is known",
                       path, version);
    DT_TRY(parse_dtype(data[17], path, &out->item));
    uint64_t sequences = load_u64(data + 18), marks = load_u64(data + 26);
    size_t rest = size - DT_IDX_HEADER;
    if (sequences > rest / 12 || marks < 1 || marks > (rest - 12 * sequences) / 8 ||
        12 * sequences + 8 * marks != rest) {
        bool modes = sequences <= rest / 13 && marks <= rest / 8 &&
                     13 * sequences + 8 * marks == rest && sequences > 0;
        return DT_FAIL(DT_E_DATA,
                       "%s: %" PRIu64 " sequences and %" PRIu64
                       " document marks do not fit its %zu "
                       "bytes%s; it is damaged or cut off",
                       path, sequences, marks, size,
                       modes ? " (sequence modes of a multimodal corpus are not supported)" : "");
    }
    out->sequences = (int64_t)sequences;
    out->documents = (int64_t)marks - 1;
    out->sizes = data + DT_IDX_HEADER;
    out->pointers = out->sizes + 4 * sequences;
    out->firsts = out->pointers + 8 * sequences;
    return DT_OK;
}

static int check_sequences(const struct dt_idx *x, size_t bin_size, const char *path)
{
    size_t end = 0;
    for (int64_t i = 0; i < x->sequences; i++) {
        int64_t tokens = load_i32(x->sizes, i), at = load_i64(x->pointers, i);
        if (tokens < 0 || at < 0 || (size_t)at % x->item != 0 || (size_t)at > bin_size ||
            (size_t)tokens > (bin_size - (size_t)at) / x->item)
            return DT_FAIL(DT_E_DATA,
                           "%s: sequence %" PRId64 " claims %" PRId64 " tokens at byte %" PRId64
                           " of a .bin of %zu bytes; the two files do not belong together",
                           path, i, tokens, at, bin_size);
        size_t last = (size_t)at + (size_t)tokens * x->item;
        end = last > end ? last : end;
    }
    if (end != bin_size)
        return DT_FAIL(DT_E_DATA,
                       "%s: its sequences end at byte %zu, the .bin has %zu; the two files do not "
                       "belong together",
                       path, end, bin_size);
    return DT_OK;
}

static int check_documents(const struct dt_idx *x, const char *path)
{
    int64_t before = 0;
    for (int64_t d = 0; d <= x->documents; d++) {
        int64_t first = load_i64(x->firsts, d);
        bool wrong = d == 0 ? first != 0 : first < before || first > x->sequences;
        if (wrong || (d == x->documents && first != x->sequences))
            return DT_FAIL(DT_E_DATA,
                           "%s: document mark %" PRId64 " is sequence %" PRId64 " of %" PRId64
                           "; marks rise from 0 to the number of sequences",
                           path, d, first, x->sequences);
        for (int64_t i = before + 1; i < first; i++) {
            int64_t want =
                load_i64(x->pointers, i - 1) + load_i32(x->sizes, i - 1) * (int64_t)x->item;
            if (load_i64(x->pointers, i) != want)
                return DT_FAIL(DT_E_DATA,
                               "%s: sequence %" PRId64 " of document %" PRId64
                               " does not follow the one before it; such an index is not supported",
                               path, i, d - 1);
        }
        before = first;
    }
    return DT_OK;
}

int dt_idx_parse(const unsigned char *data, size_t size, size_t bin_size, const char *path,
                 struct dt_idx *out)
{
    *out = (struct dt_idx){0};
    DT_TRY(parse_header(data, size, path, out));
    DT_TRY(check_sequences(out, bin_size, path));
    return check_documents(out, path);
}

void dt_idx_document(const struct dt_idx *x, int64_t document, size_t *offset, int64_t *length)
{
    int64_t first = load_i64(x->firsts, document), end = load_i64(x->firsts, document + 1);
    *offset = 0;
    *length = 0;
    if (first == end)
        return;
    int64_t last = load_i64(x->pointers, end - 1) + load_i32(x->sizes, end - 1) * (int64_t)x->item;
    *offset = (size_t)load_i64(x->pointers, first);
    *length = (last - (int64_t)*offset) / (int64_t)x->item;
}
