/* The program around a verb: finding it, standard streams, and how a failure leaves the process.
 *
 * Only here is a failure printed: one line "ductile VERB: message" on standard error (more lines
 * when the message lists several problems), the trail behind it with --verbose, and the exit code
 * of the error table. A result that could not be written (full disk, closed pipe) is a failure too.
 */
#include "cli/cli.h"

#include "base/config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define DT_VERB(name) extern const struct dt_cli_verb dt_cli_verb_##name;
#include "cli/verbs.def"
#undef DT_VERB

const struct dt_cli_verb *const dt_cli_verbs[] = {
#define DT_VERB(name) &dt_cli_verb_##name,
#include "cli/verbs.def"
#undef DT_VERB
    NULL,
};

static const char *const later[] = {"import",  "plan",   "verify", "simulate",
                                    "profile", "inject", "serve"};

const struct dt_cli_verb *dt_cli_find_verb(const char *name)
{
    for (size_t i = 0; dt_cli_verbs[i]; i++)
        if (strcmp(dt_cli_verbs[i]->name, name) == 0)
            return dt_cli_verbs[i];
    return NULL;
}

bool dt_cli_later_verb(const char *name)
{
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(later[i], name) == 0)
            return true;
    return false;
}

/* With 0, 1 or 2 closed, the next file opened would take their place and be written into. Opened
 * the wrong way round, the missing stream fails on use instead. */
static void keep_streams(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int opened = open("/dev/null", modes[fd]);
            if (opened >= 0 && opened != fd)
                close(opened);
        }
}

/* Results that did not arrive are a failure, whatever the verb thought. */
static int flush_results(int rc)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if (fflush(stdout) != 0)
        failed = true;
    if (!failed || rc < 0)
        return rc;
    return DT_FAIL(DT_E_IO, "cannot write to standard output: %s",
                   errno ? strerror(errno) : "an earlier write failed");
}

static int leave(const char *verb, int rc, bool verbose)
{
    rc = flush_results(rc);
    if (rc >= 0)
        return 0;
    fprintf(stderr, "ductile%s%s: %s\n", verb ? " " : "", verb ? verb : "", dt_error_message());
    if (verbose)
        fprintf(stderr, "  %s at %s\n", dt_error_name(rc), dt_error_trail());
    return dt_error_exit_code(rc);
}

static int unknown_verb(const char *name)
{
    const char *names[64];
    size_t n = 0;
    if (dt_cli_later_verb(name))
        return DT_FAIL(DT_E_UNSUPPORTED, "the verb %s is not built into this version", name);
    for (; dt_cli_verbs[n] && n < 64; n++)
        names[n] = dt_cli_verbs[n]->name;
    const char *near = dt_config_nearest_word(names, n, name);
    if (near)
        return DT_FAIL(DT_E_USAGE, "unknown verb \"%.60s\"; did you mean %s?", name, near);
    return DT_FAIL(DT_E_USAGE, "unknown verb \"%.60s\"; ductile --help lists them", name);
}

static int change_directory(const char *directory)
{
    if (directory && chdir(directory) != 0)
        return DT_FAIL(DT_E_USAGE, "-C %s: %s", directory, strerror(errno));
    return DT_OK;
}

static int run_verb(struct dt_cli *cli, const struct dt_cli_verb *verb, int argc, char **argv)
{
    DT_TRY(dt_cli_parse(cli, verb, argc, argv));
    if (cli->help) {
        dt_cli_help(verb, stdout);
        return DT_OK;
    }
    if (cli->verbose)
        dt_log_set_level(DT_LOG_DEBUG);
    DT_TRY(change_directory(cli->directory));
    DT_TRY(verb->run(cli));
    if (cli->json && cli->json_written != 1)
        return DT_FAIL(DT_E_INTERNAL, "the verb wrote %d JSON documents, expected one",
                       cli->json_written);
    return DT_OK;
}

static int help_about(int argc, char **argv)
{
    if (argc == 0) {
        dt_cli_help_all(stdout);
        return DT_OK;
    }
    const struct dt_cli_verb *verb = dt_cli_find_verb(argv[0]);
    if (!verb)
        return unknown_verb(argv[0]);
    dt_cli_help(verb, stdout);
    return DT_OK;
}

int dt_cli_main(int argc, char **argv)
{
    struct dt_cli cli = {0};
    keep_streams();
    signal(SIGPIPE, SIG_IGN);
    int at = 1, rc = DT_OK;
    while (rc == DT_OK && at < argc && strcmp(argv[at], "-C") == 0) {
        rc = at + 1 < argc ? change_directory(argv[at + 1])
                           : DT_FAIL(DT_E_USAGE, "-C needs a directory");
        at += 2;
    }
    if (rc < 0)
        return leave(NULL, rc, false);
    if (at >= argc) {
        dt_cli_help_all(stderr);
        return dt_error_exit_code(DT_E_USAGE);
    }
    const char *name = argv[at++];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return leave(NULL, help_about(argc - at, argv + at), false);
    if (strcmp(name, "--version") == 0)
        name = "version";
    const struct dt_cli_verb *verb = dt_cli_find_verb(name);
    if (!verb)
        return leave(NULL, unknown_verb(name), false);
    rc = run_verb(&cli, verb, argc - at, argv + at);
    int code = leave(verb->name, rc, cli.verbose);
    dt_cli_free(&cli);
    return code;
}
