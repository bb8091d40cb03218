// down(act(gate(x)) * up(x)) or down(act(up(x))): a layer's MLP, an expert, a shared expert.
#pragma once

#include "model/block.h"
#include "model/weight_source.h"

#include <string>

namespace nibble {

// An expert's rows count with weights w [n]: the output is w * forward(x); backward writes the gradient of w.
struct RouterWeights {
    const float* w = nullptr;
    float* gradient = nullptr;
};

class FeedForward {
public:
    // Tensors PREFIX.<config.gate_proj>.weight ...; `width` inputs and outputs.
    static Result<FeedForward> load(const MlpConfig& config, const std::string& prefix, int64_t width,
                                    WeightSource& weights);

    // y [n, width] of x [n, width].
    Status forward(const float* x, int64_t n, float* y, Workspace& work, Observer* observer,
                   std::span<const int32_t> batch_rows = {}) const;

    // dx [n, width] from dy, x the input of forward.
    Status backward(const float* x, const float* dy, int64_t n, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink, std::span<const int32_t> batch_rows = {}, RouterWeights weights = {}) const;

    void append_linears(std::vector<const Linear*>& out) const;

private:
    MlpConfig config_;
    LinearStack in_;  // gate and up, or up
    Linear down_;

    // a [n, intermediate] from h [n, in_.rows()].
    void activate(const float* h, int64_t n, float* a, Workspace& work) const;
};

}  // namespace nibble
