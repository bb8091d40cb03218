#pragma once

#include "model/device_mixer.h"
#include "model/mlp.h"

namespace nibble {

class DeviceMlp : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMlp>> make(const Mlp& mlp, DeviceWeights& weights);

    Result<int> tiles(DeviceStep& step) const override { return in_.tiles(step.rows, step); }
    Result<bool> norms(DeviceStep& step) const override { return in_.norms(step.rows, step); }
    Status forward(const std::byte* x, float* y, DeviceStep& step) const override;
    Status forward_rows(const std::byte* x, bool tiled, float* y, DeviceStep& step) const;  // row-major, or as tiles()
    // Its two halves: x -> mid [padded_rows(rows), intermediate] BF16 in the order that out() wants -> y.
    Status forward_mid(const std::byte* x, bool tiled, std::byte* mid, DeviceStep& step) const;
    Status forward_out(const std::byte* mid, float* y, DeviceStep& step) const;
    const DeviceLinear& out() const { return out_; }
    int64_t mid_bytes(int64_t rows) const { return padded_rows(rows) * config_.intermediate * 2; }
    int64_t scratch_bytes(int64_t rows) const override;
    // Whether one row's first product makes `side`'s of the same input beside its own.
    Result<bool> takes_side(const DeviceLinear& side, DeviceStep& step) const {
        if (in_.parts.size() > 1) return false;
        return in_.parts[0].takes_side(side, step);
    }

private:
    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
