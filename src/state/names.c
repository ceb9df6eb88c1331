#include "state/names.h"

#include "base/error.h"
#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

void dt_save_id(char out[24])
{
    uint64_t id;
    if (getrandom(&id, sizeof id, GRND_NONBLOCK) != (ssize_t)sizeof id) {
        struct timespec now; /* early in boot there is no randomness yet */
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t seed[3] = {(uint64_t)now.tv_sec, (uint64_t)now.tv_nsec, (uint64_t)getpid()};
        id = dt_hash(seed, sizeof seed);
    }
    snprintf(out, 24, "%016" PRIx64, id);
}

int dt_step_path(char out[DT_PATH], const char *dir, const char *prefix, const char *id,
                 int64_t step)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s%sstep-%08" PRId64, prefix, id, prefix[0] ? "-" : "", step);
    return dt_path_join(out, dir, name);
}

bool dt_step_parse(const char *name, const char *prefix, int64_t *step)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0)
        return false;
    name += n;
    if (n) {
        size_t id = strspn(name, "0123456789abcdef");
        if (id == 0 || name[id] != '-')
            return false;
        name += id + 1;
    }
    if (strncmp(name, "step-", 5) != 0)
        return false;
    name += 5;
    size_t digits = strspn(name, "0123456789");
    if (digits == 0 || digits > 18 || name[digits])
        return false;
    *step = strtoll(name, NULL, 10);
    return true;
}

int dt_checkpoint_discard(const char *dir, const char *path)
{
    const char *name = strstr(dt_path_basename(path), "step-");
    char id[24], gone[DT_PATH];
    int64_t step = 0;
    if (!name || !dt_step_parse(name, "", &step))
        return DT_FAIL(DT_E_INTERNAL, "%s is no checkpoint to delete", path);
    dt_save_id(id);
    DT_TRY(dt_step_path(gone, dir, DT_NAME_DELETE, id, step));
    DT_TRY(dt_rename(path, gone));
    return dt_remove_tree(gone);
}
