#pragma once

#include "kernels/ssm_cuda.h"
#include "model/cpu/mamba.h"
#include "model/device/mixer.h"

#include <array>

namespace nibble {

class DeviceMamba : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const BlockConfig& block, float eps, const Mamba& mamba,
                                                     DeviceWeights& weights);

    Result<InputPlan> plan(const DeviceStep& step) const override;
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    StateLayout state() const override { return {.floats = shape_.state_floats()}; }

    // Parts for a trainer's pass.
    DeviceLinear& in_proj() { return in_proj_; }
    DeviceLinear& out_proj() { return out_proj_; }
    // Computes the steps between the products: projected [step.rows, in_proj] (FP32) to mixed [step.rows, inner]
    // (BF16). Multipliers of the projections are applied in place.
    Status mix(float* projected, std::byte* mixed, DeviceStep& step) const;
    const cuda::MambaShape& shape() const { return shape_; }
    float eps() const { return eps_; }
    float dt_min() const { return dt_min_; }
    // Vectors in the layout of the kernels: conv_weight [conv][channels], conv_bias [channels], a = -exp(A_log) [heads]
    // ...
    struct Vectors {
        const float *conv_weight = nullptr, *conv_bias = nullptr, *a = nullptr, *d = nullptr, *dt_bias = nullptr,
                    *norm = nullptr;
    };
    const Vectors& vectors() const { return vectors_; }
    void use_vectors(const Vectors& vectors) { vectors_ = vectors; }

private:
    int index_ = 0;
    std::array<cuda::ScaleColumns::Part, 5> scaled_parts() const;

    float eps_ = 0, dt_min_ = 0;
    SsmNorm order_ = SsmNorm::after_gate;
    std::array<float, 5> scales_{1, 1, 1, 1, 1};
    cuda::MambaShape shape_;
    PhiloxStream stream_;  // random numbers for stochastically rounded states
    DeviceLinear in_proj_, out_proj_;
    Vectors vectors_;
};

}  // namespace nibble
