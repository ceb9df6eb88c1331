#include "base/hash.h"

#include <xxhash.h>

/* struct dt_hasher is the library's own state under our name. */
#define STATE(h) ((XXH3_state_t *)(void *)(h))

uint64_t dt_hash(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

struct dt_hasher *dt_hasher_new(void)
{
    XXH3_state_t *s = XXH3_createState();
    if (s)
        XXH3_64bits_reset(s);
    return (struct dt_hasher *)(void *)s;
}

void dt_hasher_reset(struct dt_hasher *h)
{
    XXH3_64bits_reset(STATE(h));
}

void dt_hasher_add(struct dt_hasher *h, const void *data, size_t size)
{
    XXH3_64bits_update(STATE(h), data, size);
}

uint64_t dt_hasher_value(const struct dt_hasher *h)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)h);
}

void dt_hasher_free(struct dt_hasher *h)
{
    if (h)
        XXH3_freeState(STATE(h));
}
