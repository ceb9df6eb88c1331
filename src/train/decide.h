/* How a decision follows from votes: private to those who decide (control_local.c, the
 * coordinator). */
#ifndef DT_TRAIN_DECIDE_H
#define DT_TRAIN_DECIDE_H

#include "train/control.h"

/* Times that a step whose fixed-point sums overflow is tried, each with a smaller scale; then it is
 * skipped. */
enum { DT_MOST_ATTEMPTS = 4 };

struct dt_space_decision dt_decide_space(const struct dt_optimizer *o,
                                         const struct dt_space_vote *v, int64_t step,
                                         int64_t attempt);

#endif
