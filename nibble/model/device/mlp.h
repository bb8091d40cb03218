#pragma once

#include "model/cpu/mlp.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceMlp : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMlp>> make(const Mlp& mlp, DeviceWeights& weights);

    Result<InputPlan> plan(const DeviceStep& step) const override { return in_.plan(step.rows, step, true); }
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    // Compute the two halves: x to mid [padded_rows(rows), intermediate], in BF16 or in the layout of out().plan(); mid
    // to y [rows, hidden].
    Status forward_mid(const DeviceInput& in, std::byte* mid, DeviceStep& step) const;
    Status forward_out(const std::byte* mid, float* y, DeviceStep& step) const;
    const MlpConfig& config() const { return config_; }
    const DeviceStack& in() const { return in_; }
    const DeviceLinear& out() const { return out_; }
    DeviceStack& in() { return in_; }  // not const: a trainer's biases are stored elsewhere
    DeviceLinear& out() { return out_; }
    int64_t mid_bytes(int64_t rows) const { return padded_rows(rows) * config_.intermediate * 2; }
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    // Returns true if the first product, with one row, can also compute the product of `side` with the same input.
    Result<bool> takes_side(const DeviceLinear& side, const DeviceStep& step) const {
        if (in_.parts.size() > 1) return false;
        return in_.parts[0].takes_side(side, step);
    }

private:
    bool scales_gate() const { return config_.gate_scale != 1.0f; }
    // Returns true if the first half is one product with a fused activation.
    Result<bool> fused(const DeviceStep& step) const;
    // Returns the layout of the rows between the two halves.
    Result<cuda::RowsOut> mid_order(const DeviceStep& step) const;

    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
