// Memory in pages of 2 MiB where the system grants them: what is read from end to end, or with a stride, then costs few
// address translations (in a virtual machine each is two walks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble {

inline constexpr int64_t large_page = int64_t{1} << 21;

// `bytes` rounded up to whole large pages, aligned on one, zero, not yet present. Null when the system refuses.
std::shared_ptr<std::byte> large_pages(int64_t bytes);

// Asks for large pages inside [p, p + bytes), memory that is not yet present.
void prefer_large_pages(void* p, int64_t bytes);

// Large pages that many small arrays share: a decoding step reads every weight once, and most matrices of a small model
// are smaller than a page. Freed when the last array is.
class SharedPages {
public:
    // Zero, 64-byte aligned, with a cache line of slack behind. Throws std::bad_alloc.
    std::shared_ptr<std::byte> take(int64_t bytes);

private:
    std::shared_ptr<std::byte> chunk_;
    int64_t size_ = 0, used_ = 0;
};

}  // namespace nibble
