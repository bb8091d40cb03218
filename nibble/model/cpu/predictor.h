// Layers for multi-token prediction (ModelConfig::prediction). They draft the token after the next one.
#pragma once

#include "model/cpu/block.h"
#include "model/cpu/embedding.h"

#include <span>
#include <vector>

namespace nibble {

class Predictor {
public:
    // Errors: config.json announces no such layers, or layers with recurrent states, which cannot be rewound.
    static Result<Predictor> load(const ModelConfig& config, WeightSource& weights);

    struct Output {
        float* hidden = nullptr;  // [batch.wanted(), hidden]: input of the next application
        float* normed = nullptr;  // [batch.wanted(), hidden]: input of the model's head
    };
    // Runs the layers. A row is a token and the hidden state of the position before it, hidden [batch.rows(), hidden].
    // K and V are stored in the pages of the segments' sequences at the segments' positions.
    Status forward(const Batch& batch, const float* hidden, const Embedding& embedding, const Output& out,
                   Workspace& work) const;

    std::span<const Block> blocks() const { return blocks_; }
    const Linear& projection() const { return projection_; }
    // weights as they are multiplied
    std::span<const float> embedding_norm() const { return embedding_norm_; }
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
