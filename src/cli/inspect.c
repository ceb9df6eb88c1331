/* `ductile inspect PATH`: what a file or directory is, and what is inside.
 *
 * One kind after the other is tried, the most telling sign first; the kinds with tensors share one
 * listing. `--hash` makes two models comparable by eye: XXH3 of every tensor's bytes. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "cli/curve.h"
#include "data/data.h"
#include "state/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX ((size_t)16 << 20)

static bool has(const char *dir, const char *name)
{
    char path[DT_PATH];
    return dt_path_join(path, dir, name) == DT_OK && dt_file_exists(path);
}

/* ---- Tensors ---- */

static int tensor_json(const struct dt_tensor_set *set, const struct dt_stored *t, bool hash,
                       json_t *array)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    json_t *entry = json_pack(
        "{s:s, s:s, s:o, s:I, s:s}", "name", t->name, "dtype", dt_dtype_name(t->dtype), "shape",
        shape, "bytes", (json_int_t)t->bytes, "file", dt_path_basename(set->files[t->file].path));
    if (hash) {
        char text[17];
        snprintf(text, sizeof text, "%016" PRIx64, dt_hash(t->data, t->bytes));
        json_object_set_new(entry, "hash", json_string(text));
    }
    if (json_array_append_new(array, entry) != 0)
        return DT_FAIL(DT_E_MEMORY, "cannot list %zu tensors: out of memory", set->count);
    return DT_OK;
}

static int tensors_json(const struct dt_tensor_set *set, bool hash, json_t *into, const char *key)
{
    json_t *array = json_array();
    json_object_set_new(into, key, array);
    for (size_t i = 0; i < set->count; i++)
        DT_TRY(tensor_json(set, &set->tensors[i], hash, array));
    return DT_OK;
}

static void tensors_text(const struct dt_tensor_set *set, bool hash)
{
    int width = 4;
    char shape[96];
    for (size_t i = 0; i < set->count; i++) {
        int n = (int)strlen(set->tensors[i].name);
        width = n > width && n < 100 ? n : width;
    }
    for (size_t i = 0; i < set->count; i++) {
        const struct dt_stored *t = &set->tensors[i];
        printf("  %-*s  %-4s  %s", width, t->name, dt_dtype_name(t->dtype),
               dt_shape_shown(t->rank, t->shape, shape, sizeof shape));
        if (hash)
            printf("  %016" PRIx64, dt_hash(t->data, t->bytes));
        putchar('\n');
    }
}

static int64_t elements(const struct dt_tensor_set *set)
{
    int64_t n = 0;
    for (size_t i = 0; i < set->count; i++)
        n += set->tensors[i].elements;
    return n;
}

/* Counts and listing of a set, for the kinds below. */
static int show_set(struct dt_cli *cli, const struct dt_tensor_set *set, json_t *json)
{
    bool hash = dt_cli_flag(cli, "hash");
    if (!cli->json) {
        printf("%zu tensors, %" PRId64 " elements, %.1f MiB in %zu file%s\n", set->count,
               elements(set), (double)set->bytes / 0x1p20, set->file_count,
               set->file_count == 1 ? "" : "s");
        tensors_text(set, hash);
        return DT_OK;
    }
    json_t *files = json_array();
    for (size_t i = 0; i < set->file_count; i++)
        json_array_append_new(files, json_string(dt_path_basename(set->files[i].path)));
    json_object_set_new(json, "files", files);
    json_object_set_new(json, "tensor_count", json_integer((json_int_t)set->count));
    json_object_set_new(json, "elements", json_integer(elements(set)));
    json_object_set_new(json, "bytes", json_integer((json_int_t)set->bytes));
    return tensors_json(set, hash, json, "tensors");
}

/* ---- Kinds ---- */

static int inspect_tensors(struct dt_cli *cli, const char *path, json_t *json, const char *kind)
{
    struct dt_tensor_set set;
    char file[DT_PATH];
    json_t *config = NULL;
    const char *type = NULL;
    bool adapter = strcmp(kind, "adapter") == 0;
    DT_TRY(dt_tensors_open(path, &set));
    DT_TRY(dt_path_join(file, path, adapter ? "adapter_config.json" : "config.json"));
    int rc = DT_OK;
    if (dt_file_is_dir(path) && dt_file_exists(file))
        DT_CHECK(done, rc, dt_json_load(file, CONFIG_MAX, DT_E_MODEL, &config));
    type = json_string_value(json_object_get(config, adapter ? "peft_type" : "model_type"));
    json_object_set_new(json, "kind", json_string(kind));
    if (type)
        json_object_set_new(json, "type", json_string(type));
    if (!cli->json)
        printf("%s: %s%s%s\n", path, kind, type ? " of type " : "", type ? type : "");
    rc = show_set(cli, &set, json);
done:
    json_decref(config);
    dt_tensors_close(&set);
    return rc;
}

static int inspect_checkpoint(struct dt_cli *cli, const char *path, json_t *json)
{
    struct dt_checkpoint c;
    bool hash = dt_cli_flag(cli, "hash");
    int rc = DT_OK;
    DT_TRY(dt_checkpoint_open(path, &c));
    if (cli->json) {
        json_object_set_new(json, "kind", json_string("checkpoint"));
        json_object_set_new(json, "step", json_integer(c.step));
        json_object_set(json, "trainer", c.trainer);
        DT_CHECK(done, rc, show_set(cli, &c.model, json));
        DT_CHECK(done, rc, tensors_json(&c.exp_avg, hash, json, "exp_avg"));
        rc = tensors_json(&c.exp_avg_sq, hash, json, "exp_avg_sq");
        goto done;
    }
    printf("%s: checkpoint of step %" PRId64 ", complete (`ckpt verify` looks at every byte)\n",
           path, c.step);
    printf("optimizer: first and second moments of %zu tensors, %.1f MiB\n", c.exp_avg.count,
           (double)(c.exp_avg.bytes + c.exp_avg_sq.bytes) / 0x1p20);
    show_set(cli, &c.model, json);
    if (hash) {
        printf("first moments\n");
        tensors_text(&c.exp_avg, true);
        printf("second moments\n");
        tensors_text(&c.exp_avg_sq, true);
    }
done:
    dt_checkpoint_close(&c);
    return rc;
}

static int inspect_corpus(struct dt_cli *cli, const char *path, json_t *json)
{
    struct dt_corpus *corpus;
    struct dt_corpus_info info;
    DT_TRY(dt_corpus_open(path, &corpus));
    dt_corpus_describe(corpus, &info);
    dt_corpus_close(corpus);
    if (cli->json)
        return json_object_update_new(
                   json,
                   json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "kind", "corpus",
                             "format", info.format, "chat_template", info.chat_template, "dtype",
                             info.dtype, "documents", (json_int_t)info.documents, "tokens",
                             (json_int_t)info.tokens, "loss_tokens", (json_int_t)info.loss_tokens,
                             "text_bytes", (json_int_t)info.bytes, "max_id",
                             (json_int_t)info.max_id, "masks", info.has_masks))
                   ? DT_FAIL(DT_E_MEMORY, "cannot describe %s: out of memory", path)
                   : DT_OK;
    printf("%s: corpus of %" PRId64 " documents, %" PRId64 " tokens (%s, ids up to %" PRId64 ")\n",
           path, info.documents, info.tokens, info.dtype, info.max_id);
    if (info.format[0])
        printf("made from %s%s%s\n", info.format,
               info.chat_template[0] ? " rows with template " : "", info.chat_template);
    if (info.has_masks)
        printf("%" PRId64 " tokens train, the others are context only\n", info.loss_tokens);
    else
        printf("every token trains\n");
    return DT_OK;
}

/* ---- Runs ---- */

static int plot(struct dt_cli *cli, const char *run, const struct dt_curves *curves, json_t *json)
{
    char path[DT_PATH];
    const char *to = dt_cli_string(cli, "output"), *name = dt_path_basename(run);
    DT_TRY(dt_path_join(path, run, "loss.svg"));
    DT_TRY(
        dt_curves_draw(curves, name[0] && strcmp(name, ".") != 0 ? name : "loss", to ? to : path));
    json_object_set_new(json, "plot", json_string(to ? to : path));
    if (!cli->json)
        printf("loss curve written to %s\n", to ? to : path);
    return DT_OK;
}

static void run_text(const char *path, const struct dt_curves *c,
                     const struct dt_checkpoint_list *l)
{
    size_t n = c->train.count, m = c->eval.count, usable = 0;
    for (size_t i = 0; i < l->count; i++)
        usable += l->entries[i].complete;
    printf("%s: run\n", path);
    if (n)
        printf("trained to step %.0f, loss %.4f (at first %.4f)\n", c->train.x[n - 1],
               c->train.y[n - 1], c->train.y[0]);
    else
        printf("no step is recorded yet\n");
    if (m)
        printf("evaluation at step %.0f: loss %.4f\n", c->eval.x[m - 1], c->eval.y[m - 1]);
    printf("%zu checkpoint%s", usable, usable == 1 ? "" : "s");
    const char *before = " of step ";
    for (size_t i = 0; i < l->count; i++) {
        if (!l->entries[i].complete)
            continue;
        printf("%s%" PRId64, before, l->entries[i].step);
        before = ", ";
    }
    if (usable < l->count)
        printf("; %zu cannot be used (see `ckpt ls`)", l->count - usable);
    putchar('\n');
}

static void run_json(const struct dt_curves *c, const struct dt_checkpoint_list *l, json_t *json)
{
    json_t *steps = json_array();
    size_t n = c->train.count, m = c->eval.count;
    for (size_t i = 0; i < l->count; i++)
        if (l->entries[i].complete)
            json_array_append_new(steps, json_integer(l->entries[i].step));
    json_object_set_new(json, "kind", json_string("run"));
    json_object_set_new(json, "checkpoints", steps);
    if (n) {
        json_object_set_new(json, "step", json_integer((json_int_t)c->train.x[n - 1]));
        json_object_set_new(json, "loss", json_real(c->train.y[n - 1]));
    }
    if (m) {
        json_object_set_new(json, "eval_step", json_integer((json_int_t)c->eval.x[m - 1]));
        json_object_set_new(json, "eval_loss", json_real(c->eval.y[m - 1]));
    }
}

static int inspect_run(struct dt_cli *cli, const char *path, json_t *json)
{
    char dir[DT_PATH], metrics[DT_PATH];
    struct dt_checkpoint_list list;
    struct dt_curves curves = {0};
    int rc = DT_OK;
    DT_TRY(dt_path_join(dir, path, "checkpoints"));
    DT_TRY(dt_path_join(metrics, path, "metrics.jsonl"));
    DT_TRY(dt_checkpoint_scan(dir, &list));
    if (dt_file_exists(metrics))
        DT_CHECK(done, rc, dt_curves_load(metrics, &curves));
    if (cli->json)
        run_json(&curves, &list, json);
    else
        run_text(path, &curves, &list);
    if (dt_cli_flag(cli, "plot"))
        rc = plot(cli, path, &curves, json);
done:
    dt_curves_free(&curves);
    dt_checkpoint_list_free(&list);
    return rc;
}

/* ---- Which kind ---- */

static bool is_corpus(const char *path)
{
    char index[DT_PATH];
    if (dt_path_ends_with(path, ".bin") || dt_path_ends_with(path, ".idx"))
        return true;
    return snprintf(index, sizeof index, "%s.idx", path) < DT_PATH && dt_file_exists(index);
}

static int inspect(struct dt_cli *cli, const char *path, json_t *json)
{
    bool is_run = has(path, "metrics.jsonl") || has(path, "checkpoints");
    if (dt_cli_flag(cli, "plot") && !is_run)
        return dt_cli_usage(cli, "--plot wants a run's directory, %s has no metrics.jsonl", path);
    if (is_corpus(path))
        return inspect_corpus(cli, path, json);
    if (!dt_file_exists(path))
        return DT_FAIL(DT_E_NOT_FOUND, "%s does not exist", path);
    if (!dt_file_is_dir(path))
        return inspect_tensors(cli, path, json, "tensors");
    if (has(path, "manifest.json"))
        return inspect_checkpoint(cli, path, json);
    if (is_run)
        return inspect_run(cli, path, json);
    return inspect_tensors(cli, path, json, has(path, "adapter_config.json") ? "adapter" : "model");
}

static int run(struct dt_cli *cli)
{
    const char *path = cli->arguments[0];
    json_t *json = json_pack("{s:s}", "path", path);
    if (!json)
        return DT_FAIL(DT_E_USAGE, "the path is no UTF-8");
    int rc = inspect(cli, path, json);
    if (rc == DT_OK && cli->json)
        return dt_cli_json(cli, json);
    json_decref(json);
    return rc;
}

static const struct dt_cli_option options[] = {
    {"hash", 0, NULL, DT_CLI_FLAG, .doc = "XXH3 of every tensor's bytes"},
    {"plot", 0, NULL, DT_CLI_FLAG,
     .doc = "of a run: draw its loss curve as loss.svg in its directory"},
    {"output", 'o', "FILE", DT_CLI_STRING, .doc = "where --plot writes instead"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_inspect = {
    .name = "inspect",
    .run = run,
    .arguments = "PATH",
    .min_arguments = 1,
    .max_arguments = 1,
    .summary = "what a model, checkpoint, adapter, corpus, tensor file or run is",
    .options = options,
    .json = true,
};
