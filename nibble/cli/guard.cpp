#include "cli/guard.h"

#include "base/map_faults.h"
#include "base/memory_reserve.h"
#include "base/utf8.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

namespace nibble {
namespace {

constexpr int failed = 1;

void open_standard_descriptors() {
    for (int fd = 0; fd <= 2; ++fd)
        if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            if (::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) ::_exit(failed);
}

// Returns whether the reader of standard output has closed it. The error of a write that failed earlier is not kept.
bool output_is_closed() {
    pollfd output{STDOUT_FILENO, POLLOUT, 0};
    return ::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

int report(const char* what) {
    std::fprintf(stderr, "nibble: %s\n", printable(what, Error::most_bytes).c_str());
    return failed;
}

int call(int argc, char** argv) {
    try {
        return cli_main(argc, argv);
    } catch (const std::bad_alloc&) {
        std::fputs("nibble: out of memory\n", stderr);
    } catch (const std::exception& e) {
        // fmt's print throws if standard output cannot be written; the check at the end reports the reason.
        if (!std::ferror(stdout)) return report(e.what());
    } catch (...) {
        return report("an unknown exception");
    }
    return failed;
}

}  // namespace

int guarded_main(int argc, char** argv) {
    open_standard_descriptors();
    hold_memory_reserve();
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);
    int status = call(argc, argv);
    if (const Status maps = check_maps(); !maps.ok() && status == 0) status = report(maps.error().message().c_str());
    errno = 0;
    const bool bad = std::ferror(stdout) != 0;
    const bool unflushed = std::fflush(stdout) != 0;
    const int why = errno;
    if (!bad && !unflushed) return status;
    if (why == EPIPE || output_is_closed()) return status == 0 ? failed : status;
    return report(why ? (std::string("standard output cannot be written: ") + std::strerror(why)).c_str()
                      : "standard output could not be written completely");
}

}  // namespace nibble
