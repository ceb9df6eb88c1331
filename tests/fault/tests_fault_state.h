/* The state that the fault tests save: every element follows from (step, generation, array, index).
 */
#ifndef TESTS_FAULT_STATE_H
#define TESTS_FAULT_STATE_H

#include "base/safetensors.h"

#define FAULT_TENSORS 3
#define FAULT_ELEMENTS (32 * 16 + 16 + 32 * 16)

static inline void fault_specs(struct dt_tensor_spec specs[FAULT_TENSORS])
{
    specs[0] = (struct dt_tensor_spec){"embed.weight", DT_F32, 2, {32, 16}};
    specs[1] = (struct dt_tensor_spec){"norm.weight", DT_F32, 1, {16}};
    specs[2] = (struct dt_tensor_spec){"lm_head.weight", DT_F32, 2, {32, 16}};
}

static inline void fault_fill(float data[FAULT_ELEMENTS], int64_t step, int generation, int which)
{
    for (int i = 0; i < FAULT_ELEMENTS; i++)
        data[i] = (float)(step * 1000000 + generation * 100000 + which * 10000 + i);
}

#endif
