// Read-only memory map of a whole file. Pages belong to the page cache, so reading a model through maps does not
// count against the memory bound of a streaming job.
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
    // Errors name the path and the system's reason. An empty file maps to an empty span. Directories are refused.
    static Result<MappedFile> open(const std::filesystem::path& path);

    MappedFile(MappedFile&&) noexcept = default;
    MappedFile& operator=(MappedFile&&) noexcept = default;

    const std::filesystem::path& path() const { return path_; }
    Bytes bytes() const { return {static_cast<const std::byte*>(map_.get()), map_.get_deleter().size}; }

    // Tells the kernel that `part` of bytes() is not needed any more.
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

// The whole text of a small file (configs, recipes). Error when larger than `limit` bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit = size_t{256} << 20);

}  // namespace nibble
