// What will be done to every tensor, and why: the recipe resolved against a checkpoint's names. A value: printable, and
// part of the journal's identity, so a resumed job continues the same plan or refuses.
#pragma once

#include "formats/format.h"
#include "kernels/quantize.h"
#include "quant/weight_solver.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// One tensor of the source. Tensors that are not the weight of a linear are carried as they are: spec.format == none.
struct PlanEntry {
    std::string tensor;  // "model.layers.0.mlp.up_proj.weight"
    std::string module;  // "model.layers.0.mlp.up_proj"
    std::vector<int64_t> shape;
    DType dtype = DType::bf16;
    WeightSpec spec;
    WeightSolver solver;  // makes the codes from statistics of activations; none: the kernels of kernels/quantize.h
    ActivationFormat activation = ActivationFormat::none;
    std::optional<float> constant_input_amax;  // recipe fixed it: no calibration needed
    // NVFP4: no stored tensor scale or input scale is below it (ResolveOptions::least_scale).
    float least_scale = 0;
    // Tensors with equal keys belong together; an empty key: alone.
    std::string scale_group;  // they share the stored tensor scale, made of their largest maximum
    // They share the maximum inside a search, and where it chooses one multiplier per tensor also the choice, by the
    // sum of their losses.
    std::string search_group;
    std::string input_group;     // they share input_scale, made of their largest input maximum
    std::string reason;          // the rule that decided: "rule 3 '*mlp*weight_quantizer'", or why it stays as it is
    bool listed_module = false;  // an unquantized linear or router: named in exclude_modules / ignore

    int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
    int64_t cols() const;  // product of the other dimensions
};

// awq_lite: which scales are tried (awq.h).
struct AwqOptions {
    float alpha_step = 0.1f;
    bool operator==(const AwqOptions&) const = default;
};

struct Plan {
    std::string recipe;              // name and description
    std::vector<PlanEntry> entries;  // in the source's order
    std::optional<AwqOptions> awq;   // scales of inputs are searched and folded into the weights before anything else
    KvFormat kv = KvFormat::none;
    std::vector<std::string> kv_layers;   // attention modules whose cache is quantized: "model.layers.0.self_attn"
    std::vector<std::string> tied_heads;  // modules without a tensor of their own that are named in exclude_modules
    bool weights_only = false;            // activation quantizers were dropped on purpose
    std::vector<std::string> warnings;    // rules that matched nothing, formats that do not fit ...
    std::vector<std::string> needs_activations;  // what cannot be computed from weights alone, one line each
};

// "nvfp4 static/448 sweep", "nvfp4 static/448, gptq damping 0.01, block 128"
std::string method_text(const PlanEntry& entry);

// A table, one line per tensor.
std::string to_text(const Plan& plan);

}  // namespace nibble
