/* `ductile ckpt ls|verify|gc DIR`: the checkpoints of a run, seen and tidied from outside. */
#include "cli/cli.h"

#include "base/file.h"
#include "state/checkpoint.h"
#include "train/run_config.h"

#include <inttypes.h>
#include <string.h>

static int append(json_t *array, json_t *entry)
{
    if (json_array_append_new(array, entry) == 0)
        return DT_OK;
    return DT_FAIL(DT_E_MEMORY, "cannot list the checkpoints: out of memory");
}

/* ---- ls ---- */

static json_t *entry_json(const struct dt_checkpoint_entry *e)
{
    return json_pack("{s:I, s:s, s:s, s:I, s:I, s:b, s:s}", "step", (json_int_t)e->step, "path",
                     e->path, "created", e->created, "files", (json_int_t)e->files, "bytes",
                     (json_int_t)e->bytes, "complete", e->complete, "problem", e->problem);
}

static int list_json(struct dt_cli *cli, const char *dir, const struct dt_checkpoint_list *list)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        DT_TRY(append(array, entry_json(&list->entries[i])));
    return dt_cli_json(cli, json_pack("{s:s, s:I, s:o}", "dir", dir, "leftovers",
                                      (json_int_t)list->leftovers, "checkpoints", array));
}

static int list_text(const char *dir, const struct dt_checkpoint_list *list)
{
    if (list->count)
        printf("%10s  %-20s  %5s  %11s  %s\n", "step", "saved", "files", "MiB", "state");
    for (size_t i = 0; i < list->count; i++) {
        const struct dt_checkpoint_entry *e = &list->entries[i];
        printf("%10" PRId64 "  %-20s  %5zu  %11.1f  %s%s\n", e->step, e->created, e->files,
               (double)e->bytes / 0x1p20, e->complete ? "complete" : "unusable: ", e->problem);
    }
    if (!list->count)
        dt_info("%s holds no checkpoint", dir);
    if (list->leftovers)
        dt_info("%zu temporary director%s of a save in progress or a killed run; the next start "
                "removes "
                "what is left over",
                list->leftovers, list->leftovers == 1 ? "y" : "ies");
    return DT_OK;
}

static int list(struct dt_cli *cli, const char *dir)
{
    struct dt_checkpoint_list found;
    DT_TRY(dt_checkpoint_scan(dir, &found));
    int rc = cli->json ? list_json(cli, dir, &found) : list_text(dir, &found);
    dt_checkpoint_list_free(&found);
    return rc;
}

/* ---- verify ---- */

/* One checkpoint; returns DT_OK or what is wrong, and says so. */
static int verify_one(struct dt_cli *cli, const char *path, json_t *array)
{
    int rc = dt_checkpoint_verify(path);
    const char *problem = rc < 0 ? dt_error_message() : "";
    if (cli->json)
        DT_TRY(append(array, json_pack("{s:s, s:b, s:s}", "path", path, "valid", rc == DT_OK,
                                       "problem", problem)));
    else
        printf("%s: %s%s\n", path, rc < 0 ? "BAD: " : "every checksum holds", problem);
    return rc;
}

static int verify(struct dt_cli *cli, const char *dir, bool single)
{
    struct dt_checkpoint_list found = {0};
    json_t *array;
    size_t bad = 0, count = single ? 1 : 0;
    char first[512] = "";
    int rc = DT_OK;
    if (!single)
        DT_TRY(dt_checkpoint_scan(dir, &found));
    array = json_array();
    if (single)
        rc = verify_one(cli, dir, array);
    bad += rc < 0;
    if (bad)
        snprintf(first, sizeof first, "%s", dt_error_message());
    for (size_t i = 0; i < found.count; i++, count++) {
        rc = verify_one(cli, found.entries[i].path, array);
        if (rc < 0 && !bad++)
            snprintf(first, sizeof first, "%s", dt_error_message());
    }
    dt_checkpoint_list_free(&found);
    if (cli->json)
        DT_TRY(dt_cli_json(cli, json_pack("{s:s, s:I, s:I, s:o}", "dir", dir, "checked",
                                          (json_int_t)count, "bad", (json_int_t)bad, "checkpoints",
                                          array)));
    else
        json_decref(array);
    if (count == 0)
        return DT_FAIL(DT_E_NOT_FOUND,
                       "%s holds no checkpoint to verify: none with a manifest.json", dir);
    if (bad)
        return DT_FAIL(DT_E_CHECKPOINT, "%zu of %zu checkpoints in %s cannot be used (first: %s)",
                       bad, count, dir, first);
    return DT_OK;
}

/* ---- gc ---- */

/* What --keep and --keep-every do not say comes from the configuration that the run keeps. */
static int retention(struct dt_cli *cli, const char *run, int64_t *keep, int64_t *keep_every)
{
    char path[DT_PATH];
    struct dt_run_config config;
    *keep = dt_cli_int(cli, "keep");
    *keep_every = dt_cli_int(cli, "keep-every");
    if (dt_cli_given(cli, "keep"))
        return DT_OK;
    DT_TRY(dt_path_join(path, run, "config.yaml"));
    if (!dt_file_exists(path))
        return dt_cli_usage(cli, "%s does not exist, so --keep N must say how many to keep", path);
    int rc = dt_run_config_load(path, NULL, 0, &config);
    if (rc == DT_OK) {
        *keep = config.checkpoint.keep;
        if (!dt_cli_given(cli, "keep-every"))
            *keep_every = config.checkpoint.keep_every;
    }
    dt_run_config_free(&config);
    return rc;
}

static int collect(struct dt_cli *cli, const char *dir)
{
    char run[DT_PATH];
    struct dt_run_lock lock;
    int64_t keep, keep_every;
    size_t deleted = 0;
    bool dry = dt_cli_flag(cli, "dry-run");
    int rc;
    DT_TRY(dt_path_dirname(run, dir));
    DT_TRY(retention(cli, run, &keep, &keep_every));
    DT_TRY(dt_run_lock(run, &lock)); /* never beside a running save */
    if (!dry)
        DT_CHECK(done, rc, dt_checkpoint_clean(dir));
    DT_CHECK(done, rc, dt_checkpoint_retain(dir, keep, keep_every, dry, &deleted));
    if (cli->json)
        rc = dt_cli_json(cli, json_pack("{s:s, s:I, s:I, s:b, s:I}", "dir", dir, "keep",
                                        (json_int_t)keep, "keep_every", (json_int_t)keep_every,
                                        "dry_run", dry, "deleted", (json_int_t)deleted));
    else
        printf("%s %zu checkpoint%s\n", dry ? "would delete" : "deleted", deleted,
               deleted == 1 ? "" : "s");
done:
    dt_run_unlock(&lock);
    return rc;
}

static int run(struct dt_cli *cli)
{
    char dir[DT_PATH], manifest[DT_PATH];
    const char *what = cli->arguments[0], *path = cli->arguments[1];
    DT_TRY(dt_checkpoint_dir(dir, path));
    DT_TRY(dt_path_join(manifest, path, "manifest.json"));
    bool single = dt_file_exists(manifest);
    if (strcmp(what, "verify") == 0)
        return verify(cli, dir, single);
    if (strcmp(what, "ls") != 0 && strcmp(what, "gc") != 0)
        return dt_cli_usage(cli, "'%s' is none of ls, verify, gc", what);
    if (single)
        return dt_cli_usage(cli, "%s is one checkpoint; `ckpt %s` wants the run's directory", path,
                            what);
    return what[0] == 'l' ? list(cli, dir) : collect(cli, dir);
}

static const struct dt_cli_option options[] = {
    {"keep", 0, "N", DT_CLI_INT, .min = 1, .max = 1e9,
     .doc = "gc: how many of the newest to keep (default: what the run's config.yaml says)"},
    {"keep-every", 0, "N", DT_CLI_INT, .fallback = "0", .min = 0, .max = 1e15,
     .doc = "gc: also keep every step that N divides"},
    {"dry-run", 0, NULL, DT_CLI_FLAG, .doc = "gc: only say how many would go"},
    {0},
};

const struct dt_cli_verb dt_cli_verb_ckpt = {
    .name = "ckpt",
    .run = run,
    .arguments = "ls|verify|gc DIR",
    .min_arguments = 2,
    .max_arguments = 2,
    .summary = "list checkpoints, verify their checksums, delete by retention",
    .details =
        "DIR is a run's directory or its checkpoints/; for verify it may be one checkpoint.\n"
        "gc verifies the newest checkpoint before it deletes an older one, never deletes one that\n"
        "is unusable, and refuses while a run holds the directory.",
    .options = options,
    .json = true,
};
