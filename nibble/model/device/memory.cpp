#include "model/device/memory.h"

#include <algorithm>
#include <bit>

namespace nibble {
namespace {

// Owner: the object that keeps the memory allocated (DeviceArena or TimeSharedPart).
template <class Owner>
class DeviceStateMemory : public StateMemory {
public:
    DeviceStateMemory(Owner owner, std::byte* base, const Stream& stream)
        : owner_(std::move(owner)), base_(base), stream_(&stream) {}
    // Queued work may still use the memory.
    ~DeviceStateMemory() override { (void)stream_->synchronize(); }

    std::byte* base() const override { return base_; }
    Status zero(std::byte* at, int64_t bytes) override { return fill_device(at, 0, bytes, *stream_); }
    Status copy(std::byte* to, const std::byte* from, int64_t bytes) override {
        return copy_on_device(to, from, bytes, *stream_);
    }

private:
    Owner owner_;
    std::byte* base_;
    const Stream* stream_;
};

const std::byte* bytes_of(const float* p) { return reinterpret_cast<const std::byte*>(p); }

}  // namespace

Result<std::unique_ptr<StateMemory>> device_state_memory(int64_t bytes, int device, const Stream& stream) {
    const int64_t size = std::max<int64_t>(bytes, DeviceArena::alignment);
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(device, size));
    NIBBLE_TRY(std::byte * base, arena.allocate(size));
    NIBBLE_CHECK(fill_device(base, 0, size, stream));
    return std::unique_ptr<StateMemory>(
        std::make_unique<DeviceStateMemory<DeviceArena>>(std::move(arena), base, stream));
}

std::unique_ptr<StateMemory> time_shared_state_memory(TimeSharedPart part, const Stream& stream) {
    std::byte* base = part.base();
    return std::make_unique<DeviceStateMemory<TimeSharedPart>>(std::move(part), base, stream);
}

void DeviceRotaryTables::add(const Rope& rope) {
    if (std::ranges::none_of(tables_, [&](const auto& t) { return t.first == rope; })) tables_.push_back({rope, {}});
}

Status DeviceRotaryTables::reserve(int64_t positions, Workspace& host, int device, const Stream& stream) {
    if (tables_.empty() || positions <= positions_) return Ok{};
    constexpr int64_t least = 2048;
    const auto count = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(positions, least))));
    NIBBLE_CHECK(stream.synchronize());
    memory_.reset();
    positions_ = 0;
    int64_t bytes = 0;
    for (const auto& [rope, table] : tables_) bytes += count * (rope.dims / 2) * 8 + 2 * DeviceArena::alignment;
    NIBBLE_TRY(memory_, DeviceArena::create(device, bytes));
    std::vector<int64_t> all(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = i;
    for (auto& [rope, table] : tables_) {
        const int64_t n = count * (rope.dims / 2);
        const RotaryRows rows = host.rotary(rope, all);
        NIBBLE_TRY(float* cos, memory_->allocate_array<float>(n));
        NIBBLE_TRY(float* sin, memory_->allocate_array<float>(n));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(cos), bytes_of(rows.cos), 4 * n, stream));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(sin), bytes_of(rows.sin), 4 * n, stream));
        table = {cos, sin};
    }
    NIBBLE_CHECK(stream.synchronize());
    positions_ = count;
    return Ok{};
}

}  // namespace nibble
