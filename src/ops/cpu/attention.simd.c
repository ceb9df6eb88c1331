/* Attention of one kernel set. */
#include "ops/cpu/attention.h"
#include "ops/cpu/simd.h"

void DT_KERNEL(attention_forward)(const struct dt_attention *a)
{
    dt_attention_forward_reference(a);
}

void DT_KERNEL(attention_backward)(const struct dt_attention *a)
{
    dt_attention_backward_reference(a);
}
