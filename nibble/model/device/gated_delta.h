#pragma once

#include "kernels/delta_rule_cuda.h"
#include "model/cpu/gated_delta.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceGatedDelta : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const BlockConfig& block, float eps, const GatedDelta& delta,
                                                     DeviceWeights& weights);

    Result<InputPlan> plan(const DeviceStep& step) const override;
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    StateLayout state() const override { return {.floats = shape_.state_floats()}; }

private:
    // Returns whether one launch computes the norm and the products of in_ and gates_.
    Result<bool> computes_gates_jointly(const DeviceStep& step) const;
    struct Gates {
        const float* gates = nullptr;  // outputs of gates_, or their columns of in_
        const float *z = nullptr, *by_channel = nullptr;
    };
    // Computes z and a by channel from the outputs of in_, in scratch memory.
    Result<Gates> project_gates(const float* projected, DeviceStep& step) const;
    // Computes mixed [step.rows, inner] (BF16) from the outputs of in_ and the gates.
    Status mix(const float* projected, const Gates& gates, std::byte* mixed, DeviceStep& step) const;

    int index_ = 0;
    float eps_ = 0, unit_eps_ = 0, q_scale_ = 0, k_scale_ = 0;
    cuda::DeltaShape shape_;
    DeviceStack in_, gates_;                            // q, k, v, z; b, a
    std::optional<DeviceLinear> decay_out_, gate_out_;  // by channel, where gates_ is empty
    DeviceLinear out_;
    const float *conv_weight_ = nullptr, *a_ = nullptr, *dt_bias_ = nullptr, *norm_ = nullptr;
};

}  // namespace nibble
