// What a quantizer's attributes mean in nibble's formats, or why nibble cannot do them.
#pragma once

#include "quant/plan.h"
#include "quant/recipe.h"

namespace nibble {

// Format, static_scales and normalization; the search is left alone.
Result<WeightSpec> weight_spec(const std::vector<QuantizerConfig>& cfg);
Result<ActivationFormat> activation_format(const std::vector<QuantizerConfig>& cfg);
Result<KvFormat> kv_format(const std::vector<QuantizerConfig>& cfg);

// Weight and input formats that some engine runs together; every format also goes with ActivationFormat::none.
bool runs_together(Format weights, ActivationFormat inputs);

// The search that a recipe's algorithms ask for, as one setting per kind of weight.
struct SearchPlan {
    Search multipliers;   // for every format that has a calibrated maximum; kind max: no search
    bool sweep = false;   // for static NVFP4
    WeightSolver solver;  // for NVFP4
    std::optional<AwqOptions> awq;
    std::vector<std::string> needs_activations;
};
Result<SearchPlan> plan_search(const std::vector<Algorithm>& algorithms);
Status apply_search(const SearchPlan& plan, WeightSpec& spec);
// What makes the codes of a linear's weights of this kind, after apply_search: local_hessian covers static NVFP4,
// nibble_best NVFP4, and other formats keep their maxima; gptq of another format is an error.
Result<WeightSolver> solver_for(const SearchPlan& plan, const WeightSpec& spec);

}  // namespace nibble
