// Memory for what may be too large to keep: ordinary pages up to a limit, beyond it pages of an unlinked file that the
// system may write out. Zeroed.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <filesystem>
#include <memory>

namespace nibble {

class ScratchMemory {
public:
    // `folder` must exist when bytes > limit. Errors: no memory, no room in the folder (the whole size is reserved).
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
