// A recipe and a checkpoint's tensors make a plan.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"
#include "quant/recipe.h"

#include <map>
#include <span>

namespace nibble {

struct ResolveOptions {
    bool weights_only = false;  // drop activation quantizers and calibrated KV scales on purpose
    bool strict = false;        // warnings are errors
    Arithmetic arithmetic = Arithmetic::reciprocal;
    // Model Optimizer 0.47's ways that no engine asks for, but its published bytes depend on (docs/recipes.md): all
    // routed experts of a layer share input_scale; gate and up of an expert share the FP8 scale and the search; FP8
    // matrices of one tile share it with their partners.
    bool compat = true;
    std::string kv;  // KV cache preset whose rules come after the recipe's ("fp8_cast", "none" ...); empty: none
    Format embeddings =
        Format::none;  // quantize input embeddings too, after all rules; a head tied to them goes with them
    // The job will have statistics of activations (JobOptions::statistics): solvers lack nothing.
    bool statistics = false;
    bool folded = false;  // the tensors have awq_lite's scales in them already
    // The smallest NVFP4 scale that the output can store; smaller ones are raised to it. Tensors of so small values
    // lose nothing by it, because their block scales become smaller instead. 0: any scale.
    float least_scale = 0;
    // Scales known from elsewhere, by tensor name: "....input_scale", "....k_proj.k_scale", "....v_proj.v_scale".
    const std::map<std::string, float, std::less<>>* scales = nullptr;
};

// What cannot be done at all is an error; what only lacks activations is listed in Plan::needs_activations.
Result<Plan> resolve(const Recipe& recipe, std::span<const CheckpointTensor> tensors, const Json& config,
                     const ResolveOptions& options = {});

}  // namespace nibble
