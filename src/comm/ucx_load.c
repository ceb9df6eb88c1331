#include "comm/ucx_load.h"

#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static struct comm__ucx table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static int find(void *ucp, void *ucs, const char *name, void *out)
{
    void *f = dlsym(ucp, name);
    if (!f)
        f = dlsym(ucs, name);
    if (!f)
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "the UCX library on this machine lacks %s; version 1.13 or later is needed",
                       name);
    memcpy(out, &f, sizeof f);
    return DT_OK;
}

static int load(void)
{
    void *ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL);
    void *ucp = ucs ? dlopen("libucp.so.0", RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!ucp)
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "several workers need UCX, which cannot be loaded (%s); install libucx0",
                       dlerror());
#define X(name) DT_TRY(find(ucp, ucs, #name, &table.name));
    COMM__UCX_FUNCTIONS(X)
#undef X
    loaded = true;
    return DT_OK;
}

int comm__ucx_load(const struct comm__ucx **out)
{
    pthread_mutex_lock(&lock);
    int rc = loaded ? DT_OK : load();
    pthread_mutex_unlock(&lock);
    *out = &table;
    return rc;
}
