#pragma once

#include "model/cpu/latent_attention.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceLatentAttention : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const BlockConfig& block, const LatentAttention& attention,
                                                     DeviceWeights& weights);

    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    StateLayout state() const override { return {.page_bytes = kv_.shape.page_bytes()}; }
    std::optional<cuda::AttentionProblem> attention() const override {
        return cuda::AttentionProblem{.kv = kv_.shape, .q_heads = config_.heads, .softmax_scale = config_.scale};
    }
    const Rope* rope() const override { return config_.rope.dims > 0 ? &config_.rope : nullptr; }

private:
    int64_t q_cols() const { return int64_t{config_.heads} * (config_.nope_dim + config_.rope.dims); }
    int64_t v_cols() const { return int64_t{config_.heads} * config_.v_dim; }

    std::string prefix_;
    int index_ = 0;
    LatentAttentionConfig config_;
    DeviceKv kv_;
    int64_t q_part_ = 0;  // of in_'s outputs: those of q_a_proj or q_proj
    DeviceStack in_;
    std::optional<DeviceLinear> q_b_;
    DeviceLinear kv_b_, out_;
    const float* q_norm_ = nullptr;
    const float* kv_norm_ = nullptr;
};

}  // namespace nibble
