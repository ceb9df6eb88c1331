/* What was learned as tokenizer.json and tokenizer_config.json, as Hugging Face's library reads
 * them. */
#include "data/tokenizer_internal.h"
#include "data/tokenizer_train.h"

#include "base/file.h"
#include "base/json.h"

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 1);
}

static json_t *added_tokens(const struct dt_tokenizer_training *t)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->special_count; i++)
        json_array_append_new(list,
                              json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                        "content", t->special[i], "single_word", 0, "lstrip", 0,
                                        "rstrip", 0, "normalized", 0, "special", 1));
    return list;
}

static json_t *vocab(const struct dt_tokenizer_training *t, const struct dt_learned *l)
{
    json_t *v = json_object();
    for (int64_t i = 0; i < t->special_count; i++)
        json_object_set_new(v, t->special[i], json_integer((json_int_t)i));
    for (int64_t i = 0; i < l->symbols; i++)
        json_object_setn_new(v, l->text.p + l->symbol[i].offset, l->symbol[i].n,
                             json_integer((json_int_t)(t->special_count + i)));
    return v;
}

static json_t *merges(const struct dt_learned *l)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < l->merges; i++) {
        const struct dt_symbol *a = &l->symbol[l->merge[i].left],
                               *b = &l->symbol[l->merge[i].right];
        json_array_append_new(list, json_sprintf("%.*s %.*s", (int)a->n, l->text.p + a->offset,
                                                 (int)b->n, l->text.p + b->offset));
    }
    return list;
}

static int save(const char *directory, const char *name, json_t *j)
{
    char path[DT_PATH];
    if (!j)
        return DT_FAIL(DT_E_MEMORY, "no memory to write %s", name);
    int rc = dt_path_join(path, directory, name);
    if (rc == 0)
        rc = dt_json_save(path, j);
    json_decref(j);
    return rc;
}

int dt_tokenizer_write(const struct dt_tokenizer_training *t, const struct dt_learned *l)
{
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                              "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                              "ignore_merges", 0, "vocab", vocab(t, l), "merges", merges(l));
    json_t *j = json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0",
                          "truncation", "padding", "added_tokens", added_tokens(t), "normalizer",
                          "pre_tokenizer", byte_level(), "post_processor", byte_level(), "decoder",
                          byte_level(), "model", model);
    json_t *config = json_pack("{s:s, s:b, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                               "add_prefix_space", 0, "clean_up_tokenization_spaces", 0,
                               "model_max_length", (json_int_t)1 << 30);
    if (config && t->special_count > 0)
        json_object_set_new(config, "eos_token", json_string(t->special[0]));
    int rc = dt_mkdirs(t->directory);
    if (rc < 0) {
        json_decref(j);
        json_decref(config);
        return rc;
    }
    rc = save(t->directory, "tokenizer.json", j);
    if (rc < 0) {
        json_decref(config);
        return rc;
    }
    return save(t->directory, "tokenizer_config.json", config);
}
