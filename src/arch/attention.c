/* Positions and windows, as config.json spells them.
 *
 * Two spellings of the same thing are in the wild: `rope_theta` beside `rope_scaling` (whose kind
 * is `rope_type` or `type`), and `rope_parameters` with everything inside. Where both stand, the
 * order of precedence is that of transformers: a non-empty `rope_scaling` replaces
 * `rope_parameters`, and a `rope_theta` inside wins over one outside. */
#include "arch/internal.h"

#include "base/arena.h"
#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THETA_DEFAULT 10000.0

static int rope_kind(struct dt_json_in rope, enum dt_rope_kind *kind)
{
    static const struct {
        const char *name;
        enum dt_rope_kind kind;
    } kinds[] = {{"default", DT_ROPE_DEFAULT},
                 {"linear", DT_ROPE_LINEAR},
                 {"llama3", DT_ROPE_LLAMA3},
                 {"yarn", DT_ROPE_YARN},
                 {"dynamic", DT_ROPE_DYNAMIC}};
    const char *name = "default";
    DT_TRY(dt_json_get_string(rope, "type", &name));
    DT_TRY(dt_json_get_string(rope, "rope_type", &name));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *kind = kinds[i].kind;
            return DT_OK;
        }
    }
    return DT_FAIL(DT_E_UNSUPPORTED,
                   "%s: rope_type '%.60s' is not supported; supported: default, linear, llama3, "
                   "yarn, dynamic",
                   rope.where, name);
}

static int positive(struct dt_json_in in, const char *key, double value)
{
    if (isfinite(value) && value > 0 && value < 1e30)
        return DT_OK;
    return DT_FAIL(in.code, "%s: '%s' is %g, expected a number above 0", in.where, key, value);
}

static int need_positive(struct dt_json_in in, const char *key, double *out)
{
    DT_TRY(dt_json_need_real(in, key, out));
    return positive(in, key, *out);
}

static int get_positive(struct dt_json_in in, const char *key, double *out)
{
    DT_TRY(dt_json_get_real(in, key, out));
    return positive(in, key, *out);
}

static int read_llama3(struct dt_json_in rope, struct dt_rope *r)
{
    DT_TRY(need_positive(rope, "factor", &r->factor));
    DT_TRY(need_positive(rope, "low_freq_factor", &r->low_freq_factor));
    DT_TRY(need_positive(rope, "high_freq_factor", &r->high_freq_factor));
    if (r->high_freq_factor <= r->low_freq_factor)
        return DT_FAIL(rope.code,
                       "%s: 'high_freq_factor' is %g, expected more than "
                       "'low_freq_factor' (%g)",
                       rope.where, r->high_freq_factor, r->low_freq_factor);
    return DT_OK;
}

static double mscale(double factor, double m)
{
    return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

/* A null factor means the ratio of the two lengths; an absent one is an error in transformers too.
 */
static int read_yarn(struct dt_json_in rope, int64_t positions, struct dt_rope *r)
{
    if (json_is_null(json_object_get(rope.object, "factor")))
        r->factor = (double)positions / (double)r->original_positions;
    else
        DT_TRY(need_positive(rope, "factor", &r->factor));
    r->beta_fast = r->beta_slow = 0;
    DT_TRY(dt_json_get_real(rope, "beta_fast", &r->beta_fast));
    DT_TRY(dt_json_get_real(rope, "beta_slow", &r->beta_slow));
    if (r->beta_fast == 0)
        r->beta_fast = 32; /* absent, null and 0 are the same to transformers */
    if (r->beta_slow == 0)
        r->beta_slow = 1;
    DT_TRY(positive(rope, "beta_fast", r->beta_fast));
    DT_TRY(positive(rope, "beta_slow", r->beta_slow));
    DT_TRY(dt_json_get_bool(rope, "truncate", &r->truncate));
    double m = 0, all = 0;
    DT_TRY(dt_json_get_real(rope, "mscale", &m));
    DT_TRY(dt_json_get_real(rope, "mscale_all_dim", &all));
    r->attention_factor =
        m != 0 && all != 0 ? mscale(r->factor, m) / mscale(r->factor, all) : mscale(r->factor, 1.0);
    DT_TRY(dt_json_get_real(rope, "attention_factor", &r->attention_factor));
    DT_TRY(positive(rope, "attention_factor", r->attention_factor));
    if (r->theta <= 1.0)
        return DT_FAIL(rope.code, "%s: 'rope_theta' is %g, yarn needs more than 1", rope.where,
                       r->theta);
    return DT_OK;
}

static int read_kind(struct dt_json_in in, struct dt_json_in rope, struct dt_arch *a)
{
    struct dt_rope *r = &a->rope;
    DT_TRY(rope_kind(rope, &r->kind));
    double partial = 1.0;
    DT_TRY(dt_json_get_real(rope, "partial_rotary_factor", &partial));
    if (partial != 1.0)
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "%s: 'partial_rotary_factor' is %g: partial rotation of "
                       "heads is not supported",
                       rope.where, partial);
    if (json_object_get(rope.object, "mrope_section"))
        return DT_FAIL(DT_E_UNSUPPORTED,
                       "%s: 'mrope_section': multimodal positions are not "
                       "supported",
                       rope.where);
    r->original_positions = a->positions;
    DT_TRY(dt_json_get_int(rope, "original_max_position_embeddings", 1, DT_ARCH_DIM,
                           &r->original_positions));
    DT_TRY(dt_json_get_int(in, "original_max_position_embeddings", 1, DT_ARCH_DIM,
                           &r->original_positions));
    switch (r->kind) {
    case DT_ROPE_LINEAR:
        return need_positive(rope, "factor", &r->factor);
    case DT_ROPE_LLAMA3:
        return read_llama3(rope, r);
    case DT_ROPE_YARN:
        return read_yarn(rope, a->positions, r);
    case DT_ROPE_DYNAMIC:
        r->original_positions = a->positions; /* transformers scales from max_position_embeddings */
        if (a->D < 4)
            return DT_FAIL(rope.code,
                           "%s: dynamic scaling needs a head size of at least 4, found "
                           "%lld",
                           rope.where, (long long)a->D);
        DT_TRY(need_positive(rope, "factor", &r->factor));
        if (r->factor < 1.0)
            return DT_FAIL(rope.code, "%s: 'factor' is %g, dynamic scaling needs at least 1",
                           rope.where, r->factor);
        return DT_OK;
    default:
        r->original_positions = 0;
        return DT_OK;
    }
}

int dt_arch_read_rope(struct dt_json_in in, struct dt_arch *a)
{
    struct dt_rope *r = &a->rope;
    if (a->family == DT_GPT2)
        return DT_OK; /* DT_ROPE_NONE: positions are learned */
    if (a->D % 2 != 0)
        return DT_FAIL(in.code, "%s: the head size is %lld, rotary positions need an even one",
                       in.where, (long long)a->D);
    r->half = a->D / 2;
    r->theta = THETA_DEFAULT;
    r->factor = r->attention_factor = 1.0;
    r->truncate = true;
    DT_TRY(get_positive(in, "rope_theta", &r->theta));
    const json_t *scaling = NULL, *parameters = NULL;
    DT_TRY(dt_json_get_object(in, "rope_scaling", &scaling));
    DT_TRY(dt_json_get_object(in, "rope_parameters", &parameters));
    bool old = scaling && json_object_size(scaling) > 0;
    char where[300];
    snprintf(where, sizeof where, "%.250s: %s", in.where, old ? "rope_scaling" : "rope_parameters");
    struct dt_json_in rope = {old ? scaling : parameters, where, in.code};
    if (!rope.object) {
        r->kind = DT_ROPE_DEFAULT;
        return DT_OK;
    }
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)rope.object, key, value)
    {
        if (json_is_object(value))
            return DT_FAIL(DT_E_UNSUPPORTED,
                           "%s: '%.60s': rotary parameters that differ by kind "
                           "of layer are not supported",
                           where, key);
    }
    DT_TRY(get_positive(rope, "rope_theta", &r->theta));
    return read_kind(in, rope, a);
}

/* `layer_types`: one of full_attention and sliding_attention a layer. False when absent. */
static int read_layer_types(struct dt_json_in in, const struct dt_arch *a, bool *given,
                            bool *sliding)
{
    const json_t *list = NULL, *item;
    size_t i;
    DT_TRY(dt_json_get_array(in, "layer_types", &list));
    *given = list != NULL;
    if (!list)
        return DT_OK;
    if ((int64_t)json_array_size(list) != a->L)
        return DT_FAIL(in.code, "%s: 'layer_types' has %zu entries, expected one a layer: %lld",
                       in.where, json_array_size(list), (long long)a->L);
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(item);
        if (!name)
            return DT_FAIL(in.code, "%s: 'layer_types' holds something that is no string",
                           in.where);
        sliding[i] = strcmp(name, "sliding_attention") == 0;
        if (!sliding[i] && strcmp(name, "full_attention") != 0)
            return DT_FAIL(DT_E_UNSUPPORTED,
                           "%s: layer_types '%.60s' is not supported; supported: full_attention, "
                           "sliding_attention",
                           in.where, name);
    }
    return DT_OK;
}

/* Llama never slides; Mistral slides in every layer or in none, whatever `layer_types` says, so a
 * list that says otherwise is refused; Qwen's list (or `max_window_layers`) decides. */
static int check_layer_types(struct dt_json_in in, const struct dt_arch *a, int64_t window,
                             const bool *sliding)
{
    bool qwen = a->family == DT_QWEN2 || a->family == DT_QWEN3;
    for (int64_t l = 0; l < a->L; l++) {
        if (qwen && sliding[l] && window == 0)
            return DT_FAIL(in.code,
                           "%s: 'layer_types' makes layer %lld slide, but there is no "
                           "'sliding_window' (or 'use_sliding_window' is false)",
                           in.where, (long long)l);
        if (!qwen && sliding[l] != (window > 0))
            return DT_FAIL(DT_E_UNSUPPORTED,
                           "%s: 'layer_types' says %s_attention for layer %lld: windows that "
                           "differ by layer are not supported for model_type %s",
                           in.where, sliding[l] ? "sliding" : "full", (long long)l,
                           dt_family_name(a->family));
    }
    return DT_OK;
}

int dt_arch_read_windows(struct dt_json_in in, struct dt_arch *a)
{
    int64_t window = 0, from = 0;
    bool given = false, use = a->family == DT_MISTRAL;
    if (a->family == DT_QWEN2 || a->family == DT_QWEN3) {
        from = 28; /* transformers' default of max_window_layers */
        DT_TRY(dt_json_get_bool(in, "use_sliding_window", &use));
        DT_TRY(dt_json_get_int(in, "max_window_layers", 0, DT_ARCH_DIM, &from));
    }
    if (use) {
        window = json_is_null(json_object_get(in.object, "sliding_window")) ? 0 : 4096;
        DT_TRY(dt_json_get_int(in, "sliding_window", 1, DT_ARCH_DIM, &window));
    }
    bool *sliding;
    DT_TRY(DT_NEW(&sliding, a->L));
    for (int64_t l = 0; l < a->L; l++)
        sliding[l] = window > 0 && l >= from;
    int rc;
    DT_CHECK(done, rc, read_layer_types(in, a, &given, sliding));
    if (given)
        DT_CHECK(done, rc, check_layer_types(in, a, window, sliding));
    for (int64_t l = 0; l < a->L; l++)
        a->window[l] = sliding[l] ? window : 0;
done:
    free(sliding);
    return rc;
}
