// Multi-head attention with grouped queries: q/k/v as one product, optional norm of q and k per head, rotary embedding,
// the cache, o_proj.
#pragma once

#include "model/cpu/block.h"
#include "model/weight_source.h"

namespace nibble {

class Attention : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const AttentionConfig& c, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    const AttentionConfig& config() const { return config_; }
    const KvShape& kv() const { return kv_; }
    const LinearStack& qkv() const { return qkv_; }
    const Linear& out() const { return out_; }
    std::span<const float> q_norm() const { return q_norm_; }
    std::span<const float> k_norm() const { return k_norm_; }
    StateLayout state() const override { return {kv_page_bytes(kv_), config_.window, 0}; }

private:
    int64_t q_cols() const { return int64_t{config_.heads} * config_.head_dim; }
    int64_t kv_cols() const { return int64_t{config_.kv_heads} * config_.head_dim; }
    AttentionShape shape(const Workspace& work) const {
        return {kv_, config_.heads, config_.scale, config_.window, work.bf16()};
    }
    void prepare_rows(const Batch& batch, float* qkv, Workspace& work) const;
    Status rows_backward(const Batch& batch, const float* raw, float* d_qkv, Workspace& work, GradientSink* sink) const;

    std::string prefix_;
    int index_ = 0;
    AttentionConfig config_;
    KvShape kv_;
    float eps_ = 0;
    LinearStack qkv_;
    Linear out_;
    std::vector<float> q_norm_, k_norm_;  // as they multiply; empty: none
};

}  // namespace nibble
