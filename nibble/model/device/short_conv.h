#pragma once

#include "kernels/short_conv_cuda.h"
#include "model/cpu/short_conv.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceShortConv : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const BlockConfig& block, const ShortConv& conv,
                                                     DeviceWeights& weights);

    Result<InputPlan> plan(const DeviceStep& step) const override;
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    StateLayout state() const override { return {.floats = (taps_ - 1) * out_proj_.cols}; }

private:
    int index_ = 0, taps_ = 0;
    DeviceLinear in_proj_, out_proj_;
    const float* weight_ = nullptr;  // [taps][hidden]
    const float* bias_ = nullptr;    // [hidden]; null: none
};

}  // namespace nibble
