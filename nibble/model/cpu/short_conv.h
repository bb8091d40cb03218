// Short convolution (LFM2):
//   b | g | v = in_proj(x);  y = out_proj(g * conv(b * v))        without an activation function
// With Compute::bf16, both products and the convolution are rounded to BF16.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/convolution.h"
#include "model/weight_source.h"

namespace nibble {

class ShortConv : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const ShortConvConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override { return {&in_proj_, &out_proj_}; }
    std::vector<std::span<const Linear>> units() const override { return {{&in_proj_, 1}, {&out_proj_, 1}}; }
    const ShortConvConfig& config() const { return config_; }
    const Linear& in_proj() const { return in_proj_; }
    const Linear& out_proj() const { return out_proj_; }
    const Convolution& convolution() const { return conv_; }
    // Holds the last taps - 1 rows of b * v, oldest first.
    StateLayout state() const override { return {.floats = conv_.state_floats()}; }

private:
    // Arrays in the arena, [rows, hidden] but `projected` [rows, 3 * hidden].
    struct Inputs {
        float *projected, *product, *convolved, *gated;
    };
    Result<Inputs> inputs(const Batch& batch, const float* x, Workspace& work, Observer* observer) const;

    int64_t hidden_ = 0;
    int index_ = 0;
    ShortConvConfig config_;
    Linear in_proj_, out_proj_;
    Convolution conv_;
};

}  // namespace nibble
