// An owned file descriptor, with complete reads and writes at an offset. Errors name the path and the system's reason.
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
    // Calls open(2) with O_CLOEXEC; a created file gets mode 0666 minus the umask.
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
    int number() const { return fd_; }  // for system calls without a method here; -1 if closed
    Result<int64_t> size() const;

    // Read or write all of `bytes`, or return an error. Thread-safe.
    Status write_at(Bytes bytes, int64_t offset) const;
    Status read_at(std::span<std::byte> bytes, int64_t offset) const;

    // Sets the file's size and allocates its space, so that a full disk is an error now; new bytes read as zero. If the
    // space was allocated and the file is open for reading and writing, large writes use a memory map.
    Status reserve(int64_t bytes);

    Status sync() const;  // fsync: afterwards data and size are on the device
    Status close();       // some file systems report a failed write only when the file is closed

private:
    FileDescriptor(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

    bool write_mapped(Bytes bytes, int64_t offset) const;  // false: nothing was written, and pwrite must be used
    void unmap();

    std::filesystem::path path_;
    int fd_ = -1;
    std::span<std::byte> mapped_;  // the whole file, if reserve() allocated its space
};

}  // namespace nibble
