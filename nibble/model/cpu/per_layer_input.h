// Per-layer embeddings (PerLayerInputConfig): every layer gates a vector that it looks up by the token, and adds a
// linear map of the result to its output.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/embedding.h"

namespace nibble {

class PerLayerInput : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const PerLayerInputConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    // `projection` is shown by the first layer: all layers multiply the same rows by their part of it.
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    const PerLayerInputConfig& config() const { return config_; }
    const Embedding& table() const { return table_; }
    const Linear& projection() const { return projection_; }
    const Linear& gate() const { return gate_; }
    const Linear& out() const { return out_; }
    std::span<const float> norm() const { return norm_; }
    // Return the factors of the projection's output, and of the sum with the table.
    float root() const;
    static float half();

private:
    // P of every row, [rows, width].
    Status inputs(const Batch& batch, float* p, Workspace& work, Observer* observer) const;

    PerLayerInputConfig config_;
    std::string prefix_;
    int64_t hidden_ = 0;
    float eps_ = 0;
    Embedding embedding_, table_;  // the table has only this layer's columns
    Linear projection_;            // this layer's rows
    std::vector<float> norm_;
    Linear gate_, out_;
};

}  // namespace nibble
