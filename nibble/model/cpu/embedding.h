// The token embedding, for callers that stream blocks between embedding and head (calibration). Rows are read from the
// checkpoint on demand, so the checkpoint must outlive the embedding.
#pragma once

#include "architecture/model_config.h"
#include "kernels/quantize.h"
#include "model/cpu/workspace.h"

#include <span>
#include <string>
#include <utility>

namespace nibble {

class Checkpoint;
class WeightSource;

class Embedding {
public:
    static Result<Embedding> load(const ModelConfig& config, WeightSource& weights);
    // Loads columns [first, first + count) of the tensor `table` of `shape` {rows, columns}, times sqrt(count).
    static Result<Embedding> load_columns(const std::string& table, std::pair<int64_t, int64_t> shape, int64_t first,
                                          int64_t count, WeightSource& weights);
    // Writes x [tokens.size(), ModelConfig::width()], or [tokens.size(), count] of columns. Error: an id outside the
    // vocabulary.
    Status forward(std::span<const int32_t> tokens, float* x, Workspace& work) const;

private:
    const Checkpoint* checkpoint_ = nullptr;
    const QuantizeKernels* decoder_ = nullptr;
    size_t tensor_ = 0;
    int64_t vocab_ = 0, width_ = 0;    // shape of the tensor
    int64_t first_ = 0, columns_ = 0;  // columns of the tensor that are read
    float scale_ = 1.0f;
    int64_t copies_ = 1;  // copies of a row, one after the other
};

}  // namespace nibble
