// Mixers that read the same rows, each after its own norm, and whose outputs are added up (ParallelConfig).
#pragma once

#include "model/cpu/block.h"

#include <memory>
#include <vector>

namespace nibble {

class Parallel : public Mixer {
public:
    static Result<std::unique_ptr<Mixer>> load(const ModelConfig& model, const BlockConfig& block,
                                               const ParallelConfig& config, WeightSource& weights);

    Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const override;
    Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work, Observer* observer,
                    GradientSink* sink) const override;
    std::vector<const Linear*> linears() const override;
    std::vector<std::span<const Linear>> units() const override;
    StateLayout state() const override;
    struct Part {
        Norm norm, post_norm;  // may be empty
        std::string norm_name, post_norm_name;
        float in_scale = 1.0f, out_scale = 1.0f;
        std::unique_ptr<Mixer> mixer;
    };
    std::span<const Part> parts() const { return parts_; }  // one per branch

private:
    // Returns the mixer's input: in_scale * norm(x), in memory of the arena, or x itself.
    const float* input(const Part& part, const float* x, int64_t rows, Workspace& work) const;
    int64_t hidden_ = 0;
    std::vector<Part> parts_;
};

}  // namespace nibble
