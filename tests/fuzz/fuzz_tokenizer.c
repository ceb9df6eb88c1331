/* Any bytes as tokenizer.json: an error of one line that names it, or a tokenizer that encodes and
 * decodes. What follows the last byte 0xff of the input, if any, is text for it.
 *
 * covers: src/data/tokenizer_load.c src/data/tokenizer_load_model.c
 * src/data/tokenizer_load_stages.c covers: src/data/tokenizer_regex.c */
#include "data/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

/* Words of every kind in few bytes: a bad pattern may look at each of them many times. */
static const char sample[] =
    "It's a  low\n\tЁé e\u0301 12,3 \u4e2d \U0001f999 </s><s> AB_c \u2581x ";

static void use(const struct dt_tokenizer *t, const char *text, size_t n)
{
    struct dt_encoder *e;
    struct dt_ids ids = {0};
    struct dt_text back = {0}, pieces = {0};
    int64_t done = 0;
    must(dt_encoder_new(t, &e) == 0);
    if (dt_encode(e, text, n, DT_ENCODE_SPECIAL, &ids) == 0) {
        for (int64_t i = 0; i < ids.n; i++)
            must(ids.p[i] >= 0 && ids.p[i] < dt_tokenizer_vocab_size(t));
        if (dt_decode(t, ids.p, ids.n, true, &back) == 0) {
            must(dt_utf8_valid(back.p, back.n) == back.n);
            for (int64_t i = 1; i <= ids.n; i++)
                must(dt_decode_next(t, ids.p, i, &done, i == ids.n, &pieces) <= 0);
        }
    }
    dt_ids_free(&ids);
    dt_text_free(&back);
    dt_text_free(&pieces);
    dt_encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *cut = memrchr(data, 0xff, size);
    size_t n = cut ? (size_t)(cut - json) : size;
    struct dt_tokenizer *t;
    dt_log_set_level(DT_LOG_ERROR);
    int rc = dt_tokenizer_parse(json, n, "fuzzed.json", &t);
    if (rc < 0) {
        must(t == NULL && strstr(dt_error_message(), "fuzzed.json") &&
             !strchr(dt_error_message(), '\n'));
        return 0;
    }
    use(t, sample, sizeof sample - 1);
    if (cut && size - n - 1 <= 64)
        use(t, cut + 1, size - n - 1);
    dt_tokenizer_close(t);
    return 0;
}
