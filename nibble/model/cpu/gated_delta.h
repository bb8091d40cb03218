// Gated delta net (Qwen3-Next, Qwen3.5):
//   q | k | v, z, b, a = projections of x;  [q | k | v] = silu(conv([q | k | v]))
//   q = q / sqrt(sum(q^2) + 1e-6) / sqrt(key_dim),  k = k / sqrt(sum(k^2) + 1e-6), per head
//   y = rule(q, k, v, decay = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b))    (kernels/delta_rule.h)
//   out = out_proj(silu(z) * w * rms(y))         RMS over a head first, then the gate; w is never 1 + w
// Kimi delta attention (GatedDeltaConfig::by_channel) differs in three places:
//   q, k, v have a projection and a convolution each;  a = f_b_proj(f_a_proj(x)), a number per channel of the keys
//   out = o_proj(sigmoid(g_b_proj(g_a_proj(x))) * w * rms(y))
// softplus and decay are computed in FP64 and rounded to FP32. With Compute::bf16, outputs of the projections, of the
// convolution and of the rule are rounded to BF16; q and k of unit length and the state stay FP32.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/convolution.h"
#include "model/weight_source.h"

#include <array>
#include <optional>

namespace nibble {

class GatedDelta : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const GatedDeltaConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    // Holds conv - 1 rows of convolution inputs, oldest first, then the states of the value heads.
    StateLayout state() const override;

    const GatedDeltaConfig& config() const { return config_; }
    const LinearStack& in() const { return in_; }                          // q, k, v, z
    const LinearStack& gates() const { return gates_; }                    // b, a
    const std::optional<Linear>& decay_out() const { return decay_out_; }  // by channel
    const std::optional<Linear>& gate_out() const { return gate_out_; }
    const Linear& out() const { return out_; }
    std::span<const float> conv_weight() const { return conv_.weight(); }
    std::span<const float> a() const { return a_; }
    std::span<const float> dt_bias() const { return dt_bias_; }
    std::span<const float> norm() const { return norm_; }
    // Epsilon and weights of the RMS norms that give q and k of unit length; q is scaled.
    float unit_eps() const { return unit_eps_; }
    float q_scale() const { return q_scale_[0]; }
    float k_scale() const { return k_scale_[0]; }

private:
    // Holds the inputs of the rule, in the arena. A row of `projected` is [q | k | v | z], each with all heads; by
    // channel, [q | k | v | outputs of f_a_proj | outputs of g_a_proj | b].
    struct Inputs {
        float* projected;  // [rows, width()]
        float* raw;        // [rows, channels]: the convolution's sums, before silu
        float* qkv;        // [rows, channels]
        float *q, *k;      // [rows, keys]: of unit length; q is scaled
        float* ba;         // [rows, value_heads + decays]: b of all heads, then a
        float* gate;       // z of the first row; rows are gate_stride floats apart
        int64_t gate_stride;
        float* beta;   // [rows, value_heads]
        float* decay;  // [rows, decays]
    };
    int64_t width() const { return in_.rows(); }                                     // columns of `projected`
    int64_t gate_columns() const { return config_.value_heads + config_.decays(); }  // columns of `ba`
    // Computes `ba` and `gate` by channel, from `projected`.
    Status project_gates(int64_t rows, const Inputs& in, Workspace& work, Observer* observer) const;
    // Copies `count` columns of `projected` from column `first` on.
    float* columns(const Inputs& in, int64_t rows, int64_t first, int64_t count, Workspace& work) const;
    Result<Inputs> inputs(const Batch& batch, const float* x, Workspace& work, Observer* observer) const;
    // Copies rows that list the parts key head after key head to rows that list the heads part after part. `parts`:
    // numbers of each part per key head. back: the inverse.
    void regroup(const float* from, std::span<const int64_t> parts, int64_t rows, bool back, float* to,
                 Workspace& work) const;
    std::array<int64_t, 4> wide_parts() const;  // q, k, v, z
    std::array<int64_t, 2> gate_parts() const;  // b, a
    // Returns one value head over the tokens of a segment that begins at `row`.
    DeltaHead head(const Inputs& in, int64_t row, int64_t tokens, int64_t head, float* state, float* y) const;
    void run_rule(const Batch& batch, const Inputs& in, float* y, Workspace& work) const;
    // Writes normed [rows, inner], the norm of y, and gated = silu(z) * normed, or sigmoid(z) * normed by channel.
    void gate(const Inputs& in, const float* y, int64_t rows, float* normed, float* gated, Workspace& work) const;

    struct RuleGradients;
    void rule_backward(const Batch& batch, const Inputs& in, const RuleGradients& d, Workspace& work) const;
    Status gates_backward(const Inputs& in, int64_t rows, const RuleGradients& d, float* d_ba, Workspace& work,
                          GradientSink* sink) const;
    // Writes the gradients of z, with the stride of in.gate, and of the norm's output from that of the gated rows.
    void gate_backward(const Inputs& in, const float* normed, const float* d_gated, int64_t rows, float* d_gate,
                       float* d_normed, Workspace& work) const;
    struct ProjectionGradients {
        float* projected;  // [rows, width()]; the columns after the convolution's are written here by channel
        const float* ba;   // [rows, gate_columns()]
        const float* gate;
    };
    Status projections_backward(const Inputs& in, const float* x, const ProjectionGradients& d, int64_t rows, float* dx,
                                Workspace& work, Observer* observer, GradientSink* sink) const;

    std::string prefix_;
    float eps_ = 0;
    int index_ = 0;
    GatedDeltaConfig config_;
    LinearStack in_;                              // q, k, v, z; by channel q, k, v, f_a, g_a, b
    LinearStack gates_;                           // b, a; by channel none
    std::optional<Linear> decay_out_, gate_out_;  // f_b_proj, g_b_proj
    Linear out_;
    Convolution conv_;
    std::vector<float> a_, dt_bias_, norm_;  // a = -exp(A_log)
    std::vector<float> q_scale_, k_scale_;   // [keys]: weights of RMS norms that give vectors of unit length
    float unit_eps_ = 0;                     // epsilon of these norms
    RankColumnsPtr heads_;                   // set if this rank has some heads only, which `config_` describes
};

}  // namespace nibble
