#pragma once

#include "model/device_mixer.h"
#include "model/mlp.h"

namespace nibble {

class DeviceMlp : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMlp>> make(const Mlp& mlp, DeviceWeights& weights);

    Result<cuda::RowsOut> order(DeviceStep& step) const override { return in_.order(step.rows, step, true); }
    Result<bool> norms(DeviceStep& step) const override { return in_.norms(step.rows, step); }
    Status forward(const std::byte* x, float* y, DeviceStep& step) const override;
    Status forward_rows(const std::byte* x, bool ordered, float* y,
                        DeviceStep& step) const;  // row-major, or as order()
    int64_t scratch_bytes(int64_t rows) const override;

private:
    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
