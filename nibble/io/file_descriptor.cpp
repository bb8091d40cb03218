#include "io/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

constexpr int64_t writeback_bytes = int64_t{256} << 10;

Error system_error(const std::filesystem::path& path, std::string_view action) {
    return fail("{}: cannot {}: {}", path.string(), action, std::strerror(errno));
}

}  // namespace

Result<FileDescriptor> FileDescriptor::open(const std::filesystem::path& path, int flags) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(path, flags & O_CREAT ? "create" : "open");
    return FileDescriptor(path, fd);
}

FileDescriptor::~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
}

Result<int64_t> FileDescriptor::size() const {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return system_error(path_, "stat");
    return static_cast<int64_t>(info.st_size);
}

Status FileDescriptor::write_at(Bytes bytes, int64_t offset) const {
    const auto size = static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_error(path_, fmt::format("write {} bytes at {}", bytes.size(), offset));
        if (n == 0)
            return fail("{}: cannot write {} bytes at {}: nothing was taken", path_.string(), bytes.size(), offset);
        bytes = bytes.subspan(n);
        offset += n;
    }
    // On its way to the device while the next part is computed, or sync() would wait for all of it at the end. Only
    // advice: what goes wrong here, sync() reports.
    if (size >= writeback_bytes) ::sync_file_range(fd_, offset - size, size, SYNC_FILE_RANGE_WRITE);
    return Ok{};
}

Status FileDescriptor::read_at(std::span<std::byte> bytes, int64_t offset) const {
    while (!bytes.empty()) {
        const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_error(path_, fmt::format("read {} bytes at {}", bytes.size(), offset));
        if (n == 0) return fail("{}: cannot read {} bytes at {}: the file ends", path_.string(), bytes.size(), offset);
        bytes = bytes.subspan(n);
        offset += n;
    }
    return Ok{};
}

Status FileDescriptor::reserve(int64_t bytes) const {
    const std::string action = fmt::format("reserve {} bytes", bytes);
    if (::ftruncate(fd_, bytes) != 0) return system_error(path_, action);
    int failed;
    do {
        // Not posix_fallocate: where the file system cannot reserve, it writes every block instead.
        failed = bytes > 0 ? ::fallocate(fd_, 0, 0, bytes) : 0;
    } while (failed != 0 && errno == EINTR);
    if (failed != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return system_error(path_, action);
    return Ok{};
}

Status FileDescriptor::sync() const {
    if (::fsync(fd_) != 0) return system_error(path_, "sync");
    return Ok{};
}

Status FileDescriptor::close() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) return system_error(path_, "close");
    return Ok{};
}

}  // namespace nibble
