// A causal convolution along the sequence, with one filter per channel; mixers with recurrent
// states use it:
//   out[t][c] = bias[c] + sum over j of weight[c][j] * x[t - (taps - 1) + j][c]        (kernels/ssm.h has the order)
// A sequence's state begins with the last taps - 1 rows of x, oldest first.
#pragma once

#include "model/cpu/block.h"
#include "model/weight_source.h"

namespace nibble {

class Convolution {
public:
    static constexpr int most_taps = 16;
    // Loads MODULE.weight [channels, 1, taps] and, if `bias`, MODULE.bias [channels]. Error: a tensor is missing or has
    // another shape; more than most_taps taps. `outputs`: all channels, or those of this rank.
    static Result<Convolution> load(const std::string& module, int64_t channels, int taps, bool bias,
                                    WeightSource& weights,
                                    WeightSource::Outputs outputs = WeightSource::Outputs::gathered);
    // Loads one convolution from several modules, whose channels follow one another.
    struct Part {
        std::string module;
        int64_t channels;
    };
    static Result<Convolution> load(std::vector<Part> parts, int taps, bool bias, WeightSource& weights,
                                    WeightSource::Outputs outputs = WeightSource::Outputs::gathered);

    int64_t state_floats() const { return (taps_ - 1) * channels_; }
    // Computes out [rows, channels] from x, whose rows are `stride` floats apart. `index`: of the block in the model.
    // Reads and replaces the last taps - 1 rows that each sequence of the batch stores.
    void forward(const Batch& batch, const float* x, int64_t stride, int index, float* out, Workspace& work) const;
    // Computes d_x from d_out [rows, channels]; rows of x and d_x are `stride` floats apart. The batch contains whole
    // texts. Gradients of the weights are added to `sink`, if given.
    Status backward(const Batch& batch, const float* x, int64_t stride, const float* d_out, float* d_x, Workspace& work,
                    GradientSink* sink) const;

    std::span<const float> weight() const { return weight_; }  // [taps][channels]
    std::span<const float> bias() const { return bias_; }      // [channels], zero where there is none

private:
    std::vector<Part> parts_;
    int64_t channels_ = 0;
    int taps_ = 0;
    bool has_bias_ = false;
    std::vector<float> weight_, bias_;
};

}  // namespace nibble
