// Mixers that read the same rows on a GPU (model/cpu/parallel.h).
#pragma once

#include "model/cpu/parallel.h"
#include "model/device/mixer.h"

#include <vector>

namespace nibble {

class DeviceParallel : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const ModelConfig& model, const BlockConfig& block,
                                                     const Parallel& outline, DeviceWeights& weights);

    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    bool waits() const override;
    // At most one branch keeps keys and values.
    StateLayout state() const override;
    std::optional<cuda::AttentionProblem> attention() const override;
    const Rope* rope() const override;
    DeviceKv* kv() override;
    int kv_block() const override;

private:
    struct Part {
        const float* norm = nullptr;  // [hidden]; null: none, like the others
        const float* norm_bias = nullptr;
        const float* post_norm = nullptr;
        float in_scale = 1.0f, out_scale = 1.0f;
        std::unique_ptr<DeviceMixer> mixer;
    };
    // Returns the branch with attention; null: none has.
    const DeviceMixer* attending() const;

    int64_t hidden_ = 0;
    float eps_ = 0;
    bool centered_ = false;  // norms are LayerNorm
    std::vector<Part> parts_;
};

}  // namespace nibble
