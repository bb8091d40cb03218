// Multi-head attention with grouped queries. The steps: q, k and v as one product, optional norms of q and k, rotary
// embedding, KV cache and attention, o_proj.
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
    int64_t q_cols() const { return config_.q_cols(); }
    int64_t kv_cols() const { return config_.kv_cols(); }
    int64_t cols() const { return q_cols() + 2 * kv_cols(); }  // of q, k and v
    // Splits outputs of qkv_ into q, k and v [rows, cols()] and gates [rows, q_cols()]. Without gates it returns the
    // outputs themselves.
    struct Gated {
        float* qkv;
        float* gate;  // null: none
    };
    Gated split(float* projected, int64_t rows, Workspace& work) const;
    // Multiplies x [rows, q_cols()] by sigmoid(gate).
    void apply_gate(const float* gate, int64_t rows, float* x, Workspace& work) const;
    // Writes the gradient of the gate. d_x, the gradient of x * sigmoid(gate), becomes that of x.
    struct GateGradient {
        const float* gate;
        const float* x;
        float* d_x;
    };
    void gate_backward(const GateGradient& g, int64_t rows, float* d_gate, Workspace& work) const;
    // The inverse of split().
    void merge(const float* d_qkv, const float* d_gate, int64_t rows, float* d_projected, Workspace& work) const;
    // Returns the number of values that one norm of q or k covers.
    int64_t normed_cols(int64_t cols) const { return config_.qk_norm == QkNorm::joined ? cols : config_.head_dim; }
    // Apply the norms or the rotary embedding to q and k of one row of qkv_'s outputs.
    void norm_row(float* row, const Workspace& work) const;
    void rotate_row(float* row, const float* cos, const float* sin, bool bf16, const Workspace& work) const;
    AttentionShape shape(const Workspace& work) const {
        return {kv_, config_.heads, config_.scale, config_.window, work.bf16()};
    }
    // Multiplies the query of one row by the factor of its position (AttentionConfig::query_beta).
    void scale_query(float* q, int64_t position, bool bf16, const Workspace& work) const;
    void prepare_rows(const Batch& batch, float* qkv, Workspace& work) const;
    // Replaces, in place, the gradients of the norms' outputs by those of their inputs. raw: q, k and v before the
    // norms.
    Status norms_backward(const float* raw, int64_t rows, float* d_qkv, Workspace& work, GradientSink* sink) const;
    // Applies the transpose of the rotary embedding (a rotation by the negative angle) to the gradients of q and k.
    void rotate_back(const Batch& batch, float* d_qkv, Workspace& work) const;

    std::string prefix_;
    std::string q_norm_name_, k_norm_name_;  // tensor names
    int index_ = 0;
    AttentionConfig config_;
    KvShape kv_;
    float eps_ = 0;
    LinearStack qkv_;
    Linear out_;
    std::vector<float> q_norm_, k_norm_;  // weights as they are multiplied (with 1 added where the model requires it);
                                          // empty: no norm
};

}  // namespace nibble
