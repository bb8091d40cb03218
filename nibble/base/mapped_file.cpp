#include "base/mapped_file.h"

#include "base/checked.h"
#include "base/map_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace nibble {
namespace {

struct Descriptor {
    explicit Descriptor(int f) : fd(f) {}
    Descriptor(Descriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
    int fd;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

void advise(Bytes part, int advice) {
    if (part.empty()) return;
    // madvise needs a page-aligned start; including the rest of the page is harmless here.
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
    ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void MappedFile::Unmap::operator()(const void* address) const {
    if (size == 0) return;
    forget_map(address);
    ::munmap(const_cast<void*>(address), size);
}

namespace {

Result<Descriptor> open_regular(const std::filesystem::path& path, struct stat& info) {
    // O_NONBLOCK: opening a FIFO without a writer would block forever. The flag has no effect on regular files.
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) return fail(ErrorKind::file, "{}: cannot open: {}", path.string(), std::strerror(errno));
    if (::fstat(file.fd, &info) != 0)
        return fail(ErrorKind::file, "{}: cannot stat: {}", path.string(), std::strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(ErrorKind::file, "{}: not a regular file", path.string());
    return file;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    struct stat info {};
    NIBBLE_TRY(const Descriptor file, open_regular(path, info));
    if (info.st_size == 0) return MappedFile(path, nullptr, 0);
    void* address = ::mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file.fd, 0);
    if (address == MAP_FAILED) return fail(ErrorKind::file, "{}: cannot map: {}", path.string(), std::strerror(errno));
    watch_map(address, static_cast<size_t>(info.st_size), path.string());
    return MappedFile(path, address, info.st_size);
}

void MappedFile::done_with(Bytes part) const { advise(part, MADV_DONTNEED); }

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
    struct stat info {};
    NIBBLE_TRY(const Descriptor file, open_regular(path, info));
    const auto too_long = [&](size_t size) {
        return fail(ErrorKind::file, "{}: {} bytes, more than the limit of {}", path.string(), size, limit);
    };
    const auto size = static_cast<size_t>(info.st_size);
    if (size > limit) return too_long(size);
    // The size is an estimate: files in /proc report none, and others may grow.
    std::string text(size + 1, '\0');
    for (size_t done = 0;;) {
        const ssize_t n = ::read(file.fd, text.data() + done, text.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(ErrorKind::file, "{}: cannot read: {}", path.string(), std::strerror(errno));
        done += static_cast<size_t>(n);
        if (done > limit) return too_long(done);
        if (n > 0 && done == text.size()) text.resize(std::max<size_t>(4096, 2 * done));
        if (n > 0) continue;
        text.resize(done);
        return text;
    }
}

}  // namespace nibble
