/* The one OpenMP team: its size, and how work is cut for it.
 *
 * A region of one thread is never opened: libgomp allocates a new team whenever the size changes
 * from region to region, and a step must not allocate. */
#include "ops/cpu/parallel.h"

#include "ops/ops.h"

#include <omp.h>

static int team; /* 0: not set, OpenMP's own default */
static _Thread_local bool serial;

void dt_ops_set_threads(int threads)
{
    team = threads < 1 ? 1 : threads;
    omp_set_dynamic(0);
    omp_set_num_threads(team);
    if (team == 1)
        return;
    int opened = 0;
#pragma omp parallel num_threads(team)
#pragma omp atomic
    opened++;
    team = opened; /* fewer when the system has no more threads to give */
}

void dt_ops_assume_threads(int threads)
{
    team = threads < 1 ? 1 : threads;
}

int dt_ops_threads(void)
{
    return serial ? 1 : team ? team : omp_get_max_threads();
}

void dt_ops_serial(bool on)
{
    serial = on;
}

void dt_parallel(int64_t n, int64_t unit, int64_t elements, dt_range_fn *f, const void *arg)
{
    int64_t units = (n + unit - 1) / unit;
    if (n <= 0)
        return;
    if (elements <= DT_SERIAL || units == 1 || dt_ops_threads() == 1) {
        f(0, n, arg);
        return;
    }
#pragma omp parallel num_threads(dt_ops_threads())
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        /* units * me / threads without overflow for any n */
        int64_t each = units / threads, more = units % threads;
        int64_t begin = (each * me + (me < more ? me : more)) * unit;
        int64_t end = begin + (each + (me < more)) * unit;
        if (end > n)
            end = n;
        if (begin < end)
            f(begin, end, arg);
    }
}
