// Zeroed memory for data that may be too large for RAM: ordinary pages up to a limit, above it pages of an unlinked
// file, which the system may write to disk.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <filesystem>
#include <memory>

namespace nibble {

class ScratchMemory {
public:
    // `folder` must exist if bytes > limit. Errors: no memory, no space in the folder (the whole size is reserved).
    static Result<ScratchMemory> create(size_t bytes, size_t limit, const std::filesystem::path& folder);

    std::byte* data() const { return static_cast<std::byte*>(map_.get()); }
    size_t size() const { return map_.get_deleter().size; }
    bool spilled() const { return spilled_; }

private:
    struct Unmap {
        size_t size = 0;
        void operator()(void* address) const;
    };
    ScratchMemory(void* address, size_t size, bool spilled) : map_(address, Unmap{size}), spilled_(spilled) {}
    std::unique_ptr<void, Unmap> map_;
    bool spilled_;
};

}  // namespace nibble
