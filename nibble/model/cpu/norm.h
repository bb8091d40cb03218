// The norm of a residual stream: RMSNorm, or LayerNorm with or without a bias (ModelConfig::layer_norm, norm_bias).
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

struct Workspace;
class WeightSource;

struct Norm {
    std::vector<float> weight, bias;  // factors as multiplied: 1 + w where the model requires it; no weight: no norm
    float eps = 0;
    bool centered = false;  // LayerNorm

    // `tensor` is the weight's name; its bias is named alike. An empty name gives no norm.
    static Result<Norm> load(const ModelConfig& model, const std::string& tensor, int64_t width, WeightSource& weights);
    bool empty() const { return weight.empty(); }
    // One row; y may be x.
    void apply(const float* x, float* y, const Workspace& work) const;
};

}  // namespace nibble
