// A read-only memory map of a whole file. Its pages belong to the page cache, so reading a model through maps does not
// count against the memory limit of a streaming job.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace nibble {

using Bytes = std::span<const std::byte>;

class MappedFile {
public:
    // Errors name the path and the system's reason; directories are errors. An empty file gives an empty span.
    static Result<MappedFile> open(const std::filesystem::path& path);

    MappedFile(MappedFile&&) noexcept = default;
    MappedFile& operator=(MappedFile&&) noexcept = default;

    const std::filesystem::path& path() const { return path_; }
    Bytes bytes() const { return {static_cast<const std::byte*>(map_.get()), map_.get_deleter().size}; }

    // Informs the kernel that `part` of bytes() is no longer needed.
    void done_with(Bytes part) const;

private:
    struct Unmap {
        size_t size = 0;
        void operator()(const void* address) const;
    };
    MappedFile(std::filesystem::path path, const void* address, size_t size)
        : path_(std::move(path)), map_(address, Unmap{size}) {}

    std::filesystem::path path_;
    std::unique_ptr<const void, Unmap> map_;
};

// Reads a small text file (configs, recipes). Error: it has more than `limit` bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit = size_t{256} << 20);

}  // namespace nibble
