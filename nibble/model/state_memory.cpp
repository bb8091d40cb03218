#include "model/state_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace nibble {
namespace {

class HostStateMemory : public StateMemory {
public:
    // calloc: the system provides zeroed memory when a page is first touched.
    explicit HostStateMemory(int64_t bytes)
        : bytes_(bytes), memory_(static_cast<std::byte*>(std::calloc(static_cast<size_t>(bytes + alignment), 1))) {
        const auto at = reinterpret_cast<uintptr_t>(memory_.get());
        base_ = memory_.get() + (alignment - at % alignment) % alignment;
    }
    bool refused() const { return !memory_; }

    std::byte* base() const override { return base_; }
    Status zero(std::byte* at, int64_t bytes) override {
        std::memset(at, 0, static_cast<size_t>(bytes));
        return Ok{};
    }
    Status copy(std::byte* to, const std::byte* from, int64_t bytes) override {
        std::memcpy(to, from, static_cast<size_t>(bytes));
        return Ok{};
    }

    void forget() override {
        const uintptr_t page = 4096, begin = (reinterpret_cast<uintptr_t>(base_) + page - 1) / page * page,
                        end = (reinterpret_cast<uintptr_t>(base_) + static_cast<size_t>(bytes_)) / page * page;
        if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }

private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    int64_t bytes_;
    std::unique_ptr<std::byte, Free> memory_;
    std::byte* base_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<StateMemory>> host_state_memory(int64_t bytes) {
    auto memory = std::make_unique<HostStateMemory>(std::max<int64_t>(bytes, 0));
    if (bytes < 0 || memory->refused()) return fail("cannot allocate {} bytes", bytes);
    return std::unique_ptr<StateMemory>(std::move(memory));
}

}  // namespace nibble
