#include "base/clock.h"

#include <time.h>

int64_t dt_clock_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double dt_clock_seconds(void)
{
    return 1e-9 * (double)dt_clock_nanoseconds();
}
