// Scales that do not follow from the weights: the input_scale of every linear with static activations, and k_scale and
// v_scale of a calibrated KV cache. They come from the recipe (a constant amax), from a JSON file, or from another
// export.
#pragma once

#include "checkpoint/export.h"
#include "quant/plan.h"

#include <map>

namespace nibble {

// Scales by tensor name ("model.layers.0.mlp.up_proj.input_scale", "model.layers.0.self_attn.k_proj.k_scale"). Values
// are the multipliers that an export stores (amax / 2688 for NVFP4, amax / 448 for FP8): finite, positive, exact to the
// bit. "….input_amax" is the largest magnitude of the inputs instead, from which the plan's format makes the scale.
struct ScaleTable {
    std::string origin;  // path, for messages
    std::map<std::string, float, std::less<>> values;
};

// Returns the stored scale for inputs (or, with `fp8`, keys and values) with this maximum. For a maximum of zero it is
// that of the format's largest value, as in Model Optimizer's export: 1/448 for NVFP4, 1 for FP8.
float scale_of_amax(ActivationFormat format, float amax, Arithmetic arithmetic);

// Reads a .json file {name: number}, or the scales of an export in a folder or GGUF file. Errors: a file that cannot be
// read or parsed; a scale that is not finite and positive.
Result<ScaleTable> read_scale_table(const std::filesystem::path& path);

struct ActivationScales {
    std::vector<std::optional<float>> input;        // per plan entry; set if the activation format stores a scale
    std::vector<std::pair<std::string, float>> kv;  // extra tensors of the export, in the plan's order
    std::vector<std::string> warnings;              // unused values, linears of one group whose scales differ
};

// Chooses the scales. A constant amax of the recipe takes precedence over the table. Members of an input group get
// their largest value. `table` may be null. Error: scales without a source; names the first few.
Result<ActivationScales> resolve_activation_scales(const Plan& plan, const ScaleTable* table);

// Returns scales of 1 wherever the plan stores one. Sufficient to lay out an export.
ActivationScales placeholder_scales(const Plan& plan);

// Returns the tensors of the export: one per plan entry at the same index, then the KV scales. Tensors of a quantized
// source that are not changed keep their format.
std::vector<ExportTensor> export_tensors(const Checkpoint& source, const Plan& plan, const ActivationScales& scales);

}  // namespace nibble
