/* Feeds the program what it did not write: every kind of file that it reads, cut, flipped, empty, missing, or of
 * another kind. Whatever it is, the program neither dies nor hangs: it ends with 2 or 3 and one line that names the
 * file, or with 0 where the damage is such that nobody can see it (a weight, a letter of a text). What a
 * checkpoint's manifest covers has no such place: each flipped bit is found.
 *
 * Damage is drawn from a fixed seed. Jobs are dealt to workers, each with its own copy of the files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "live.h"

#include <sys/resource.h>

#define WORKERS 2
#define CUTS 16
#define FLIPS 60
#define COMPLAINTS 12 /* of a worker, printed whole */

enum kind { CUT, FLIP, EMPTY, MISSING, RANDOM, DIRECTORY, FOREIGN, KINDS };
static const char *const kind_names[] = {"cut to", "bit flipped at", "empty", "missing", "random bytes", "a directory",
                                         "replaced by"};
static const char *const foreign[] = {"model/config.json", "model/model.safetensors", "rows.jsonl.gz", "c.idx"};
#define FOREIGNS (int)(sizeof foreign / sizeof *foreign)
#define BIT(k) (1u << (k))
#define NEVER 0u                     /* and BIT(MISSING) where without the file every token trains */
#define LETTERS BIT(FLIP)            /* a weight, a letter, a number that is as good as the other */
#define LINES (BIT(FLIP) | BIT(CUT)) /* and whole lines that are missing at the end */

/* `quiet` are the kinds of damage that may pass unseen, `elsewhere` those whose message may name another file: a key of
 * a valid RUN.yaml that leads to a path which is not there. */
struct target {
    const char *file, *verb, *command;
    unsigned quiet, elsewhere;
    int flips;
    const char *also; /* words that do as well as the name */
};

struct damage {
    enum kind kind;
    long at; /* bytes, bit, or index of foreign[] */
};

static unsigned char base[1 << 18];
static size_t base_size;
static char out[1 << 14], err[1 << 14], where[512];
static int complaints;

static size_t read_file(const char *dir, const char *name, void *into, size_t room)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        abort();
    size_t n = fread(into, 1, room, f);
    if (n == room)
        abort();
    fclose(f);
    ((unsigned char *)into)[n] = 0;
    return n;
}

static void write_file(const char *dir, const char *name, const void *bytes, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
    rmdir(path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f) != 0)
        abort();
}

static uint64_t draw(uint64_t *x)
{
    *x += 0x9e3779b97f4a7c15u;
    uint64_t z = (*x ^ (*x >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The k-th damage of a file of base_size bytes; false behind the last. Half of the flips are in the first 512 bytes,
 * where headers are. */
static bool damage_of(const struct target *t, int k, struct damage *d)
{
    if (k < CUTS) {
        *d = (struct damage){CUT, k == 0 ? (long)base_size - 1 : (long)base_size * k / CUTS};
        return true;
    }
    k -= CUTS;
    if (k < t->flips) {
        uint64_t x = (uint64_t)k + 1000003u * base_size;
        size_t span = k % 2 && base_size > 512 ? 512 : base_size;
        *d = (struct damage){FLIP, (long)(draw(&x) % (span * 8))};
        return true;
    }
    k -= t->flips;
    static const enum kind single[] = {EMPTY, MISSING, RANDOM, DIRECTORY};
    if (k < 4) {
        *d = (struct damage){single[k], 0};
        return true;
    }
    *d = (struct damage){FOREIGN, k - 4};
    return k - 4 < FOREIGNS;
}

static void apply(const struct target *t, struct damage d)
{
    static unsigned char bytes[sizeof base];
    char path[1024];
    uint64_t x = 7;
    size_t size = base_size;
    memcpy(bytes, base, base_size);
    if (d.kind == CUT || d.kind == EMPTY)
        size = (size_t)d.at;
    else if (d.kind == FLIP)
        bytes[d.at / 8] ^= (unsigned char)(1u << (d.at % 8));
    else if (d.kind == FOREIGN)
        size = read_file(program_dir, foreign[d.at], bytes, sizeof bytes);
    else if (d.kind == RANDOM)
        for (size = 0; size < 4096; size++)
            bytes[size] = (unsigned char)draw(&x);
    write_file(where, t->file, bytes, size);
    snprintf(path, sizeof path, "%s/%s", where, t->file);
    if ((d.kind == MISSING || d.kind == DIRECTORY) && unlink(path) != 0)
        abort();
    if (d.kind == DIRECTORY && mkdir(path, 0777) != 0)
        abort();
}

/* In the worker's directory, output to files there; a program that does not come to an end is killed. */
static int run(const char *command)
{
    char whole[2048];
    snprintf(whole, sizeof whole, "exec '%s' %s >out.txt 2>err.txt", DT_DUCTILE, command);
    pid_t pid = fork();
    if (pid < 0)
        abort();
    if (pid == 0) {
        setenv("OMP_WAIT_POLICY", "passive", 1);
        setrlimit(RLIMIT_CPU, &(struct rlimit){30, 30});
        alarm(LIVE_SECONDS);
        if (chdir(where) == 0)
            execl("/bin/sh", "sh", "-c", whole, (char *)NULL);
        _exit(127);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid)
        abort();
    read_file(where, "out.txt", out, sizeof out);
    read_file(where, "err.txt", err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Damage that by its nature nobody can see: only the end of the last line is gone, or only whole lines are where
 * lines stand for themselves. */
static bool unseen(const struct target *t, struct damage d)
{
    if (d.kind != CUT)
        return (t->quiet & BIT(d.kind)) != 0;
    if (base[d.at] == '\n' && (size_t)d.at == base_size - 1)
        return true;
    /* "checkpoint:" without a value is a section of defaults. */
    return (t->quiet & BIT(CUT)) && (base[d.at] == '\n' || strchr(": \n", base[d.at - 1]));
}

/* What is wrong with the way the program took it; NULL when nothing is. */
static const char *judge(const struct target *t, struct damage d, int code)
{
    char head[64], name[64];
    snprintf(head, sizeof head, "ductile %s: ", t->verb);
    const char *line = strncmp(err, head, strlen(head)) == 0 ? err : NULL, *more = NULL;
    for (const char *p = err; (p = strchr(p, '\n')) && *++p;)
        if (strncmp(p, head, strlen(head)) == 0) {
            more = line;
            line = p;
        }
    if (code == 0 && strstr(out, "nan") && !strstr(err, "no numbers"))
        return "a loss that is no number, without a word";
    if (code == 0)
        return unseen(t, d) ? NULL : "not noticed";
    if (code != 2 && code != 3)
        return "exit code is neither 2 nor 3";
    if (!line || more)
        return "not one line of failure";
    snprintf(name, sizeof name, "%s", last_part(t->file));
    if (!strstr(line, name) && !(t->also && strstr(line, t->also)) && !(t->elsewhere & BIT(d.kind)))
        return "does not name the file";
    for (const char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 && *p != '\n' && *p != '\t')
            return "control characters in the message";
    return NULL;
}

static void complain(const struct target *t, struct damage d, int code, const char *what)
{
    if (complaints++ < COMPLAINTS)
        fprintf(stderr, "%s %s %ld, `%s`: exit code %d: %s\n%.1000s%.1000s\n", t->file, kind_names[d.kind], d.at,
                t->command, code, what, err, code ? "" : out);
}

static void damage_target(const struct target *t, int worker, int *job)
{
    struct damage d;
    int code;
    base_size = read_file(program_dir, t->file, base, sizeof base);
    if ((code = run(t->command)) != 0)
        complain(t, (struct damage){KINDS - 1, -1}, code, "undamaged");
    for (int k = 0; damage_of(t, k, &d); k++) {
        /* Itself is not foreign, nor is what it is when unpacked. */
        const char *other = last_part(foreign[d.at % FOREIGNS]), *mine = last_part(t->file);
        if (d.kind == FOREIGN && strncmp(other, mine, strlen(mine)) == 0)
            continue;
        if ((*job)++ % WORKERS != worker)
            continue;
        apply(t, d);
        code = run(t->command);
        const char *wrong = judge(t, d, code);
        if (wrong)
            complain(t, d, code, wrong);
    }
    write_file(where, t->file, base, base_size);
}

static void damage_all(const struct target *targets, size_t count)
{
    pid_t pid[WORKERS];
    for (int w = 0; w < WORKERS; w++) {
        pid[w] = fork();
        if (pid[w] != 0)
            continue;
        int job = 0;
        program_run("rm -rf w%d && mkdir w%d && cp -r model rows.jsonl rows.jsonl.gz c.bin c.idx c.mask run.yaml "
                    "ref w%d", w, w, w);
        snprintf(where, sizeof where, "%s/w%d", program_dir, w);
        for (size_t i = 0; i < count; i++)
            damage_target(&targets[i], w, &job);
        _exit(complaints ? 1 : 0);
    }
    int failed = 0;
    for (int w = 0; w < WORKERS; w++) {
        int status;
        assert_int_equal(waitpid(pid[w], &status, 0), pid[w]);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

#define DAMAGE(targets) damage_all(targets, sizeof(targets) / sizeof *(targets))
#define PLAIN " --threads 1 --dtype float32"

/* A model of one layer and 300 tokens, rows with prompts, a corpus with a mask, and a run of two checkpoints. */
static int open_files(void **state)
{
    (void)state;
    live_open("fault-inputs");
    program_write("run.yaml",
                  "# a comment\nmodel: model\noutput: out\nseed: 3\ndata: {train: [rows.jsonl], max_length: 32}\n"
                  "batch: {tokens: 64}\nmicrobatch: {tokens: 32}\ntrain: {steps: 4, dtype: float32}\n"
                  "optimizer: {lr: 0.01, warmup: 1}\ncheckpoint: {every: 2, keep: 2}\nthreads: 1\n");
    int code = program_run(
        "mkdir start && for i in 1 2 3 4 5 6 7 8; do echo "
        "\"{\\\"prompt\\\": \\\"What is $i?\\\", \\\"completion\\\": \\\"It is $((i+i)), as \\u00e4lways.\\\"}\"; "
        "done > rows.jsonl && gzip -k rows.jsonl && "
        "$D tokenize --train --vocab-size 280 -o start rows.jsonl && "
        "echo '{\"model_type\":\"llama\",\"hidden_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"intermediate_size\":32,\"vocab_size\":280,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}' > start/config.json && "
        "$D train run.yaml --model=start --init=random --output=first --train.steps=1 && "
        "$D export first model --dtype float32 && $D corpus build --tokenizer model -o c --threads 1 rows.jsonl && "
        "$D train run.yaml --output=ref");
    if (code != 0)
        fputs(program_out, stderr);
    return code ? -1 : 0;
}

static int close_files(void **state)
{
    (void)state;
    program_close();
    return 0;
}

static void test_models(void **state)
{
    (void)state;
    static const struct target targets[] = {
        {"model/model.safetensors", "eval", "eval model --data c" PLAIN, LETTERS, NEVER, FLIPS, NULL},
        {"model/model.safetensors", "inspect", "inspect model/model.safetensors", LETTERS, NEVER, FLIPS, NULL},
        {"model/model.safetensors", "logits", "logits model --ids 1 -o l.safetensors" PLAIN, LETTERS, NEVER, FLIPS,
         NULL},
        {"model/config.json", "eval", "eval model --data c" PLAIN, LETTERS, NEVER, FLIPS, NULL},
        {"model/config.json", "estimate", "estimate run.yaml", LETTERS, NEVER, FLIPS, NULL},
        {"model/tokenizer.json", "tokenize", "tokenize model --file run.yaml", LETTERS, NEVER, FLIPS, NULL},
        {"model/tokenizer.json", "generate", "generate model --prompt What --max-new-tokens 4" PLAIN, LETTERS, NEVER,
         FLIPS, NULL},
    };
    DAMAGE(targets);
}

static void test_data(void **state)
{
    (void)state;
    static const struct target targets[] = {
        {"c.bin", "corpus", "corpus show c --tokenizer model", LETTERS, NEVER, FLIPS, "c.idx"},
        {"c.idx", "corpus", "corpus show c --tokenizer model", LETTERS, NEVER, FLIPS, NULL},
        {"c.mask", "corpus", "corpus show c --tokenizer model", BIT(MISSING), NEVER, FLIPS, NULL},
        {"c.bin", "eval", "eval model --data c" PLAIN, LETTERS, NEVER, FLIPS, "c.idx"},
        {"c.idx", "eval", "eval model --data c" PLAIN, LETTERS, NEVER, FLIPS, NULL},
        {"c.mask", "eval", "eval model --data c" PLAIN, BIT(MISSING), NEVER, FLIPS, NULL},
        {"rows.jsonl", "eval", "eval model --data rows.jsonl" PLAIN, LINES, NEVER, FLIPS, NULL},
        {"rows.jsonl.gz", "eval", "eval model --data rows.jsonl.gz" PLAIN, LETTERS, NEVER, FLIPS, NULL},
        {"rows.jsonl", "train", "train run.yaml --dry-run", LINES, NEVER, FLIPS, NULL},
        {"run.yaml", "train", "train run.yaml --dry-run", LINES, BIT(FLIP), FLIPS, NULL},
        {"run.yaml", "estimate", "estimate run.yaml", LINES, BIT(FLIP), FLIPS, NULL},
    };
    DAMAGE(targets);
}

#define STEP "ref/checkpoints/step-00000004/"

static void test_checkpoints(void **state)
{
    (void)state;
    static const struct target targets[] = {
        {STEP "model.safetensors", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "optimizer/exp_avg.safetensors", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "optimizer/exp_avg_sq.safetensors", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "trainer.json", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "config.json", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "tokenizer.json", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "manifest.json", "ckpt", "ckpt verify " STEP, NEVER, NEVER, FLIPS, NULL},
        {STEP "config.json", "export", "export " STEP " \"$(mktemp -u -p .)\"", NEVER, NEVER, FLIPS / 4, NULL},
        {STEP "model.safetensors", "export", "export " STEP " \"$(mktemp -u -p .)\"", NEVER, NEVER, FLIPS / 4, NULL},
    };
    DAMAGE(targets);
}

/* A run whose newest checkpoint is damaged goes back to the one before and ends with the same bits. */
static void test_resume(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer/exp_avg.safetensors",
                                        "optimizer/exp_avg_sq.safetensors", "trainer.json", "config.json",
                                        "manifest.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct target t = {.file = files[i], .flips = 2};
        snprintf(where, sizeof where, "%s/out/checkpoints/step-00000004", program_dir);
        program_expect(0, "rm -rf out && cp -r ref out");
        base_size = read_file(where, files[i], base, sizeof base);
        static const struct damage damages[] = {{CUT, 100}, {EMPTY, 0}, {RANDOM, 0}, {DIRECTORY, 0}, {MISSING, 0}};
        struct damage d;
        for (int k = 0; k < 7; k++) {
            if (k < 5)
                d = damages[k];
            else
                damage_of(&t, CUTS + k - 5, &d);
            apply(&t, d);
            int code = program_run("$D train run.yaml --train.steps=4 && for f in model optimizer/exp_avg "
                                   "optimizer/exp_avg_sq; do cmp ref/checkpoints/step-00000004/$f.safetensors "
                                   "out/checkpoints/step-00000004/$f.safetensors || exit 9; done");
            if (code != 0 || !strstr(program_out, "falling back to the checkpoint of step 2"))
                fail_msg("%s %s %ld: exit code %d:\n%s", files[i], kind_names[d.kind], d.at, code, program_out);
            program_expect(0, "$D ckpt verify out && rm -rf out && cp -r ref out");
        }
    }
}

/* Weights that are no numbers: the loss says so, a text is not invented. */
static void test_no_numbers(void **state)
{
    (void)state;
    program_expect(0, "cp -r model none && printf '\\377\\377\\377\\377' | dd of=none/model.safetensors bs=1 "
                      "seek=$(($(stat -c %%s none/model.safetensors) - 64)) conv=notrunc status=none");
    program_expect(0, "$D eval none --data c" PLAIN);
    assert_non_null(strstr(program_out, "no numbers"));
    program_expect(0, "$D eval none --data c --json" PLAIN " 2>/dev/null | grep '\"loss\": *null'");
    assert_int_not_equal(program_run("$D generate none --prompt What" PLAIN), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_no_numbers),
    };
    return cmocka_run_group_tests(tests, open_files, close_files);
}
