// Resolves a recipe for a checkpoint's tensors into a plan.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"
#include "quant/recipe.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct ResolveOptions {
    bool weights_only = false;  // drop activation quantizers and calibrated KV scales, as the user requested
    bool strict = false;        // treat warnings as errors
    Arithmetic arithmetic = Arithmetic::reciprocal;
    // Follow behavior of Model Optimizer 0.47 that no engine requires but that its published bytes depend on
    // (docs/topics/recipe-files.md): all routed experts of a layer share input_scale; gate and up of an expert share
    // the FP8 scale and the search; FP8 matrices of one tile share it with their partners.
    bool compat = true;
    std::string kv;  // KV cache preset whose rules are applied after the recipe's ("fp8_cast", "none" ...); empty: none
    Format embeddings = Format::none;  // format for input embeddings, applied after all rules; a head that is tied to
                                       // them is quantized with them
    // The job will have statistics of activations (JobOptions::statistics), so solvers can run.
    bool statistics = false;
    bool folded = false;  // the tensors already contain awq_lite's scales
    // Patterns (checkpoint/module_pattern.h) of matrices that are linear layers although their names are not known.
    std::vector<std::string> linear;
    // The input_scale of every linear that stores one and has no other; no value: none.
    std::optional<float> input_scale;
    // The smallest NVFP4 scale that the output can store; smaller ones are raised to it. Tensors with such small values
    // lose no accuracy, because their block scales become smaller instead. 0: no limit.
    float least_scale = 0;
    // Scales from another source, by tensor name: "....input_scale", "....k_proj.k_scale", "....v_proj.v_scale".
    const std::map<std::string, float, std::less<>>* scales = nullptr;
};

// Returns the plan. Errors: anything that nibble cannot do, with rule and tensor. Missing activations are not an
// error; Plan::needs_activations lists them.
Result<Plan> resolve(const Recipe& recipe, std::span<const CheckpointTensor> tensors, const Json& config,
                     const ResolveOptions& options = {});

}  // namespace nibble
