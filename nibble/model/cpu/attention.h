// Multi-head attention with grouped queries. The steps: q, k and v as one product, optional norms of q and k, rotary
// embedding, KV cache and attention, o_proj.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/indexer.h"
#include "model/weight_source.h"

#include <algorithm>
#include <optional>

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
    std::span<const float> sinks() const { return sinks_; }  // may be empty
    const std::optional<Linear>& head_gate() const { return head_gate_; }
    // Returns the number of keys that a query can see, its own included; 0: all.
    int64_t reach() const {
        if (config_.window == 0 || config_.chunk == 0) return std::max(config_.window, config_.chunk);
        return std::min(config_.window, config_.chunk);
    }
    StateLayout state() const override {
        const int64_t index_bytes = indexer_ ? indexer_->page_bytes() : 0;
        return config_.kv_block < 0 ? StateLayout{kv_page_bytes(kv_) + index_bytes, reach(), 0} : StateLayout{};
    }

private:
    int64_t q_cols() const { return config_.q_cols(); }
    int64_t kv_cols() const { return config_.kv_block < 0 ? config_.kv_cols() : 0; }
    int64_t v_cols() const { return config_.kv_block < 0 ? config_.v_cols() : 0; }
    int64_t cols() const { return q_cols() + kv_cols() + v_cols(); }  // columns of q, k and v
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
    // Rows of q, k and v [rows, cols()] of the outputs of qkv_: the values are a copy of k where there is no v_proj.
    float* with_values(float* projected, int64_t rows, Workspace& work) const;
    // Multiplies the output of every head [rows, out_cols] by the logistic sigmoid of its gate.
    Status gate_heads(const float* x, int64_t rows, float* mixed, Workspace& work, Observer* observer) const;
    void scale_keys(float* k, bool bf16, const Workspace& work) const;
    void prepare_values(float* v, const Workspace& work) const;
    // Returns the number of values that one norm of q or k covers.
    int64_t normed_cols(int64_t cols) const { return config_.qk_norm == QkNorm::joined ? cols : config_.head_dim; }
    // Apply the norms or the rotary embedding to q and k of one row of qkv_'s outputs.
    void norm_row(float* row, const Workspace& work) const;
    void rotate_row(float* row, const float* cos, const float* sin, bool bf16, const Workspace& work) const;
    AttentionShape shape(const Workspace& work) const {
        return {.kv = kv_,
                .heads = config_.heads,
                .scale = config_.scale,
                .window = config_.window,
                .bf16 = work.bf16(),
                .chunk = config_.chunk,
                .cap = config_.soft_cap,
                .sinks = sinks_.empty() ? nullptr : sinks_.data()};
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
    std::vector<float> ones_;             // weights of a head's norms that have no weights
    std::vector<float> sinks_;            // empty: none
    std::optional<Linear> head_gate_;
    std::optional<Indexer> indexer_;
    // Set if this rank has some heads only, which `config_` describes: the heads' outputs of all ranks are gathered.
    RankColumnsPtr heads_;
};

}  // namespace nibble
