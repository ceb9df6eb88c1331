/* Speed of tokenizing on one thread, best of several passes over a text; beside Hugging Face's
 * tokenizers on the same text in the same run when a Python that has them is given.
 *
 *     tokenize --tokenizer tokenizer.json --file TEXT [--seconds 3] [--python PY]
 *
 * Prints one JSON line. "cold" is the first pass, with an empty word cache. */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    const char *tokenizer, *file, *python;
    double seconds;
};

/* The whole text at once, and line by line, which the library does faster; its better figure
 * counts. The ids of the whole are counted: lines may be cut differently at their ends. */
static const char script[] = "import sys, time\n"
                             "from tokenizers import Tokenizer\n"
                             "t = Tokenizer.from_file(sys.argv[1])\n"
                             "text = open(sys.argv[2], encoding='utf-8', newline='').read()\n"
                             "best, end = 1e9, time.time() + float(sys.argv[3])\n"
                             "while True:\n"
                             "    s = time.perf_counter()\n"
                             "    n = len(t.encode(text, add_special_tokens=False).ids)\n"
                             "    m = time.perf_counter()\n"
                             "    for line in text.splitlines(True):\n"
                             "        t.encode(line, add_special_tokens=False).ids\n"
                             "    best = min(best, m - s, time.perf_counter() - m)\n"
                             "    if time.time() > end: break\n"
                             "print(best, n)\n";

static int run_python(const struct options *o, double *seconds, long long *ids)
{
    char path[] = "/tmp/tokenize-XXXXXX", command[4096];
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, script, sizeof script - 1) != (ssize_t)(sizeof script - 1))
        return DT_FAIL(DT_E_IO, "cannot write a script to %s", path);
    close(fd);
    snprintf(command, sizeof command, "TOKENIZERS_PARALLELISM=0 '%s' %s '%s' '%s' %g", o->python,
             path, o->tokenizer, o->file, o->seconds);
    FILE *p = popen(command, "r");
    int got = p ? fscanf(p, "%lf %lld", seconds, ids) : 0;
    if (p)
        pclose(p);
    unlink(path);
    return got == 2 ? 0 : DT_FAIL(DT_E_IO, "%s with tokenizers gave no figure", o->python);
}

static int measure(const struct options *o, struct dt_encoder *e, const char *text, size_t bytes)
{
    struct dt_ids ids = {0};
    double best = 1e9, cold = 0, end = dt_clock_seconds() + o->seconds;
    int rc = 0, passes = 0;
    do {
        double start = dt_clock_seconds();
        ids.n = 0;
        rc = dt_encode(e, text, bytes, 0, &ids);
        double took = dt_clock_seconds() - start;
        if (passes++ == 0)
            cold = took;
        best = took < best ? took : best;
    } while (rc == 0 && dt_clock_seconds() < end);
    double python = 0;
    long long python_ids = 0;
    if (rc == 0 && o->python)
        rc = run_python(o, &python, &python_ids);
    if (rc == 0 && o->python && python_ids != ids.n)
        rc = DT_FAIL(DT_E_DATA, "%lld ids here, %lld there", (long long)ids.n, python_ids);
    if (rc == 0) {
        double mb = (double)bytes / 1e6;
        printf("{\"mb_per_second\": %.2f, \"mb_per_second_cold\": %.2f, \"threads\": 1, \"bytes\": "
               "%zu, "
               "\"ids\": %lld",
               mb / best, mb / cold, bytes, (long long)ids.n);
        if (o->python)
            printf(", \"huggingface_mb_per_second\": %.2f, \"ratio\": %.2f", mb / python,
                   python / best);
        printf("}\n");
    }
    dt_ids_free(&ids);
    return rc;
}

static int run(const struct options *o)
{
    struct dt_tokenizer *t;
    struct dt_encoder *e = NULL;
    char *text = NULL;
    size_t bytes;
    DT_TRY(dt_tokenizer_open(o->tokenizer, &t));
    int rc = dt_encoder_new(t, &e);
    if (rc == 0)
        rc = dt_file_read(o->file, (size_t)1 << 32, &text, &bytes);
    if (rc == 0)
        rc = measure(o, e, text, bytes);
    free(text);
    dt_encoder_free(e);
    dt_tokenizer_close(t);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {.seconds = 3};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--tokenizer") == 0)
            o.tokenizer = argv[i + 1];
        else if (strcmp(argv[i], "--file") == 0)
            o.file = argv[i + 1];
        else if (strcmp(argv[i], "--python") == 0)
            o.python = argv[i + 1];
        else if (strcmp(argv[i], "--seconds") == 0)
            o.seconds = atof(argv[i + 1]);
    }
    if (!o.tokenizer || !o.file) {
        fprintf(stderr, "usage: %s --tokenizer FILE --file TEXT [--seconds S] [--python PY]\n",
                argv[0]);
        return 2;
    }
    int rc = run(&o);
    if (rc < 0)
        fprintf(stderr, "%s\n", dt_error_message());
    return dt_error_exit_code(rc);
}
