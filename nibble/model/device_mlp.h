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
    int64_t scratch_bytes(int64_t rows) const override;

private:
    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
