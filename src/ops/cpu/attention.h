/* Attention of the CPU sets: what kernels.c and the tests see, and the one piece of geometry that
 * the size of the scratch depends on. */
#ifndef DT_OPS_CPU_ATTENTION_H
#define DT_OPS_CPU_ATTENTION_H

#include "ops/ops.h"

/* A tile is 64 query rows by 64 keys. With grouped queries the H / K query heads of one kv head
 * share a tile: row r of it is query r / G, head r % G, so that they share the keys, too. */
#define DT_ATTENTION_TILE 64

void dt_attention_forward_reference(const struct dt_attention *a);
void dt_attention_backward_reference(const struct dt_attention *a);
void dt_attention_forward_portable(const struct dt_attention *a);
void dt_attention_backward_portable(const struct dt_attention *a);
void dt_attention_forward_avx2(const struct dt_attention *a);
void dt_attention_backward_avx2(const struct dt_attention *a);
void dt_attention_forward_avx512(const struct dt_attention *a);
void dt_attention_backward_avx512(const struct dt_attention *a);
void dt_attention_forward_avx512bf16(const struct dt_attention *a);
void dt_attention_backward_avx512bf16(const struct dt_attention *a);

/* A thread works on up to this many tiles of query rows at once, so that keys and values, whose
 * strides may use a small part of a cache's sets only, come from far away less often. */
#define DT_ATTENTION_DEPTH 4
int64_t dt_attention_depth(int64_t D);

/* Bytes of one thread's tiles; the threads' parts lie one after the other at the start of `work`.
 */
size_t dt_attention_thread_bytes(int64_t D);

#endif
