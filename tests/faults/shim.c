/* Loaded in front of libc (LD_PRELOAD): counts every call that changes a file below one folder, over all threads, and
   kills, fails, halves or holds up the n-th of them. What to do is read from memory shared with the test (`struct control`,
   shim.py); with `logging` every call that was made is written to a log, with its bytes, for tests of power cuts.

   A lock is held around each counted call, so that the log has them in the order in which they happened. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum mode { COUNT, KILL_BEFORE, KILL_AFTER, FAIL, HALF, STALL };
/* What a call needs from the disk: free space, a sync, or anything else. */
enum kind { GROW = 1, SYNC = 2, OTHER = 4 };

/* What becomes of writes over bytes that are there, as when an append is blanked out: all of them, half of each, or half
   of the first and then a kill. */
enum over { WHOLE, SHORT, TORN };

struct control {
    uint64_t counter; /* calls so far */
    uint64_t first;   /* the first call that is hit, from 1; 0: none */
    uint64_t hit;     /* how many were hit */
    uint32_t mode;
    uint32_t error;   /* for FAIL */
    uint32_t forever; /* the kinds (a mask) of every later call that is hit as well */
    uint32_t logging;
    uint32_t over;    /* once a call was hit: WHOLE, SHORT or TORN */
    char root[512];
};

static struct control *control;
static pid_t owner;
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Called once in the process that gets faults, after its fork: other processes with the shim are left alone. */
int faults_attach(const char *control_path, const char *log_path) {
    int fd = syscall(SYS_openat, AT_FDCWD, control_path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (map == MAP_FAILED) return -1;
    int opened = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_fd = fcntl(opened, F_DUPFD_CLOEXEC, 500); /* out of the way of low numbers that tests count on */
    syscall(SYS_close, opened);
    owner = getpid();
    control = map;
    return 0;
}

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int path_at(int dir, const char *name, char *path, size_t size) {
    char folder[2048];
    if (name == NULL) return 0;
    if (strncmp(name, "/proc/self/fd/", 14) == 0) return path_of(atoi(name + 14), path, size);
    if (name[0] == '/') return snprintf(path, size, "%s", name) < (int)size;
    if (dir == AT_FDCWD ? syscall(SYS_getcwd, folder, sizeof folder) < 0 : !path_of(dir, folder, sizeof folder)) return 0;
    return snprintf(path, size, "%s/%s", folder, name) < (int)size;
}

static int counted(const char *path) {
    size_t length = strlen(control->root);
    return length && strncmp(path, control->root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int ours(void) { return control != NULL && owner == getpid(); }

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Begin a call: 0 make it, 1 make half of it, 2 make it and die, 3 make half of it and die, -1 it failed. The lock is held
   afterwards. */
static int enter(enum kind kind, int halves, int over) {
    pthread_mutex_lock(&lock);
    uint64_t number = ++control->counter;
    if (over && control->over && control->hit) {
        control->hit++;
        return control->over == TORN ? 3 : 1;
    }
    if (!control->first || number < control->first || (number > control->first && !(control->forever & kind))) return 0;
    if (control->mode == HALF && !halves) return 0;
    control->hit++;
    switch (control->mode) {
    case KILL_BEFORE: die(); return -1;
    case KILL_AFTER: return 2;
    case FAIL: errno = control->error; return -1;
    case HALF: return 1;
    case STALL: /* until the test disarms; the calls of other threads go on */
        pthread_mutex_unlock(&lock);
        while (*(volatile uint64_t *)&control->first) usleep(1000);
        pthread_mutex_lock(&lock);
        return 0;
    default: return 0;
    }
}

static void leave(int verdict, const char *name, const char *path, const char *to, int64_t offset, const void *data, int64_t result) {
    int kept = errno;
    /* A sync that is reported as failed may have been done all the same. */
    if (((result >= 0 && verdict != -1) || strcmp(name, "sync") == 0) && control->logging) {
        char head[4096];
        size_t root = strlen(control->root);
        size_t size = data == NULL || result < 0 ? 0 : (size_t)result;
        int length = snprintf(head, sizeof head, "%lu\t%s\t%s\t%s\t%ld\t%zu\n", (unsigned long)control->counter, name,
                              path + root, to == NULL ? "" : to + root, (long)offset, size);
        syscall(SYS_write, log_fd, head, length);
        if (size) syscall(SYS_write, log_fd, data, size);
    }
    if (verdict == 2 || verdict == 3) die();
    pthread_mutex_unlock(&lock);
    errno = kept;
}

/* A call about `path` that moves no bytes. */
#define PLAIN(KIND, NAME, PATH, TO, OFFSET, CALL)                    \
    ({                                                               \
        int verdict_ = enter(KIND, 0, 0);                              \
        int64_t result_ = verdict_ < 0 ? -1 : (CALL);                \
        leave(verdict_, NAME, PATH, TO, OFFSET, NULL, result_);      \
        result_;                                                     \
    })

static int open_at(int dir, const char *name, int flags, mode_t mode) {
    char path[2048];
    if (!(flags & (O_CREAT | O_TRUNC)) || !ours() || !path_at(dir, name, path, sizeof path) || !counted(path))
        return syscall(SYS_openat, dir, name, flags, mode);
    int there = syscall(SYS_faccessat, dir, name, F_OK, 0) == 0;
    if (there && !(flags & O_TRUNC)) return syscall(SYS_openat, dir, name, flags, mode);
    return PLAIN(GROW, there ? "truncate" : "create", path, NULL, 0, syscall(SYS_openat, dir, name, flags, mode));
}

#define OPEN(DIR, NAME, FLAGS)                                       \
    va_list rest_;                                                   \
    va_start(rest_, FLAGS);                                          \
    mode_t mode_ = (FLAGS) & (O_CREAT | O_TMPFILE) ? va_arg(rest_, int) : 0; \
    va_end(rest_);                                                   \
    return open_at(DIR, NAME, FLAGS, mode_)
int open(const char *name, int flags, ...) { OPEN(AT_FDCWD, name, flags); }
int open64(const char *name, int flags, ...) { OPEN(AT_FDCWD, name, flags); }
int openat(int dir, const char *name, int flags, ...) { OPEN(dir, name, flags); }
int openat64(int dir, const char *name, int flags, ...) { OPEN(dir, name, flags); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[2048];
    if (!ours() || !path_of(fd, path, sizeof path) || !counted(path)) return syscall(SYS_write, fd, data, size);
    int verdict = enter(GROW, 1, 0);
    ssize_t result = verdict < 0 ? -1 : syscall(SYS_write, fd, data, verdict == 1 && size > 1 ? size / 2 : size);
    int kept = errno;
    int64_t offset = result < 0 ? 0 : lseek(fd, 0, SEEK_CUR) - result; /* O_APPEND: known only afterwards */
    errno = kept;
    leave(verdict, "write", path, NULL, offset, data, result);
    return result;
}

static ssize_t write_at(int fd, const void *data, size_t size, off_t offset) {
    char path[2048];
    if (!ours() || !path_of(fd, path, sizeof path) || !counted(path)) return syscall(SYS_pwrite64, fd, data, size, offset);
    struct stat status;
    int over = syscall(SYS_fstat, fd, &status) == 0 && offset + (off_t)size <= status.st_size;
    int verdict = enter(over ? OTHER : GROW, 1, over);
    size_t part = (verdict == 1 || verdict == 3) && size > 1 ? size / 2 : size;
    ssize_t result = verdict < 0 ? -1 : syscall(SYS_pwrite64, fd, data, part, offset);
    leave(verdict, "write", path, NULL, offset, data, result);
    return result;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return write_at(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return write_at(fd, data, size, offset); }

#define ON_FD(KIND, NAME, OFFSET, CALL)                                                              \
    char path[2048];                                                                           \
    if (!ours() || !path_of(fd, path, sizeof path) || !counted(path)) return (CALL);           \
    return PLAIN(KIND, NAME, path, NULL, OFFSET, CALL)
int fsync(int fd) { ON_FD(SYNC, "sync", 0, syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { ON_FD(SYNC, "sync", 0, syscall(SYS_fdatasync, fd)); }
int ftruncate(int fd, off_t size) { ON_FD(OTHER, "cut", size, syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off_t size) { ON_FD(OTHER, "cut", size, syscall(SYS_ftruncate, fd, size)); }
int fchmod(int fd, mode_t mode) { ON_FD(OTHER, "chmod", mode, syscall(SYS_fchmod, fd, mode)); }

static int chmod_at(int dir, const char *name, mode_t mode) {
    char path[2048];
    if (!ours() || !path_at(dir, name, path, sizeof path) || !counted(path)) return syscall(SYS_fchmodat, dir, name, mode);
    return PLAIN(OTHER, "chmod", path, NULL, mode, syscall(SYS_fchmodat, dir, name, mode));
}
int chmod(const char *name, mode_t mode) { return chmod_at(AT_FDCWD, name, mode); }

static int rename_at(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char path[2048], target[2048];
    if (!ours() || !path_at(from_dir, from, path, sizeof path) || !path_at(to_dir, to, target, sizeof target) ||
        !counted(path) || !counted(target))
        return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    return PLAIN(GROW, "rename", path, target, flags, syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}
int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return rename_at(from_dir, from, to_dir, to, 0); }
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return rename_at(from_dir, from, to_dir, to, flags);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char path[2048], target[2048];
    if (!ours() || !path_at(from_dir, from, path, sizeof path) || !path_at(to_dir, to, target, sizeof target) ||
        !counted(target))
        return syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    return PLAIN(GROW, "link", path, target, 0, syscall(SYS_linkat, from_dir, from, to_dir, to, flags));
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int remove_at(int dir, const char *name, int flags) {
    char path[2048];
    if (!ours() || !path_at(dir, name, path, sizeof path) || !counted(path)) return syscall(SYS_unlinkat, dir, name, flags);
    return PLAIN(OTHER, "remove", path, NULL, flags, syscall(SYS_unlinkat, dir, name, flags));
}
int unlink(const char *name) { return remove_at(AT_FDCWD, name, 0); }
int unlinkat(int dir, const char *name, int flags) { return remove_at(dir, name, flags); }
int rmdir(const char *name) { return remove_at(AT_FDCWD, name, AT_REMOVEDIR); }

static int mkdir_at(int dir, const char *name, mode_t mode) {
    char path[2048];
    if (!ours() || !path_at(dir, name, path, sizeof path) || !counted(path)) return syscall(SYS_mkdirat, dir, name, mode);
    return PLAIN(GROW, "mkdir", path, NULL, 0, syscall(SYS_mkdirat, dir, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdir_at(AT_FDCWD, name, mode); }
int mkdirat(int dir, const char *name, mode_t mode) { return mkdir_at(dir, name, mode); }
