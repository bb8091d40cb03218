#pragma once

#include "model/cpu/mlp.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceMlp : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMlp>> make(const Mlp& mlp, DeviceWeights& weights);

    Result<InputPlan> plan(const DeviceStep& step) const override { return in_.plan(step.rows, step, true); }
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    // Its two halves: x -> mid [padded_rows(rows), intermediate], in BF16 or as out() wants it, -> y.
    Status forward_mid(const DeviceInput& in, std::byte* mid, DeviceStep& step) const;
    Status forward_out(const std::byte* mid, float* y, DeviceStep& step) const;
    const MlpConfig& config() const { return config_; }
    const DeviceStack& in() const { return in_; }
    const DeviceLinear& out() const { return out_; }
    DeviceStack& in() { return in_; }  // a trainer's biases lie elsewhere
    DeviceLinear& out() { return out_; }
    int64_t mid_bytes(int64_t rows) const { return padded_rows(rows) * config_.intermediate * 2; }
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    // Whether one row's first product makes `side`'s of the same input beside its own.
    Result<bool> takes_side(const DeviceLinear& side, const DeviceStep& step) const {
        if (in_.parts.size() > 1) return false;
        return in_.parts[0].takes_side(side, step);
    }

private:
    // One product that ends with its activation?
    Result<bool> fused(const DeviceStep& step) const;
    // How the rows between the halves lie.
    Result<cuda::RowsOut> mid_order(const DeviceStep& step) const;

    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
