/* config.json -> struct dt_arch.
 *
 * The defaults are those of transformers, family by family, except for the five numbers that make
 * a model what it is: a file without them is refused instead of becoming a 7 B Llama by default. */
#include "arch/internal.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_LIMIT ((size_t)16 << 20)
#define LAYERS_MAX 2048

static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3", "gpt2"};

const char *dt_family_name(enum dt_family f)
{
    return families[f];
}

static int read_family(struct dt_json_in in, enum dt_family *family)
{
    const char *name;
    DT_TRY(dt_json_need_string(in, "model_type", &name));
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i], name) == 0) {
            *family = (enum dt_family)i;
            return DT_OK;
        }
    }
    return DT_FAIL(DT_E_UNSUPPORTED,
                   "%s: model_type '%.60s' is not supported; supported: llama, mistral, qwen2, "
                   "qwen3, gpt2",
                   in.where, name);
}

/* An activation is listed only if it is one of ours exactly (gelu_fast and gelu_accurate spell the
 * constants of gelu_new with other digits, equal in fp32). */
static int read_act(struct dt_json_in in, const char *key, enum dt_arch_act *act)
{
    static const struct {
        const char *name;
        enum dt_arch_act act;
    } acts[] = {
        {"silu", DT_ARCH_SILU},
        {"swish", DT_ARCH_SILU},
        {"gelu", DT_ARCH_GELU_ERF},
        {"gelu_python", DT_ARCH_GELU_ERF},
        {"gelu_new", DT_ARCH_GELU_TANH},
        {"gelu_fast", DT_ARCH_GELU_TANH},
        {"gelu_accurate", DT_ARCH_GELU_TANH},
        {"gelu_pytorch_tanh", DT_ARCH_GELU_TANH},
        {"gelu_python_tanh", DT_ARCH_GELU_TANH},
        {"quick_gelu", DT_ARCH_QUICK_GELU},
        {"relu", DT_ARCH_RELU},
    };
    const char *name = NULL;
    DT_TRY(dt_json_get_string(in, key, &name));
    if (!name)
        return DT_OK;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        if (strcmp(acts[i].name, name) == 0) {
            *act = acts[i].act;
            return DT_OK;
        }
    }
    return DT_FAIL(DT_E_UNSUPPORTED,
                   "%s: '%s' is '%.60s', which is not supported; supported: silu, swish, gelu, "
                   "gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu",
                   in.where, key, name);
}

/* The first id of a number or a list; -1 for none, and for one beyond the vocabulary (tiny models
 * keep the defaults of big ones). */
static int read_token(struct dt_json_in in, const char *key, int64_t standard, int64_t vocabulary,
                      int64_t *out)
{
    const json_t *v = json_object_get(in.object, key);
    int64_t id = standard;
    if (json_is_array(v))
        v = json_array_size(v) ? json_array_get(v, 0) : json_null();
    if (json_is_null(v))
        id = -1;
    else if (json_is_integer(v))
        id = json_integer_value(v);
    else if (v)
        return DT_FAIL(in.code, "%s: '%s' is neither an integer nor a list of integers", in.where,
                       key);
    *out = id >= 0 && id < vocabulary ? id : -1;
    return DT_OK;
}

/* Dropout is the one thing that is not honoured and not refused. */
static int note_dropout(struct dt_json_in in)
{
    static const char *const keys[] = {"attention_dropout", "hidden_dropout", "resid_pdrop",
                                       "embd_pdrop", "attn_pdrop"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double p = 0;
        DT_TRY(dt_json_get_real(in, keys[i], &p));
        if (p != 0) {
            dt_info("%s: dropout is off here ('%s' is %g)", in.where, keys[i], p);
            return DT_OK;
        }
    }
    return DT_OK;
}

static int read_real(struct dt_json_in in, const char *key, double max, double *out)
{
    DT_TRY(dt_json_get_real(in, key, out));
    if (!(*out >= 0 && *out <= max))
        return DT_FAIL(in.code, "%s: '%s' is %g, expected a number from 0 to %g", in.where, key,
                       *out, max);
    return DT_OK;
}

/* GPT-2's own names have general synonyms in transformers. Both given and different: refused. */
static int need_either(struct dt_json_in in, const char *key, const char *synonym, int64_t max,
                       int64_t *out)
{
    int64_t other = -1;
    *out = -1;
    DT_TRY(dt_json_get_int(in, key, 1, max, out));
    DT_TRY(dt_json_get_int(in, synonym, 1, max, &other));
    if (*out < 0 && other < 0)
        return dt_json_need_int(in, key, 1, max, out);
    if (*out >= 0 && other >= 0 && *out != other)
        return DT_FAIL(in.code, "%s: '%s' is %lld, but '%s' is %lld", in.where, key,
                       (long long)*out, synonym, (long long)other);
    if (*out < 0)
        *out = other;
    return DT_OK;
}

static int check_heads(struct dt_json_in in, const struct dt_arch *a, bool free_size)
{
    if (!free_size && a->C % a->H != 0)
        return DT_FAIL(in.code, "%s: the width %lld is not a multiple of the %lld attention heads",
                       in.where, (long long)a->C, (long long)a->H);
    if (a->H % a->K != 0)
        return DT_FAIL(in.code,
                       "%s: %lld attention heads are not a multiple of "
                       "'num_key_value_heads' (%lld)",
                       in.where, (long long)a->H, (long long)a->K);
    if ((a->H + 2 * a->K) * a->D > DT_ARCH_DIM)
        return DT_FAIL(in.code, "%s: %lld heads of size %lld are too many", in.where,
                       (long long)a->H, (long long)a->D);
    return DT_OK;
}

static int read_gpt2(struct dt_json_in in, struct dt_arch *a)
{
    DT_TRY(dt_json_need_int(in, "vocab_size", 1, DT_ARCH_DIM, &a->V));
    DT_TRY(need_either(in, "n_embd", "hidden_size", DT_ARCH_DIM / 4, &a->C));
    DT_TRY(need_either(in, "n_layer", "num_hidden_layers", LAYERS_MAX, &a->L));
    DT_TRY(need_either(in, "n_head", "num_attention_heads", 65536, &a->H));
    DT_TRY(need_either(in, "n_positions", "max_position_embeddings", DT_ARCH_DIM, &a->positions));
    a->F = 4 * a->C;
    DT_TRY(dt_json_get_int(in, "n_inner", 1, DT_ARCH_DIM, &a->F));
    a->K = a->H;
    a->D = a->C / a->H;
    a->layer_norm = true;
    a->learned_positions = true;
    a->tied = true;
    a->norm_eps = 1e-5;
    a->act = DT_ARCH_GELU_TANH;
    DT_TRY(read_real(in, "layer_norm_epsilon", 1.0, &a->norm_eps));
    DT_TRY(read_act(in, "activation_function", &a->act));
    return check_heads(in, a, false);
}

static int read_gpt2_scales(struct dt_json_in in, struct dt_arch *a)
{
    bool weights = true, by_layer = false;
    DT_TRY(dt_json_get_bool(in, "scale_attn_weights", &weights));
    DT_TRY(dt_json_get_bool(in, "scale_attn_by_inverse_layer_idx", &by_layer));
    for (int64_t l = 0; l < a->L; l++) {
        if (!weights)
            a->scale[l] = 1.0;
        if (by_layer)
            a->scale[l] /= (double)(l + 1);
    }
    return DT_OK;
}

/* Absent and null differ: null means as many as query heads, absent is the family's default. */
static int read_kv_heads(struct dt_json_in in, struct dt_arch *a)
{
    bool absent = json_object_get(in.object, "num_key_value_heads") == NULL;
    a->K = a->H;
    if (absent && a->family == DT_MISTRAL)
        a->K = 8;
    else if (absent && a->family != DT_LLAMA)
        a->K = 32;
    return dt_json_get_int(in, "num_key_value_heads", 1, 65536, &a->K);
}

static int read_llama_like(struct dt_json_in in, struct dt_arch *a)
{
    static const int64_t positions[] = {2048, 4096 * 32, 32768, 32768};
    DT_TRY(dt_json_need_int(in, "vocab_size", 1, DT_ARCH_DIM, &a->V));
    DT_TRY(dt_json_need_int(in, "hidden_size", 1, DT_ARCH_DIM, &a->C));
    DT_TRY(dt_json_need_int(in, "intermediate_size", 1, DT_ARCH_DIM, &a->F));
    DT_TRY(dt_json_need_int(in, "num_hidden_layers", 1, LAYERS_MAX, &a->L));
    DT_TRY(dt_json_need_int(in, "num_attention_heads", 1, 65536, &a->H));
    DT_TRY(read_kv_heads(in, a));
    a->positions = positions[a->family];
    DT_TRY(dt_json_get_int(in, "max_position_embeddings", 1, DT_ARCH_DIM, &a->positions));
    int64_t head = a->family == DT_QWEN3 ? 128 : 0;
    DT_TRY(dt_json_get_int(in, "head_dim", 1, 65536, &head));
    a->D = head > 0 ? head : a->C / a->H;
    a->qk_norm = a->family == DT_QWEN3;
    a->gated = true;
    a->norm_eps = 1e-6;
    a->act = DT_ARCH_SILU;
    DT_TRY(read_real(in, "rms_norm_eps", 1.0, &a->norm_eps));
    DT_TRY(read_act(in, "hidden_act", &a->act));
    return check_heads(in, a, head > 0);
}

static int read_biases(struct dt_json_in in, const struct dt_arch *a, struct dt_biases *b)
{
    bool gpt2 = a->family == DT_GPT2;
    b->qkv = b->out = b->mlp = gpt2;
    if (a->family == DT_LLAMA || a->family == DT_QWEN3) {
        DT_TRY(dt_json_get_bool(in, "attention_bias", &b->qkv));
        b->out = b->qkv;
    }
    if (a->family == DT_LLAMA)
        DT_TRY(dt_json_get_bool(in, "mlp_bias", &b->mlp));
    if (a->family == DT_QWEN2)
        b->qkv = true;
    return DT_OK;
}

/* Of what the model computes: two spellings of one model are one model. */
static uint64_t identity(const struct dt_arch *a)
{
    char text[1024];
    const struct dt_rope *r = &a->rope;
    int n = snprintf(text, sizeof text,
                     "1 %d %lld %lld %lld %lld %lld %lld %lld %lld %d %.17g %d %d %d %d %d "
                     "rope %d %.17g %.17g %.17g %.17g %.17g %.17g %.17g %d %lld",
                     (int)a->family, (long long)a->L, (long long)a->C, (long long)a->H,
                     (long long)a->K, (long long)a->D, (long long)a->F, (long long)a->V,
                     (long long)a->positions, a->layer_norm, a->norm_eps, a->qk_norm, a->gated,
                     (int)a->act, a->tied, a->learned_positions, (int)r->kind, r->theta, r->factor,
                     r->low_freq_factor, r->high_freq_factor, r->beta_fast, r->beta_slow,
                     r->attention_factor, r->truncate, (long long)r->original_positions);
    struct dt_hasher *h = dt_hasher_new();
    if (!h)
        return 0;
    dt_hasher_add(h, text, (size_t)n);
    dt_hasher_add(h, a->window, (size_t)a->L * sizeof *a->window);
    dt_hasher_add(h, a->scale, (size_t)a->L * sizeof *a->scale);
    for (int64_t t = 0; t < a->tensor_count; t++)
        dt_hasher_add(h, a->tensors[t].name, strlen(a->tensors[t].name) + 1);
    uint64_t value = dt_hasher_value(h);
    dt_hasher_free(h);
    return value;
}

static int read_rest(struct dt_json_in in, struct dt_arch *a)
{
    static const int64_t bos[] = {1, 1, -1, -1, 50256}, eos[] = {2, 2, -1, -1, 50256};
    DT_TRY(DT_NEW(&a->window, a->L));
    DT_TRY(DT_NEW(&a->scale, a->L));
    for (int64_t l = 0; l < a->L; l++)
        a->scale[l] = 1.0 / sqrt((double)a->D);
    a->rope.factor = a->rope.attention_factor = 1.0;
    if (a->family == DT_GPT2)
        DT_TRY(read_gpt2_scales(in, a));
    DT_TRY(dt_arch_read_rope(in, a));
    DT_TRY(dt_arch_read_windows(in, a));
    DT_TRY(dt_json_get_bool(in, "tie_word_embeddings", &a->tied));
    a->initializer_range = 0.02;
    DT_TRY(read_real(in, "initializer_range", 1e6, &a->initializer_range));
    DT_TRY(read_token(in, "bos_token_id", bos[a->family], a->V, &a->bos));
    DT_TRY(read_token(in, "eos_token_id", eos[a->family], a->V, &a->eos));
    struct dt_biases biases;
    DT_TRY(read_biases(in, a, &biases));
    DT_TRY(dt_arch_make_tensors(a, biases, in.where));
    a->hash = identity(a);
    return note_dropout(in);
}

static int build(struct dt_json_in in, struct dt_arch *a)
{
    DT_TRY(read_family(in, &a->family));
    DT_TRY(dt_arch_refuse(in, a->family));
    if (a->family == DT_GPT2)
        DT_TRY(read_gpt2(in, a));
    else
        DT_TRY(read_llama_like(in, a));
    return read_rest(in, a);
}

int dt_arch_parse(const char *json, size_t bytes, const char *path_for_messages,
                  struct dt_arch **out)
{
    json_t *root;
    *out = NULL;
    DT_TRY(dt_json_parse(json, bytes, path_for_messages, DT_E_MODEL, &root));
    struct dt_arch *a = NULL;
    int rc;
    if (!json_is_object(root)) {
        rc = DT_FAIL(DT_E_MODEL, "%s: expected an object {...}, found an array", path_for_messages);
        goto done;
    }
    DT_CHECK(done, rc, DT_NEW(&a, 1));
    struct dt_json_in in = {root, path_for_messages, DT_E_MODEL};
    DT_CHECK(done, rc, build(in, a));
    *out = a;
    a = NULL;
done:
    dt_arch_free(a);
    json_decref(root);
    return rc;
}

int dt_arch_load(const char *dir, struct dt_arch **out)
{
    char path[DT_PATH], *text;
    size_t size;
    *out = NULL;
    DT_TRY(dt_path_join(path, dir, "config.json"));
    DT_TRY(dt_file_read(path, CONFIG_LIMIT, &text, &size));
    int rc = dt_arch_parse(text, size, path, out);
    free(text);
    return rc;
}

void dt_arch_free(struct dt_arch *a)
{
    if (!a)
        return;
    free(a->window);
    free(a->scale);
    free(a->tensors);
    free(a->index);
    free(a);
}
