#pragma once

#include "model/cpu/attention.h"
#include "model/device/mixer.h"

namespace nibble {

class DeviceAttention : public DeviceMixer {
public:
    static Result<std::unique_ptr<DeviceMixer>> make(const BlockConfig& block, float eps, const Attention& attention,
                                                     DeviceWeights& weights);

    // A gate of heads reads the rows, too.
    Result<InputPlan> plan(const DeviceStep& step) const override {
        if (head_gate_) return InputPlan{};
        return qkv_.plan(step.rows, step, true);
    }
    Status forward(const DeviceInput& in, float* y, DeviceStep& step) const override;
    // Compute the steps between the two products. rope_append() describes the kernel that reads q, k and v [rows,
    // in().rows] and writes q [rows, heads * head_dim] (BF16) and the cache; attend() writes heads [rows, out().cols]
    // (BF16). With a norm of all heads together, the caller sets RopeAppend::Options::joined_scales.
    cuda::RopeAppend rope_append(const float* qkv, std::byte* q, const DeviceStep& step) const;
    // Returns whether these are the steps of llama and qwen3, which other kernels compute together with products.
    bool plain() const {
        return options_ == cuda::RopeAppend::Options{} && !joined_ && !gates() && config_.key_scale == 1.0f &&
               config_.value_dim() == config_.head_dim;
    }
    cuda::KvCache cache(const DeviceStep& step) const { return kv_.cache(step); }
    // log_sums: see cuda::AttentionInput.
    Status attend(const std::byte* q, std::byte* heads, DeviceStep& step, float* log_sums = nullptr) const;
    const DeviceStack& in() const { return qkv_; }
    const DeviceLinear& out() const { return out_; }
    DeviceStack& in() { return qkv_; }  // not const: a trainer's biases are stored elsewhere
    DeviceLinear& out() { return out_; }
    const AttentionConfig& config() const { return config_; }
    const float* q_norm() const { return q_norm_; }  // [head_dim]; null: no norm
    const float* k_norm() const { return k_norm_; }
    // Replaces the norms' weights by those of a trainer.
    void use_norms(const float* q, const float* k) { q_norm_ = q, k_norm_ = k; }
    Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const override;
    int64_t scratch_bytes(int64_t rows) const override;
    StateLayout state() const override {
        return config_.kv_block < 0 ? StateLayout{kv_.shape.page_bytes(), reach_, 0} : StateLayout{};
    }
    std::optional<cuda::AttentionProblem> attention() const override {
        return cuda::AttentionProblem{.kv = kv_.shape,
                                      .q_heads = config_.heads,
                                      .softmax_scale = config_.scale,
                                      .window = config_.window,
                                      .chunk = config_.chunk,
                                      .soft_cap = config_.soft_cap};
    }
    int kv_block() const override { return config_.kv_block; }
    const Rope* rope() const override { return config_.rope.dims > 0 ? &config_.rope : nullptr; }
    DeviceKv* kv() override { return &kv_; }

private:
    int64_t q_cols() const { return config_.q_cols(); }
    bool gates() const { return config_.output_gate || head_gate_.has_value(); }
    // Multiplies heads [rows, out().cols] by their gates: from the product q, k, v, or of x. One of `unrounded` and
    // `rounded` is given.
    Status gate(const DeviceInput& x, const float* unrounded, const std::byte* rounded, std::byte* heads,
                DeviceStep& step) const;

    std::string prefix_;
    int index_ = 0;
    float eps_ = 0;
    AttentionConfig config_;
    DeviceKv kv_;
    DeviceStack qkv_;
    DeviceLinear out_;
    const float* q_norm_ = nullptr;
    const float* k_norm_ = nullptr;
    const float* sinks_ = nullptr;  // [heads]; null: none
    std::optional<DeviceLinear> head_gate_;
    int64_t reach_ = 0;  // keys that a query can see, its own included; 0: all
    cuda::RopeAppend::Options options_;
    bool joined_ = false;  // a norm over all heads together
};

}  // namespace nibble
