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
    const Rope* rope() const override { return config_.rotates && config_.rope.dims > 0 ? &config_.rope : nullptr; }
    DeviceKv* kv() override { return &kv_; }

    // Parts for a trainer's pass. The inner norms are those of q_in [rows, q_part] (with q_b) and of c_in [rows,
    // kv_rank].
    DeviceStack& in() { return in_; }
    std::optional<DeviceLinear>& q_b() { return q_b_; }
    DeviceLinear& kv_b() { return kv_b_; }
    DeviceLinear& out() { return out_; }
    int64_t q_part() const { return q_part_; }
    const float* q_norm() const { return q_norm_; }
    const float* kv_norm() const { return kv_norm_; }
    void use_norms(const float* q, const float* kv) { q_norm_ = q, kv_norm_ = kv; }
    const LatentAttentionConfig& config() const { return config_; }
    // Computes the steps between the products. Inputs: q_in, kv (outputs of kv_b), and the rotary part of the keys that
    // all heads share, `stride` floats from row to row. Outputs (BF16): rotated queries q [rows, heads, nope + rope]
    // and heads [rows, heads, v]. log_sums: see cuda::AttentionInput.
    Status attend(const float* q_in, int64_t q_stride, const float* kv, const float* shared, int64_t shared_stride,
                  std::byte* q, std::byte* heads, DeviceStep& step, float* log_sums = nullptr) const;

private:
    int64_t q_cols() const { return int64_t{config_.heads} * (config_.nope_dim + config_.rope.dims); }
    int64_t v_cols() const { return int64_t{config_.heads} * config_.v_dim; }

    std::string prefix_;
    int index_ = 0;
    LatentAttentionConfig config_;
    DeviceKv kv_;
    int64_t q_part_ = 0;  // columns of in_'s outputs that belong to q_a_proj or q_proj
    DeviceStack in_;
    std::optional<DeviceLinear> q_b_;
    DeviceLinear kv_b_, out_;
    const float* q_norm_ = nullptr;
    const float* kv_norm_ = nullptr;
};

}  // namespace nibble
