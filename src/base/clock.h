#ifndef DT_BASE_CLOCK_H
#define DT_BASE_CLOCK_H

#include <stdint.h>

double dt_clock_seconds(void);      /* monotonic */
int64_t dt_clock_nanoseconds(void); /* monotonic */

#endif
