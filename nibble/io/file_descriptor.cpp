#include "io/file_descriptor.h"

#include "base/map_faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t writeback_bytes = int64_t{256} << 10;
constexpr int64_t mapped_write_bytes = int64_t{64} << 10, page_bytes = 4096;
constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14; older kernels return an error

Error system_error(const std::filesystem::path& path, std::string_view action) {
    return fail(ErrorKind::file, "{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

// Called when the kernel could not read `bytes`, because they are in the map of a file that became shorter. Reading
// them here makes base/map_faults.h record which file. Preserves errno.
Status check_source(Bytes bytes) {
    const int saved = errno;
    volatile std::byte seen{};
    for (size_t i = 0; i < bytes.size(); i += page_bytes) seen = bytes[i];
    if (!bytes.empty()) seen = bytes.back();
    static_cast<void>(seen);
    errno = saved;
    return check_maps();
}

}  // namespace

Result<FileDescriptor> FileDescriptor::open(const std::filesystem::path& path, int flags) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(path, flags & O_CREAT ? "create" : "open");
    return FileDescriptor(path, fd);
}

FileDescriptor::~FileDescriptor() {
    unmap();
    if (fd_ >= 0) ::close(fd_);
}

Result<int64_t> FileDescriptor::size() const {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return system_error(path_, "stat");
    return static_cast<int64_t>(info.st_size);
}

void FileDescriptor::unmap() {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
}

// Threads that use pwrite on one file wait for its lock: 3.5 GB/s into tmpfs, whatever their number; 16 threads reach
// twice that through a map. The pages are requested first. If the file system has no space, this fails and pwrite
// reports the reason; writing to the map directly would raise a signal. Afterwards the pages are released, so that the
// memory of the process does not grow.
bool FileDescriptor::write_mapped(Bytes bytes, int64_t offset) const {
    const auto size = static_cast<int64_t>(bytes.size()), file_bytes = static_cast<int64_t>(mapped_.size());
    if (size < mapped_write_bytes || offset < 0 || size > file_bytes - offset) return false;
    std::byte* first = mapped_.data() + offset / page_bytes * page_bytes;
    const auto length = static_cast<size_t>(mapped_.data() + offset + size - first);
    if (::madvise(first, length, populate_write) != 0) return false;
    std::memcpy(mapped_.data() + offset, bytes.data(), bytes.size());
    ::madvise(first, length, MADV_DONTNEED);
    return true;
}

Status FileDescriptor::write_at(Bytes bytes, int64_t offset) const {
    const auto size = static_cast<int64_t>(bytes.size());
    if (write_mapped(bytes, offset)) {
        offset += size;
        bytes = {};
    }
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) NIBBLE_CHECK(check_source(bytes));
        if (n < 0) return system_error(path_, fmt::format("write {} bytes at {}", bytes.size(), offset));
        if (n == 0)
            return fail(ErrorKind::file, "{}: cannot write {} bytes at {}: nothing was taken", path_.string(),
                        bytes.size(), offset);
        bytes = bytes.subspan(n);
        offset += n;
    }
    // Starts writing to the device while the next part is computed; otherwise sync() would wait for everything at the
    // end. Errors are ignored here, because sync() reports them.
    if (size >= writeback_bytes) ::sync_file_range(fd_, offset - size, size, SYNC_FILE_RANGE_WRITE);
    return Ok{};
}

Status FileDescriptor::read_at(std::span<std::byte> bytes, int64_t offset) const {
    while (!bytes.empty()) {
        const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_error(path_, fmt::format("read {} bytes at {}", bytes.size(), offset));
        if (n == 0)
            return fail(ErrorKind::file, "{}: cannot read {} bytes at {}: the file ends", path_.string(), bytes.size(),
                        offset);
        bytes = bytes.subspan(n);
        offset += n;
    }
    return Ok{};
}

Status FileDescriptor::reserve(int64_t bytes) {
    const std::string action = fmt::format("reserve {} bytes", bytes);
    if (::ftruncate(fd_, bytes) != 0) return system_error(path_, action);
    int failed;
    do {
        // posix_fallocate is not used: on file systems that cannot allocate space, it writes every block instead.
        failed = bytes > 0 ? ::fallocate(fd_, 0, 0, bytes) : 0;
    } while (failed != 0 && errno == EINTR);
    if (failed != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return system_error(path_, action);
    if (failed == 0 && bytes > 0) {
        void* address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (address != MAP_FAILED) mapped_ = {static_cast<std::byte*>(address), static_cast<size_t>(bytes)};
    }
    return Ok{};
}

Status FileDescriptor::sync() const {
    if (::fsync(fd_) != 0) return system_error(path_, "sync");
    return Ok{};
}

Status FileDescriptor::close() {
    unmap();
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return system_error(path_, "close");
    return Ok{};
}

}  // namespace nibble
