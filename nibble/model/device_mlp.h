#pragma once

#include "model/device_mixer.h"
#include "model/mlp.h"

namespace nibble {

class DeviceMlp : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMlp>> make(const Mlp& mlp, DeviceWeights& weights);

    Status forward(const std::byte* x, float* y, DeviceStep& step) const override;
    int64_t scratch_bytes(int64_t rows) const override;

private:
    MlpConfig config_;
    DeviceStack in_;
    DeviceLinear out_;
};

}  // namespace nibble
