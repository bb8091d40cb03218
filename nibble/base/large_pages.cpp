#include "base/large_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace nibble {

std::shared_ptr<std::byte> large_pages(int64_t bytes) {
    const int64_t size = (std::max<int64_t>(bytes, 1) + large_page - 1) / large_page * large_page;
    const auto mapped = static_cast<size_t>(size + large_page);  // room to align
    void* const map = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    const auto at = reinterpret_cast<uintptr_t>(map);
    std::byte* const base = static_cast<std::byte*>(map) + (large_page - at % large_page) % large_page;
    prefer_large_pages(base, size);
    return {base, [map, mapped](std::byte*) { ::munmap(map, mapped); }};
}

void prefer_large_pages([[maybe_unused]] void* p, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const auto at = reinterpret_cast<uintptr_t>(p);
    const uintptr_t begin = (at + large_page - 1) / large_page * large_page;
    const uintptr_t end = (at + static_cast<uintptr_t>(bytes)) / large_page * large_page;
    // A system without large pages refuses and keeps small pages.
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

std::shared_ptr<std::byte> SharedPages::take(int64_t bytes) {
    constexpr int64_t chunk = 16 * large_page;
    const int64_t size = (bytes + 127) / 64 * 64;
    if (used_ + size > size_) {
        chunk_.reset();
        size_ = used_ = 0;
        chunk_ = large_pages(std::max(size, chunk));
        if (!chunk_) throw std::bad_alloc();
        size_ = std::max(size, chunk);
    }
    std::byte* const p = chunk_.get() + used_;
    used_ += size;
    return {chunk_, p};
}

}  // namespace nibble
