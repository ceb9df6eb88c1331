/* Random spaces and shares for the tests of layout/. The includer has included cmocka.h. */
#ifndef TEST_RANDOM_LAYOUT_H
#define TEST_RANDOM_LAYOUT_H

#include "base/rng.h"
#include "layout/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draws;

static inline int64_t below(int64_t n)
{
    return (int64_t)dt_rng_below((struct dt_rng_key){.seed = 7, .purpose = 99}, draws++,
                                 (uint64_t)n);
}

static inline void open_space(const char *json, struct dt_arch **arch, struct dt_space *s, bool all)
{
    assert_int_equal(dt_arch_parse(json, strlen(json), "test", arch), 0);
    bool *trainable = calloc((size_t)(*arch)->tensor_count, 1);
    for (int64_t i = 0; i < (*arch)->tensor_count; i++)
        trainable[i] = all || below(4) > 0 || i == 1;
    assert_int_equal(dt_space_new(*arch, trainable, s), 0);
    free(trainable);
}

static inline void close_space(struct dt_arch *arch, struct dt_space *s)
{
    dt_space_free(s);
    dt_arch_free(arch);
}

/* A Llama or a GPT-2 of random dimensions up to `size`, tied or not, some tensors frozen. */
static inline void random_space(struct dt_arch **arch, struct dt_space *s, int size)
{
    char json[512];
    int heads = 1 + (int)below(4), width = heads * 2 * (1 + (int)below(size));
    int layers = 1 + (int)below(3), words = 10 + (int)below(12 * size);
    if (below(2))
        snprintf(json, sizeof json,
                 "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
                 "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
                 "\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":64,"
                 "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":%s}",
                 width, layers, heads, below(2) ? heads : 1, 8 + (int)below(8 * size), words,
                 below(2) ? "true" : "false");
    else
        snprintf(json, sizeof json,
                 "{\"model_type\":\"gpt2\",\"n_embd\":%d,\"n_layer\":%d,\"n_head\":%d,"
                 "\"n_positions\":%d,\"vocab_size\":%d,\"layer_norm_epsilon\":1e-5}",
                 width, layers, heads, 8 + (int)below(4 * size), words);
    open_space(json, arch, s, below(2));
}

static inline double random_shares(int32_t workers, double *share)
{
    double total = 0;
    for (int32_t w = 0; w < workers; w++) {
        share[w] = below(4) ? 0.5 + (double)below(100) / 25 : 0;
        if (w == workers - 1 && total == 0)
            share[w] = 1;
        total += share[w];
    }
    return total;
}

#endif
