// The dense feed-forward network. The experts of a mixture use the same class for their rows.
#pragma once

#include "model/cpu/block.h"

namespace nibble {

// Router weights w [n] of an expert's rows: the output is w * forward_rows(x). The backward pass writes the gradient of
// w.
struct RouterWeights {
    const float* w = nullptr;
    float* gradient = nullptr;
};

class Mlp : public Mixer {
public:
    // Loads the linears PREFIX.gate_proj ... that `config` names; inputs and outputs have `hidden` columns.
    static Result<std::unique_ptr<Mlp>> load(const std::string& prefix, int64_t hidden, const MlpConfig& config,
                                             WeightSource& weights);
    // Expert `expert` of stacks (MoeConfig::stacked), under the names of a matrix per expert.
    static Result<std::unique_ptr<Mlp>> load_stacked(const std::string& experts, int64_t hidden, const MoeConfig& moe,
                                                     int expert, WeightSource& weights);

    // Computes y [n, hidden] from x [n, hidden].
    Status forward_rows(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                        std::span<const int32_t> batch_rows) const;
    // Computes dx [n, hidden] from dy [n, hidden]. x: the input of forward_rows().
    Status backward_rows(const float* x, const float* dy, int64_t n, float* dx, Workspace& work, Observer* observer,
                         GradientSink* sink, std::span<const int32_t> batch_rows, RouterWeights weights) const;

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    const MlpConfig& config() const { return config_; }
    const LinearStack& in() const { return in_; }
    const Linear& out() const { return out_; }

private:
    // Multiplies the outputs of gate, or their gradients, in n rows of in_'s outputs by config().gate_scale.
    void scale_gate(float* in, int64_t n, bool bf16, Workspace& work) const;
    void activate(const float* in, int64_t n, float* mid, Workspace& work) const;

    MlpConfig config_;
    LinearStack in_;  // gate and up, or up alone
    Linear out_;
    // Set if ranks divide the width, of which `config_` has this rank's part.
    RankColumnsPtr width_;
};

}  // namespace nibble
