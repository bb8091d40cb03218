#include "model/cpu/norm.h"

#include "architecture/tensor_list.h"

#include "model/cpu/workspace.h"
#include "model/weight_source.h"

namespace nibble {

Result<Norm> Norm::load(const ModelConfig& model, const std::string& tensor, int64_t width, WeightSource& weights) {
    Norm norm;
    if (tensor.empty()) return norm;
    norm.eps = model.norm_eps;
    norm.centered = model.layer_norm;
    NIBBLE_TRY(norm.weight, weights.norm(model, tensor, width));
    if (model.norm_bias) {
        NIBBLE_TRY(norm.bias, weights.vector(bias_of_norm(tensor), width));
    }
    return norm;
}

void Norm::apply(const float* x, float* y, const Workspace& work) const {
    const auto n = static_cast<int64_t>(weight.size());
    if (centered)
        work.elementwise->layer_norm(x, weight.data(), bias.empty() ? nullptr : bias.data(), n, eps, work.bf16(), y);
    else
        work.elementwise->rms_norm(x, weight.data(), n, eps, work.bf16(), y);
}

}  // namespace nibble
