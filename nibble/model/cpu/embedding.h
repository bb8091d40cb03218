// The token embedding, for callers that stream blocks between embedding and head (calibration). Rows are read from the
// checkpoint on demand, so the checkpoint must outlive the embedding.
#pragma once

#include "architecture/model_config.h"
#include "kernels/quantize.h"
#include "model/cpu/workspace.h"

#include <span>

namespace nibble {

class Checkpoint;
class WeightSource;

class Embedding {
public:
    static Result<Embedding> load(const ModelConfig& config, WeightSource& weights);
    // Writes x [tokens.size(), hidden]. Error: an id outside the vocabulary.
    Status forward(std::span<const int32_t> tokens, float* x, Workspace& work) const;

private:
    const Checkpoint* checkpoint_ = nullptr;
    const QuantizeKernels* decoder_ = nullptr;
    size_t tensor_ = 0;
    int64_t vocab_ = 0, hidden_ = 0;
    float scale_ = 1.0f;
};

}  // namespace nibble
