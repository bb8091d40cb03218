// Memory of a GPU that passes over a model use one after the other, and what is kept between passes: scratch space, the
// workspace of W4A16 products, plans of products, rotary tables. Makes the DeviceStep of each pass.
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
    // Device and stream outlive the memory.
    DeviceStepMemory(const DeviceInfo& device, const Stream& stream)
        : device_(&device), stream_(&stream), plans_(device) {}

    // Room for a step of `rows` rows that takes `bytes` of scratch memory. Grows, and keeps what it has.
    Status reserve(int64_t bytes, int64_t rows);
    // Room for W4A16 products of any of these weights (rows and columns of each) with any of these numbers of tokens
    // (0: none): zeros that the products find and leave.
    Status reserve_products(std::span<const std::pair<int64_t, int64_t>> weights, std::span<const int64_t> tokens);
    DeviceRotaryTables& rotary() { return rotary_; }
    Status reserve_rotary(int64_t positions, Workspace& host) {
        return rotary_.reserve(positions, host, device_->index, *stream_);
    }
    // How often reserve() or reserve_products() gave memory back: graphs that were captured before hold its addresses.
    int64_t moves() const { return moves_; }
    int64_t scratch_bytes() const { return scratch_ ? scratch_->capacity() : 0; }

    // A step without a batch (DeviceBatch::describe adds it). All scratch memory is free; needs reserve().
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
