/* A library for LD_PRELOAD that counts file operations below one directory and, at the k-th, kills
 * the process or lets the operation fail. It knows nothing of Ductile: any program can run over it.
 *
 *   DT_FAULT_UNDER=/abs/dir   which operations count: on names that begin so, and on descriptors
 *                             that were opened by such names
 *   DT_FAULT_AT=K             the K-th of them (from 1); 0 or unset: only count
 *   DT_FAULT_DO=kill          SIGKILL before the operation
 *              =half          a write writes half of its bytes first; others as kill
 *              =ERRNO         a number: the operation fails with it
 *              =stop          SIGSTOP before the operation; on SIGCONT it goes on in peace
 *   DT_FAULT_STICKY=1         all later ones fail as well
 *   DT_FAULT_LOG=FILE         a line "k operation path" each, before it happens
 *   DT_FAULT_NO_EXCHANGE=1    RENAME_EXCHANGE is refused, as on file systems that lack it
 *
 * Where one command starts several processes, one of them is chosen; the others run in peace:
 *
 *   DT_FAULT_IN=WORD          those whose first argument is WORD
 *   DT_FAULT_NTH=K            and of these the K-th child (from 0) of its parent */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS 1024
static char names[FDS][512]; /* of counted descriptors; "" for others */
static const char *under;
static long at, counted;
static int fail_with; /* 0: kill */
static bool half, stop, sticky, no_exchange;
static int log_fd = -1;

/* The kernel lists children in the order of their start; what runs here has not ended. */
static bool nth_child(long n)
{
    char path[64], list[4096] = "", self[16];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getppid(), (int)getppid());
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_read, fd, list, sizeof list - 1) < 0)
        return false;
    syscall(SYS_close, fd);
    snprintf(self, sizeof self, "%d", (int)getpid());
    char *rest, *word = strtok_r(list, " ", &rest);
    while (word && n-- > 0)
        word = strtok_r(NULL, " ", &rest);
    return word && strcmp(word, self) == 0;
}

static bool chosen(int argc, char **argv)
{
    const char *word = getenv("DT_FAULT_IN"), *nth = getenv("DT_FAULT_NTH");
    if (word && (argc < 2 || strcmp(argv[1], word) != 0))
        return false;
    return !nth || nth_child(atol(nth));
}

/* glibc hands a constructor the arguments of main. */
__attribute__((constructor)) static void setup(int argc, char **argv)
{
    if (!chosen(argc, argv))
        return;
    const char *action = getenv("DT_FAULT_DO"), *log = getenv("DT_FAULT_LOG");
    under = getenv("DT_FAULT_UNDER");
    at = getenv("DT_FAULT_AT") ? atol(getenv("DT_FAULT_AT")) : 0;
    half = action && strcmp(action, "half") == 0;
    stop = action && strcmp(action, "stop") == 0;
    fail_with = action ? atoi(action) : 0;
    sticky = getenv("DT_FAULT_STICKY") != NULL;
    no_exchange = getenv("DT_FAULT_NO_EXCHANGE") != NULL;
    if (log)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                              0666);
}

static bool counts(const char *path)
{
    return under && path && strncmp(path, under, strlen(under)) == 0;
}

static const char *name_of(int fd)
{
    return fd >= 0 && fd < FDS ? names[fd] : "";
}

/* True: the operation has failed and errno is set. Does not return when it is time to die. */
static bool meet(const char *operation, const char *path)
{
    long k = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (log_fd >= 0) {
        char line[640];
        int n = snprintf(line, sizeof line, "%ld %s %s\n", k, operation, path);
        syscall(SYS_write, log_fd, line, (size_t)n);
    }
    if (at == 0 || k < at || (k > at && !sticky))
        return false;
    if (stop) {
        kill(getpid(), SIGSTOP);
        return false;
    }
    if (fail_with == 0)
        kill(getpid(), SIGKILL);
    errno = fail_with;
    return true;
}

static bool die_halfway(void)
{
    return half && counted + 1 == at;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int opened(int fd, const char *path)
{
    if (fd >= 0 && fd < FDS)
        snprintf(names[fd], sizeof names[fd], "%s", counts(path) ? path : "");
    return fd;
}

static int open_counted(const char *path, int flags, mode_t mode)
{
    if (counts(path) && meet(flags & O_CREAT ? "create" : "open", path))
        return -1;
    return opened((int)syscall(SYS_openat, AT_FDCWD, path, flags, mode), path);
}

static mode_t mode_argument(int flags, va_list args)
{
    return flags & O_CREAT ? va_arg(args, mode_t) : 0;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = mode_argument(flags, args);                                                  \
        va_end(args);                                                                              \
        return open_counted(path, flags, mode);                                                    \
    }
OPEN(open)
OPEN(open64)

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_argument(flags, args);
    va_end(args);
    bool inside = path[0] == '/' ? counts(path) : name_of(dir)[0] != '\0';
    if (inside && meet("openat", path))
        return -1;
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && fd < FDS)
        snprintf(names[fd], sizeof names[fd], "%s", inside ? path : "");
    return fd;
}

int close(int fd)
{
    bool failed = name_of(fd)[0] && meet("close", name_of(fd));
    if (fd >= 0 && fd < FDS)
        names[fd][0] = '\0';
    int rc = NEXT(close)(fd); /* also a failing close gives the descriptor back */
    if (failed)
        errno = fail_with;
    return failed ? -1 : rc;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (name_of(fd)[0]) {
        if (die_halfway())
            NEXT(write)(fd, data, n / 2);
        if (meet("write", name_of(fd)))
            return -1;
    }
    return NEXT(write)(fd, data, n);
}

static ssize_t pwrite_counted(int fd, const void *data, size_t n, off_t offset)
{
    if (name_of(fd)[0]) {
        if (die_halfway())
            syscall(SYS_pwrite64, fd, data, n / 2, offset);
        if (meet("pwrite", name_of(fd)))
            return -1;
    }
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return pwrite_counted(fd, data, n, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset)
{
    return pwrite_counted(fd, data, n, offset);
}

#define ON_FD(name, parameters, arguments)                                                         \
    int name parameters                                                                            \
    {                                                                                              \
        if (name_of(fd)[0] && meet(#name, name_of(fd)))                                            \
            return -1;                                                                             \
        return NEXT(name) arguments;                                                               \
    }
ON_FD(fsync, (int fd), (fd))
ON_FD(fdatasync, (int fd), (fd))
ON_FD(ftruncate, (int fd, off_t size), (fd, size))
ON_FD(fallocate, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size))

#define ON_PATH(name, parameters, arguments)                                                       \
    int name parameters                                                                            \
    {                                                                                              \
        if (counts(path) && meet(#name, path))                                                     \
            return -1;                                                                             \
        return NEXT(name) arguments;                                                               \
    }
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(rmdir, (const char *path), (path))
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rename, (const char *from, const char *path), (from, path))

int unlinkat(int dir, const char *path, int flags)
{
    bool inside = path[0] == '/' ? counts(path) : name_of(dir)[0] != '\0';
    /* The descriptor of fdopendir is ours, but readers may have it from opendir: count those too.
     */
    if ((inside || (under && path[0] != '/')) && meet("unlinkat", path))
        return -1;
    return NEXT(unlinkat)(dir, path, flags);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *path, unsigned int flags)
{
    if (counts(path) && no_exchange && flags) {
        errno = EINVAL;
        return -1;
    }
    if (counts(path) && meet(flags ? "exchange" : "rename", path))
        return -1;
    return NEXT(renameat2)(from_dir, from, to_dir, path, flags);
}
