// Memory in pages of 2 MiB, if the system grants them. Reading from end to end, or with a stride, then needs few
// address translations (in a virtual machine each takes two page table walks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble {

inline constexpr int64_t large_page = int64_t{1} << 21;

// Returns `bytes` rounded up to whole large pages, aligned to one, zeroed, not yet resident. Null if the system
// refuses.
std::shared_ptr<std::byte> large_pages(int64_t bytes);

// Requests large pages inside [p, p + bytes), memory that is not yet resident.
void prefer_large_pages(void* p, int64_t bytes);

// Large pages shared by many small arrays. A decoding step reads every weight once, and most matrices of a small model
// are smaller than a page. Freed together with the last array.
class SharedPages {
public:
    // Returns zeroed memory, 64-byte aligned, followed by a spare cache line. Throws std::bad_alloc.
    std::shared_ptr<std::byte> take(int64_t bytes);

private:
    std::shared_ptr<std::byte> chunk_;
    int64_t size_ = 0, used_ = 0;
};

}  // namespace nibble
