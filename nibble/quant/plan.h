// The planned operation on every tensor, with the reason: a recipe resolved against a checkpoint's names. A plan can be
// printed, and it is part of the journal's identity, so that a job is only resumed with the same plan.
#pragma once

#include "formats/format.h"
#include "kernels/quantize.h"
#include "quant/weight_solver.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// One tensor of the source. Tensors that are not the weight of a linear stay unchanged: spec.format == none.
struct PlanEntry {
    std::string tensor;  // "model.layers.0.mlp.up_proj.weight"
    std::string module;  // "model.layers.0.mlp.up_proj"
    std::vector<int64_t> shape;
    DType dtype = DType::bf16;
    WeightSpec spec;
    WeightSolver solver;  // computes the codes from statistics of activations; none: the kernels of kernels/quantize.h
                          // do
    ActivationFormat activation = ActivationFormat::none;
    std::optional<float> constant_input_amax;  // set by the recipe: no calibration is needed
    // NVFP4: lower limit of the stored tensor scale and input scale (ResolveOptions::least_scale).
    float least_scale = 0;
    // Tensors with equal keys form a group; an empty key: no group.
    std::string scale_group;  // members share the stored tensor scale, made from their largest maximum
    // Members share the maximum in a search. If the search chooses one multiplier per tensor, they also share the
    // choice, by the sum of their losses.
    std::string search_group;
    std::string input_group;  // members share input_scale, made from their largest input maximum
    std::string reason;       // the deciding rule: "rule 3 '*mlp*weight_quantizer'", or why the tensor stays unchanged
    bool listed_module = false;  // an unquantized linear or router that is listed in exclude_modules / ignore

    int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
    int64_t cols() const;  // product of the other dimensions
};

// Options of awq_lite (awq.h).
struct AwqOptions {
    float alpha_step = 0.1f;
    bool operator==(const AwqOptions&) const = default;
};

struct Plan {
    std::string recipe;              // name and description
    std::vector<PlanEntry> entries;  // in the order of the source
    std::optional<AwqOptions> awq;   // if set, scales of inputs are searched first and folded into the weights
    KvFormat kv = KvFormat::none;
    std::vector<std::string> kv_layers;          // attention modules with a quantized cache: "model.layers.0.self_attn"
    std::vector<std::string> tied_heads;         // modules without a tensor that are listed in exclude_modules
    bool weights_only = false;                   // the user requested to drop activation quantizers
    std::vector<std::string> warnings;           // rules that matched nothing, formats that do not match ...
    std::vector<std::string> needs_activations;  // scales and codes that need activations, one line each
};

// Returns the method in words: "nvfp4 static/448 sweep", "nvfp4 static/448, gptq damping 0.01, block 128".
std::string method_text(const PlanEntry& entry);

// Returns a table with one line per tensor.
std::string to_text(const Plan& plan);

}  // namespace nibble
