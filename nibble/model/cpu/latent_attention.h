// Multi-head latent attention (deepseek_v3), in the form transformers computes it:
//   q = q_b(norm(q_a(x)))  or  q_proj(x)          [heads, nope + rope]
//   c, k_rope = kv_a_proj_with_mqa(x)             [kv_rank], [rope], k_rope shared by the heads
//   k_nope, v = kv_b(norm(c))                     [heads, nope + v]
//   y = o(attention([q_nope, rope(q_rope)], [k_nope, rope(k_rope)], v))
// The cache holds K and V of every head. The absorbed form, which caches (c, k_rope) alone, is 71 times smaller for
// DeepSeek-V3. It is not used: it cannot quantize the inputs of kv_b_proj, and its scores are different sums.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/indexer.h"
#include "model/weight_source.h"

#include <optional>

namespace nibble {

class LatentAttention : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const LatentAttentionConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    const LatentAttentionConfig& config() const { return config_; }
    const KvShape& kv() const { return kv_; }
    const LinearStack& in() const { return in_; }
    const std::optional<Linear>& q_b() const { return q_b_; }
    const Linear& kv_b() const { return kv_b_; }
    const Linear& out() const { return o_; }
    std::span<const float> q_norm() const { return q_norm_; }
    std::span<const float> kv_norm() const { return kv_norm_; }
    StateLayout state() const override {
        return {.page_bytes = kv_page_bytes(kv_) + (indexer_ ? indexer_->page_bytes() : 0)};
    }

    // The epsilon of the two inner norms. DeepSeek and transformers use this value whatever rms_norm_eps is.
    static constexpr float eps_ = 1e-6f;

private:
    int64_t k_dim() const { return config_.nope_dim + config_.rope.dims; }
    // Arrays in the arena, rows adjacent. The rotary embedding has been applied to q and k.
    struct Projected {
        float* in = nullptr;   // outputs of in_
        float* q_a = nullptr;  // normalized; not used without q_rank
        float* c = nullptr;    // normalized
        float *q = nullptr, *k = nullptr, *v = nullptr;
    };
    Result<Projected> project(const Batch& batch, const float* x, Workspace& work, Observer* observer) const;
    // All heads of one row, by its position (LatentAttentionConfig::query_beta).
    void scale_query(float* q, int64_t position, bool bf16, const Workspace& work) const;
    void norm_rows(const float* x, int64_t stride, const std::vector<float>& w, int64_t rows, float* y,
                   Workspace& work) const;

    std::string prefix_;
    int64_t hidden_ = 0;
    int index_ = 0;
    LatentAttentionConfig config_;
    KvShape kv_;
    LinearStack in_;  // q_a_proj or q_proj, kv_a_proj_with_mqa
    std::vector<float> q_norm_, kv_norm_;
    std::optional<Linear> q_b_;
    Linear kv_b_, o_;
    std::optional<Indexer> indexer_;
    RankColumnsPtr heads_;  // set if this rank has some heads only, which `config_` describes
};

}  // namespace nibble
