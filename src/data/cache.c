/* A file is tokenized once: the corpus made from it lies in the cache under a name that contains
 * the hash of everything that decides its content (the file's bytes, the tokenizer, the options).
 * So an entry is never out of date; it is only there or not, and a damaged one is made again. */
#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "data/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Raised when the same input would give another corpus. */
enum { CACHE_VERSION = 1 };

static int cache_key(const struct dt_build *b, const struct dt_source *s, uint64_t *out)
{
    const struct dt_data_options *o = b->options;
    struct dt_map map;
    uint64_t content;
    DT_TRY(dt_file_map(s->path, &map));
    int rc = dt_map_hash(&map, &content);
    struct {
        uint64_t size, content, tokenizer;
        int64_t kind, format, id_limit, end_of_text, item, bad_row, row_limit, version;
        char chat_template[32];
    } key = {.size = map.size,
             .content = content,
             .tokenizer = o->tokenizer ? dt_tokenizer_hash(o->tokenizer) : 0,
             .kind = s->kind,
             .format = s->format,
             .id_limit = b->id_limit,
             .end_of_text = o->end_of_text,
             .item = (int64_t)b->item,
             .bad_row = o->on_bad_row,
             .row_limit = o->row_limit,
             .version = CACHE_VERSION};
    dt_file_unmap(&map);
    DT_TRY(rc);
    if (b->chat)
        snprintf(key.chat_template, sizeof key.chat_template, "%s", dt_chat_name(b->chat));
    *out = dt_hash(&key, sizeof key);
    return DT_OK;
}

/* A directory of its own for one corpus; goes with it. */
static int temporary_prefix(const char *name, char out[DT_PATH])
{
    const char *tmp = getenv("TMPDIR");
    char dir[DT_PATH];
    DT_TRY(dt_path_join(dir, tmp && tmp[0] ? tmp : "/tmp", "ductile-XXXXXX"));
    if (!mkdtemp(dir))
        return dt_file_fail("create directory", dir);
    return dt_path_join(out, dir, name);
}

static int open_cached(const char *prefix, struct dt_corpus **out)
{
    char idx[DT_PATH + 8];
    snprintf(idx, sizeof idx, "%s.idx", prefix);
    *out = NULL;
    if (!dt_file_exists(idx))
        return DT_OK;
    int rc = dt_corpus_open(prefix, out);
    if (rc == DT_OK && !(*out)->has_mask) {
        dt_corpus_close(*out);
        *out = NULL;
        rc = DT_FAIL(DT_E_DATA, "%s.mask is gone", prefix);
    }
    if (rc == DT_E_DATA || rc == DT_E_NOT_FOUND) {
        dt_warn("cache entry is damaged, tokenizing again: %s", dt_error_message());
        dt_error_clear();
        return DT_OK;
    }
    return rc;
}

static int of_source(const struct dt_build *b, const struct dt_source *s, struct dt_corpus **out)
{
    const char *cache = b->options->cache_dir;
    char name[160], prefix[DT_PATH];
    uint64_t key = 0;
    DT_TRY(cache_key(b, s, &key));
    snprintf(name, sizeof name, "%.120s-%016" PRIx64, dt_path_basename(s->path), key);
    if (cache) {
        DT_TRY(dt_mkdirs(cache));
        DT_TRY(dt_path_join(prefix, cache, name));
        DT_TRY(open_cached(prefix, out));
        if (*out)
            return DT_OK;
    } else {
        DT_TRY(temporary_prefix(name, prefix));
    }
    int rc = dt_build_run(b, s, 1, prefix);
    if (rc == DT_OK)
        rc = dt_corpus_open(prefix, out);
    if (rc < 0 && !cache) {
        struct dt_error_state state;
        char dir[DT_PATH];
        dt_error_save(rc, &state);
        if (dt_path_dirname(dir, prefix) == DT_OK)
            (void)dt_remove_tree(dir);
        rc = dt_error_restore(&state);
    }
    if (rc == DT_E_IO && cache)
        rc = dt_error_context(rc, "the cache of tokenized files (data.cache says where it is)");
    DT_TRY(rc);
    (*out)->temporary = !cache;
    return DT_OK;
}

int dt_corpus_of_file(const struct dt_data_options *o, const char *file, struct dt_corpus **out)
{
    struct dt_source source;
    struct dt_build build;
    *out = NULL;
    DT_TRY(dt_source_detect(file, o->format, &source));
    if (source.kind == DT_SOURCE_CORPUS)
        return dt_corpus_open(file, out);
    DT_TRY(dt_build_open(o, &source, 1, &build));
    int rc = of_source(&build, &source, out);
    dt_build_close(&build);
    return rc;
}
