/* Shared by the tests of the control plane's wire. */
#ifndef DT_TEST_CLUSTER_WIRE_H
#define DT_TEST_CLUSTER_WIRE_H

#include "base/error.h"

#include <string.h>

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        int assert_rc_ = (expr);                                                                   \
        if (assert_rc_ != DT_OK)                                                                   \
            fail_msg("%s: %s (%s)", #expr, dt_error_message(), dt_error_trail());                  \
    } while (0)
#define assert_fails(expr, expected, words)                                                        \
    do {                                                                                           \
        int assert_rc_ = (int)(expr);                                                              \
        if (assert_rc_ != (expected))                                                              \
            fail_msg("%s gave %d, expected %d: %s", #expr, assert_rc_, (expected),                 \
                     dt_error_message());                                                          \
        if (!strstr(dt_error_message(), words))                                                    \
            fail_msg("'%s' is not in: %s", words, dt_error_message());                             \
    } while (0)

#endif
