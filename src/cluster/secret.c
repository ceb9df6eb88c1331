/* The job's secret: 32 random bytes that every process of a job knows and nobody else. It travels
 * in a file that only its owner can read, or in the launcher's environment; never as an argument,
 * which every user of the machine can see. */
#include "cluster/link.h"

#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGITS (2 * (size_t)DT_SECRET_BYTES)

void dt_secret_make(struct dt_secret *out)
{
    randombytes_buf(out->bytes, sizeof out->bytes);
}

int dt_secret_parse(const char *text, const char *where, struct dt_secret *out)
{
    size_t length = strlen(text), bytes = 0;
    /* The words say nothing of the text itself: it may be a secret with a typing error. */
    if (length != DIGITS)
        return DT_FAIL(DT_E_CONFIG, "%s: a secret has %zu hexadecimal digits, found %zu characters",
                       where, DIGITS, length);
    if (sodium_hex2bin(out->bytes, sizeof out->bytes, text, length, NULL, &bytes, NULL) != 0 ||
        bytes != sizeof out->bytes)
        return DT_FAIL(DT_E_CONFIG, "%s: character %zu of the secret is no hexadecimal digit",
                       where, strspn(text, "0123456789abcdefABCDEF") + 1);
    return DT_OK;
}

void dt_secret_print(const struct dt_secret *s, char out[2 * DT_SECRET_BYTES + 1])
{
    sodium_bin2hex(out, DIGITS + 1, s->bytes, sizeof s->bytes);
}

static int check_file(int fd, const char *path)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return dt_file_fail("examine", path);
    if (!S_ISREG(st.st_mode))
        return DT_FAIL(DT_E_CONFIG, "%s: the secret must be in a plain file", path);
    if (st.st_uid != geteuid())
        return DT_FAIL(DT_E_CONFIG,
                       "%s: the secret's file belongs to user %u, but this process runs as user "
                       "%u: make a copy of your own, with mode 0600",
                       path, st.st_uid, geteuid());
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return DT_FAIL(DT_E_CONFIG,
                       "%s: others may access the secret's file (mode %04o): chmod 600 %s", path,
                       (unsigned)(st.st_mode & 07777), path);
    return DT_OK;
}

static int read_line(int fd, const char *path, struct dt_secret *out)
{
    char text[DIGITS + 16]; /* room to see that it is too long */
    size_t used = 0;
    ssize_t n;
    while (used < sizeof text - 1 && (n = read(fd, text + used, sizeof text - 1 - used)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dt_file_fail("read", path);
        used += (size_t)n;
    }
    if (used > 0 && text[used - 1] == '\n')
        used--;
    text[used] = 0;
    int rc = strlen(text) == used ? dt_secret_parse(text, path, out)
                                  : DT_FAIL(DT_E_CONFIG, "%s: there is a zero byte in it", path);
    sodium_memzero(text, sizeof text);
    return rc;
}

int dt_secret_read(const char *path, struct dt_secret *out)
{
    int fd;
    /* The file that is checked is the file that is read: both through one descriptor. */
    DT_TRY(dt_fd_open(path, &fd));
    int rc = check_file(fd, path);
    if (rc == DT_OK)
        rc = read_line(fd, path, out);
    close(fd);
    return rc;
}
