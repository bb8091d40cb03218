// A file descriptor with an owner, and whole reads and writes at an offset. Errors name the path and the system's
// reason.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace nibble {

class FileDescriptor {
public:
    FileDescriptor() = default;
    // open(2) with O_CLOEXEC and, if a file is made, mode 0666 less the umask.
    static Result<FileDescriptor> open(const std::filesystem::path& path, int flags);
    FileDescriptor(FileDescriptor&& other) noexcept
        : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), mapped_(std::exchange(other.mapped_, {})) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(fd_, other.fd_);
        std::swap(mapped_, other.mapped_);
        return *this;
    }
    ~FileDescriptor();

    const std::filesystem::path& path() const { return path_; }
    int number() const { return fd_; }  // for system calls that this class has no words for; -1 when closed
    Result<int64_t> size() const;

    // All of `bytes` or an error. Threads may read and write at once.
    Status write_at(Bytes bytes, int64_t offset) const;
    Status read_at(std::span<std::byte> bytes, int64_t offset) const;

    // Sets the file's size and claims its space, so that a full disk shows now; the new bytes read as zero. Where that
    // worked and the file is open for both, large writes go through a map.
    Status reserve(int64_t bytes);

    Status sync() const;  // fsync: data and size are on the device
    Status close();       // some file systems report a failed write only here

private:
    FileDescriptor(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

    bool write_mapped(Bytes bytes, int64_t offset) const;  // false: not written, pwrite must
    void unmap();

    std::filesystem::path path_;
    int fd_ = -1;
    std::span<std::byte> mapped_;  // the whole file, where reserve() claimed its space
};

}  // namespace nibble
