#include "base/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace nibble {
namespace {

constexpr size_t reserve_bytes = size_t{8} << 20;
std::atomic<void*> memory_reserve{nullptr};

void give_back_memory_reserve() {
    void* const held = memory_reserve.exchange(nullptr);
    if (!held) throw std::bad_alloc();
    std::free(held);
}

}  // namespace

void hold_memory_reserve() {
    std::set_new_handler(give_back_memory_reserve);
    refill_memory_reserve();
}

bool refill_memory_reserve() {
    if (memory_reserve.load()) return true;
    void* const held = std::malloc(reserve_bytes);
    if (!held) return false;
    void* none = nullptr;
    if (!memory_reserve.compare_exchange_strong(none, held)) std::free(held);
    return true;
}

}  // namespace nibble
