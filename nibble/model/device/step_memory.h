// GPU memory that successive passes over a model share: scratch space, the workspace of W4A16 products, launch plans,
// rotary tables. Creates the DeviceStep of each pass.
#pragma once

#include "model/device/memory.h"
#include "model/device/step.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nibble {

class DeviceStepMemory {
public:
    // Device and stream must outlive the memory.
    DeviceStepMemory(const DeviceInfo& device, const Stream& stream)
        : device_(&device), stream_(&stream), plans_(device) {}

    // Provides memory for a step of `rows` rows with `bytes` of scratch memory. Grows and never shrinks. Error: too
    // little memory.
    Status reserve(int64_t bytes, int64_t rows);
    // Provides the workspace of W4A16 products for these weights (rows and columns of each) and numbers of tokens (0:
    // none). It is zero before and after each product.
    Status reserve_products(std::span<const std::pair<int64_t, int64_t>> weights, std::span<const int64_t> tokens);
    DeviceRotaryTables& rotary() { return rotary_; }
    Status reserve_rotary(int64_t positions, Workspace& host) {
        return rotary_.reserve(positions, host, device_->index, *stream_);
    }
    // Returns how often reserve() or reserve_products() freed memory. Graphs captured earlier hold the old addresses.
    int64_t moves() const { return moves_; }
    int64_t scratch_bytes() const { return scratch_ ? scratch_->capacity() : 0; }

    // Returns a step without a batch (DeviceBatch::describe adds it). All scratch memory is free. Requires reserve().
    DeviceStep step();

private:
    const DeviceInfo* device_;
    const Stream* stream_;
    DevicePlans plans_;
    DeviceRotaryTables rotary_;
    std::optional<DeviceArena> scratch_, products_;
    std::byte* product_workspace_ = nullptr;
    int64_t moves_ = 0;
};

}  // namespace nibble
