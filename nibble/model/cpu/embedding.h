// The first end of a model, for callers that stream blocks between its ends (quant/ calibration). Rows are read from
// the checkpoint when they are needed, which therefore lives as long.
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
    // x [tokens.size(), hidden]. Error: an id outside the vocabulary.
    Status forward(std::span<const int32_t> tokens, float* x, Workspace& work) const;

private:
    const Checkpoint* checkpoint_ = nullptr;
    const QuantizeKernels* decoder_ = nullptr;
    size_t tensor_ = 0;
    int64_t vocab_ = 0, hidden_ = 0;
    float scale_ = 1.0f;
};

}  // namespace nibble
