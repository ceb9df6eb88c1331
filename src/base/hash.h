/* XXH3, 64 bits: checksums of files, identities of plans and configs. Not for secrets. */
#ifndef DT_BASE_HASH_H
#define DT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t dt_hash(const void *data, size_t size);

struct dt_hasher;                      /* streaming */
struct dt_hasher *dt_hasher_new(void); /* NULL when out of memory */
void dt_hasher_reset(struct dt_hasher *h);
void dt_hasher_add(struct dt_hasher *h, const void *data, size_t size);
uint64_t dt_hasher_value(const struct dt_hasher *h);
void dt_hasher_free(struct dt_hasher *h);

#endif
