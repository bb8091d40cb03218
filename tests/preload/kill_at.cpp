// Preloaded into the program under test (LD_PRELOAD): counts the calls that change files, and at the n-th one ends the
// process with SIGKILL before the call is made, or lets the call fail. Standard output and error do not count.
//
//   KILL_AT=7                     the 7th such call is never made
//   FAIL_AT=7 FAIL_ERRNO=28       it fails with that errno (28: no space left)
//   SHRINK_AT=7 SHRINK_FILE=FILE  before it, FILE is cut off after its first 4 KiB
//   COUNT_CALLS=FILE              at the end, how many there were
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace {

long from_environment(const char* name) {
    const char* const text = std::getenv(name);
    return text ? std::atol(text) : 0;
}

std::atomic<long> calls{0};
const long kill_at = from_environment("KILL_AT"), fail_at = from_environment("FAIL_AT"),
           shrink_at = from_environment("SHRINK_AT");
const int fail_errno = static_cast<int>(from_environment("FAIL_ERRNO"));

// True: the call shall fail. Removing takes neither space nor a descriptor: it is counted, and never fails.
bool counted(bool removes = false) {
    const long now = ++calls;
    if (now == kill_at) ::kill(::getpid(), SIGKILL);
    if (now == shrink_at && ::truncate(std::getenv("SHRINK_FILE"), 4096) != 0) std::abort();
    if (now != fail_at || removes) return false;
    errno = fail_errno;
    return true;
}

template <class Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

struct Report {
    ~Report() {
        const char* const path = std::getenv("COUNT_CALLS");
        if (!path) return;
        const long n = calls;
        if (std::FILE* const file = std::fopen(path, "w")) {
            std::fprintf(file, "%ld\n", n);
            std::fclose(file);
        }
    }
} report;

bool changes_files(int flags) { return (flags & (O_CREAT | O_TRUNC | O_TMPFILE)) != 0 && (flags & O_DIRECTORY) == 0; }

mode_t mode_of(int flags, va_list list) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(list, unsigned)) : 0;
}

}  // namespace

#define OPEN(NAME)                                                            \
    extern "C" int NAME(const char* path, int flags, ...) {                   \
        va_list list;                                                         \
        va_start(list, flags);                                                \
        const mode_t mode = mode_of(flags, list);                             \
        va_end(list);                                                         \
        static const auto real = next<int (*)(const char*, int, ...)>(#NAME); \
        if (changes_files(flags) && counted()) return -1;                     \
        return real(path, flags, mode);                                       \
    }
#define OPENAT(NAME)                                                               \
    extern "C" int NAME(int at, const char* path, int flags, ...) {                \
        va_list list;                                                              \
        va_start(list, flags);                                                     \
        const mode_t mode = mode_of(flags, list);                                  \
        va_end(list);                                                              \
        static const auto real = next<int (*)(int, const char*, int, ...)>(#NAME); \
        if (changes_files(flags) && counted()) return -1;                          \
        return real(at, path, flags, mode);                                        \
    }
// `CONDITION` of the arguments: whether the call changes a file.
#define CALL(RESULT, NAME, PARAMETERS, ARGUMENTS, CONDITION)        \
    extern "C" RESULT NAME PARAMETERS {                             \
        static const auto real = next<RESULT(*) PARAMETERS>(#NAME); \
        if ((CONDITION) && counted()) return -1;                    \
        return real ARGUMENTS;                                      \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CALL(int, mkostemp, (char* name, int flags), (name, flags), true)
CALL(int, mkostemp64, (char* name, int flags), (name, flags), true)
CALL(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size), fd > 2)
CALL(ssize_t, writev, (int fd, const iovec* parts, int count), (fd, parts, count), fd > 2)
CALL(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), (fd, data, size, at), true)
CALL(ssize_t, pwrite64, (int fd, const void* data, size_t size, off_t at), (fd, data, size, at), true)
CALL(ssize_t, sendfile, (int out, int in, off_t* at, size_t size), (out, in, at, size), true)
CALL(int, ftruncate, (int fd, off_t size), (fd, size), true)
CALL(int, ftruncate64, (int fd, off_t size), (fd, size), true)
CALL(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), true)
CALL(int, fallocate64, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), true)
CALL(int, fsync, (int fd), (fd), true)
CALL(int, rename, (const char* from, const char* to), (from, to), true)
CALL(int, mkdir, (const char* path, mode_t mode), (path, mode), true)
CALL(int, link, (const char* from, const char* to), (from, to), true)
CALL(int, symlink, (const char* from, const char* to), (from, to), true)
#define REMOVE(NAME, PARAMETERS, ARGUMENTS)                      \
    extern "C" int NAME PARAMETERS {                             \
        static const auto real = next<int(*) PARAMETERS>(#NAME); \
        counted(true);                                           \
        return real ARGUMENTS;                                   \
    }
REMOVE(unlink, (const char* path), (path))
REMOVE(unlinkat, (int at, const char* path, int flags), (at, path, flags))
REMOVE(rmdir, (const char* path), (path))
REMOVE(remove, (const char* path), (path))
CALL(int, flock, (int fd, int operation), (fd, operation), true)
