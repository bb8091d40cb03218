// Numbers that weights alone cannot tell: the input_scale of every linear with static activations, and the k_scale /
// v_scale of a calibrated KV cache. They come from the recipe (a constant amax), from a JSON file, or from another
// export.
#pragma once

#include "checkpoint/export.h"
#include "quant/plan.h"

#include <map>

namespace nibble {

// Tensor name -> value: "model.layers.0.mlp.up_proj.input_scale", "model.layers.0.self_attn.k_proj.k_scale".
// Multipliers as stored in an export (amax/2688 for NVFP4, amax/448 for FP8), finite and positive, kept to the bit.
struct ScaleTable {
    std::string origin;  // the path, for messages
    std::map<std::string, float, std::less<>> values;
};

// What is stored for inputs (or, with `fp8`, keys and values) of this maximum. Inputs that were never anything but zero
// count as if they reached the format's largest value, as in Model Optimizer's export: 1/448 for NVFP4, 1 for FP8.
float scale_of_amax(ActivationFormat format, float amax, Arithmetic arithmetic);

// A .json file {name: number}, or a folder or GGUF file with an export whose scales are taken over.
Result<ScaleTable> read_scale_table(const std::filesystem::path& path);

struct ActivationScales {
    std::vector<std::optional<float>> input;        // per plan entry; present where the activation stores a scale
    std::vector<std::pair<std::string, float>> kv;  // in the plan's order; extra tensors of the export
    std::vector<std::string> warnings;              // unused values, partners that disagree
};

// A constant amax of the recipe wins over the table. Members of an input group get their largest value. Errors name the
// first few scales that nobody provides; `table` may be null.
Result<ActivationScales> resolve_activation_scales(const Plan& plan, const ScaleTable* table);

// Scales of 1 wherever the plan stores one: enough to lay an export out.
ActivationScales placeholder_scales(const Plan& plan);

// What the export will hold: one tensor per plan entry at the same index, then the KV scales. Tensors that stay as they
// are in a quantized source keep their format.
std::vector<ExportTensor> export_tensors(const Checkpoint& source, const Plan& plan, const ActivationScales& scales);

}  // namespace nibble
