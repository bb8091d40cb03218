#include "model/device/step.h"

namespace nibble {

Result<cuda::MatmulPlan> DevicePlans::matmul(int64_t m, int64_t n, int64_t k, bool gated) {
    const auto key = std::make_tuple(m, n, k, gated);
    if (const auto found = matmul_.find(key); found != matmul_.end()) return found->second;
    NIBBLE_TRY(const cuda::MatmulPlan plan, cuda::plan_matmul({.m = m, .n = n, .k = k, .gated = gated}, device_));
    matmul_.emplace(key, plan);
    return plan;
}

DeviceRotary DeviceStep::rotary_of(const Rope& rope) const {
    for (const auto& [kind, tables] : rotary)
        if (kind == rope) return tables;
    return {};
}

}  // namespace nibble
