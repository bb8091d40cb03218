// Translates a quantizer's attributes into nibble's formats. Errors name the attribute that nibble does not support.
#pragma once

#include "quant/plan.h"
#include "quant/recipe.h"

namespace nibble {

// Sets format, static_scales and normalization, but not the search.
Result<WeightSpec> weight_spec(const std::vector<QuantizerConfig>& cfg);
Result<ActivationFormat> activation_format(const std::vector<QuantizerConfig>& cfg);
Result<KvFormat> kv_format(const std::vector<QuantizerConfig>& cfg);

// Returns true if some engine multiplies weights and inputs of these formats. Every weight format also works with
// ActivationFormat::none.
bool runs_together(Format weights, ActivationFormat inputs);

// The search that a recipe's algorithms require, one setting per kind of weight.
struct SearchPlan {
    Search multipliers;   // for every format with a calibrated maximum; kind max: no search
    bool sweep = false;   // for static NVFP4: search all E4M3 block scales
    WeightSolver solver;  // for NVFP4
    std::optional<AwqOptions> awq;
    std::vector<std::string> needs_activations;
};
Result<SearchPlan> plan_search(const std::vector<Algorithm>& algorithms);
Status apply_search(const SearchPlan& plan, WeightSpec& spec);
// Returns the solver of a linear's weights, after apply_search(). local_hessian applies to static NVFP4, nibble_best to
// NVFP4; other formats keep the scales of maxima. Error: gptq with another format.
Result<WeightSolver> solver_for(const SearchPlan& plan, const WeightSpec& spec);

}  // namespace nibble
