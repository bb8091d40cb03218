#include "model/device/step_memory.h"

#include <algorithm>

namespace nibble {

Status DeviceStepMemory::reserve(int64_t bytes, int64_t rows) {
    if (scratch_ && scratch_->capacity() >= bytes) return Ok{};
    NIBBLE_CHECK(stream_->synchronize());
    ++moves_;
    scratch_.reset();
    NIBBLE_TRY(scratch_, DeviceArena::create(device_->index, bytes).within(fmt::format("a step of {} tokens", rows)));
    return Ok{};
}

Status DeviceStepMemory::reserve_products(std::span<const std::pair<int64_t, int64_t>> weights,
                                          std::span<const int64_t> tokens) {
    int64_t bytes = 0;
    for (const auto& [n, k] : weights)
        for (const int64_t m : tokens) {
            if (m == 0) continue;
            NIBBLE_TRY(const cuda::MatmulPlan plan, plans_.matmul(m, n, k));
            bytes = std::max(bytes, plan.workspace_bytes);
        }
    if (bytes == 0 || (products_ && products_->capacity() >= bytes)) return Ok{};
    NIBBLE_CHECK(stream_->synchronize());
    ++moves_;
    products_.reset();
    NIBBLE_TRY(products_, DeviceArena::create(device_->index, bytes));
    NIBBLE_TRY(product_workspace_, products_->allocate(bytes));
    return fill_device(product_workspace_, 0, bytes, *stream_);
}

DeviceStep DeviceStepMemory::step() {
    DeviceStep s{.stream = *stream_, .scratch = *scratch_, .plans = plans_};
    if (products_) {
        s.matmul_workspace_bytes = products_->capacity();
        s.matmul_workspace = product_workspace_;
    }
    s.rotary = rotary_.tables();
    scratch_->release(0);
    return s;
}

}  // namespace nibble
