// Per-layer embeddings on a GPU (model/cpu/per_layer_input.h). This layer's columns of the table are in device memory.
#pragma once

#include "model/cpu/per_layer_input.h"
#include "model/device/mixer.h"

namespace nibble {

class DevicePerLayerInput : public DeviceMixer {
public:
    // Reads the table with DeviceWeights::host().
    static Result<std::unique_ptr<DeviceMixer>> make(const ModelConfig& model, const PerLayerInput& outline,
                                                     DeviceWeights& weights);

    // Requires step.embedding.
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;

private:
    int64_t hidden_ = 0, width_ = 0;
    float eps_ = 0, root_ = 1.0f;
    const std::byte* table_ = nullptr;  // [vocab, width] BF16
    const float* norm_ = nullptr;       // [width]
    DeviceLinear projection_, gate_, out_;
};

}  // namespace nibble
