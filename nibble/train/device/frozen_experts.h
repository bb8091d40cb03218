// The same linear of all experts over frozen weights, with adapters. It corresponds to frozen_product.h: the engine's
// grouped product over the weights plus a grouped product of the adapters. No step waits on the host for the number of
// rows per expert. Rows are sorted by expert as in kernels/moe_backward_cuda.h. The backward pass decodes
// `decoded_experts` experts at a time.
#pragma once

#include "train/device/adapter_unit.h"
#include "train/device/frozen_weight.h"
#include "train/device/train_linear.h"

#include <algorithm>
#include <string>

namespace nibble {

class FrozenExperts : public DeviceExpertsProduct {
public:
    static constexpr int64_t decoded_experts = 8;

    FrozenExperts(std::string name, FrozenWeight weight, const AdapterUnit& adapters, const AdapterConstants& constants)
        : name_(std::move(name)), weight_(std::move(weight)), adapters_(adapters), constants_(constants) {}

    const FrozenWeight& weight() const { return weight_; }
    int64_t bytes() const;
    Status load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);
    // Uses the engine's experts as the base product and returns their replacement, which this object computes.
    DeviceExperts stand_for(DeviceExperts base);

    Status forward(const DeviceExpertRows& in, float* y, DeviceStep& step) const override;
    Status kernels(const DeviceExpertRows& in, std::vector<KernelUse>& uses) const override {
        return base_.kernels(in, false, uses);
    }
    int64_t scratch_bytes(int64_t slots) const override;

    Status publish(const std::byte* published, const Stream& stream) const;
    // dx [slots, cols] BF16 from dy [slots, rows] BF16.
    Status input_gradient(const std::byte* dy, int64_t slots, const int32_t* begin, std::byte* dx,
                          TrainWork& work) const;
    // Writes to `gradient` (flat), from x [slots, cols] BF16.
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t slots, const int32_t* begin,
                           float* gradient, TrainWork& work) const;
    int64_t back_scratch_bytes(int64_t slots) const;

private:
    int64_t experts() const { return adapters_.blocks.experts; }
    int64_t rows() const { return weight_.rows() / experts(); }  // per expert
    int64_t cols() const { return weight_.cols(); }
    int64_t width() const { return adapters_.blocks.width(); }
    // Experts that are decoded at a time; all if the weights need no decoding.
    int64_t decoded() const { return std::min(weight_.scratch_bytes() > 0 ? decoded_experts : experts(), experts()); }
    Result<std::byte*> low(const DeviceExpertRows& in, DeviceStep& step) const;
    Result<std::byte*> low_gradient(const std::byte* dy, int64_t slots, const int32_t* begin, TrainWork& work) const;

    std::string name_;
    FrozenWeight weight_;
    AdapterUnit adapters_;
    const AdapterConstants& constants_;
    DeviceExperts base_;
    cuda::Experts a_, b_;
    std::byte* b_rows_ = nullptr;  // BF16 [experts * rows, width]
};

}  // namespace nibble
