// Layers for multi-token prediction (ModelConfig::prediction): a guess at the token after next.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/embedding.h"

#include <span>
#include <vector>

namespace nibble {

class Predictor {
public:
    // Error: config.json announces none, or layers with recurrent states, whose past could not be forgotten.
    static Result<Predictor> load(const ModelConfig& config, WeightSource& weights);

    struct Output {
        float* hidden = nullptr;  // [batch.wanted(), hidden]: what a next application takes
        float* normed = nullptr;  // [batch.wanted(), hidden]: what the model's head takes
    };
    // A row is a token and, in `hidden` [batch.rows(), hidden], the state of the position before it. K and V enter the
    // pages of the segments' sequences at the segments' positions.
    Status forward(const Batch& batch, const float* hidden, const Embedding& embedding, const Output& out,
                   Workspace& work) const;

    std::span<const Block> blocks() const { return blocks_; }
    const Linear& projection() const { return projection_; }
    std::span<const float> embedding_norm() const { return embedding_norm_; }  // as they multiply
    std::span<const float> hidden_norm() const { return hidden_norm_; }
    std::span<const float> norm() const { return norm_; }
    bool hands_on_normed() const { return hands_on_normed_; }

private:
    Linear projection_;
    std::vector<float> embedding_norm_, hidden_norm_, norm_;
    bool hands_on_normed_ = false;
    float eps_ = 0;
    std::vector<Block> blocks_;
};

}  // namespace nibble
