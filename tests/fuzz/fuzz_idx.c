/* The Megatron index and our sidecar. Layout of an input: two bytes, the size of a .bin in tokens
 * of two bytes; then an index; or, when the first byte is 255, a sidecar, whose checksum is made
 * right first so that what stands behind it is reached. Whatever is accepted must only point inside
 * of the files. covers: src/data/megatron.c src/data/sidecar.c */
#include "base/error.h"
#include "data/corpus.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_index(const uint8_t *data, size_t size, size_t bin_size)
{
    struct dt_idx x;
    if (dt_idx_parse(data, size, bin_size, "fuzz.idx", &x) != DT_OK)
        return;
    for (int64_t d = 0; d < x.documents; d++) {
        size_t offset;
        int64_t length;
        dt_idx_document(&x, d, &offset, &length);
        if (length < 0 || offset > bin_size || (size_t)length > (bin_size - offset) / x.item)
            abort();
    }
}

static void use_mask(const uint8_t *data, size_t size)
{
    struct dt_mask m;
    struct dt_mask_header h;
    if (dt_mask_parse(data, size, "fuzz.mask", &m) == DT_OK || size < sizeof h)
        return;
    uint8_t *copy = malloc(size);
    if (!copy)
        return;
    memcpy(copy, data, size);
    memcpy(&h, copy, sizeof h);
    memcpy(h.magic, dt_mask_magic, sizeof h.magic);
    h.hash = dt_mask_checksum(&h, dt_hash(copy + sizeof h, size - sizeof h));
    memcpy(copy, &h, sizeof h);
    if (dt_mask_parse(copy, size, "fuzz.mask", &m) == DT_OK) {
        struct dt_document r;
        for (int64_t d = 0; d < m.header.documents; d++)
            dt_mask_record(&m, d, &r);
        if (m.bits && dt_mask_count(m.bits, 0, m.header.tokens) > m.header.tokens)
            abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t bin_size = 2 * ((size_t)data[0] | (size_t)data[1] << 8);
    if (data[0] == 255)
        use_mask(data + 2, size - 2);
    else
        use_index(data + 2, size - 2, bin_size);
    return 0;
}
