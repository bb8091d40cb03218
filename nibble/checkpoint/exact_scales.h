// Scales that compressed-tensors cannot store exactly. It stores reciprocals, and for 17 % of FP32 mantissas no FP32
// reciprocal gives the number back (reciprocal.h). Engines then use a scale that differs by one FP32 step (6e-8,
// relative). nibble.json, next to the weights, stores the exact value under "exact_scales", so that converting back
// restores every bit:
//   {"model.layers.0.mlp.up_proj.weight": {"tensor_scale": "3af55555", "input_scale": "3c0a3d71"}}     (FP32 bits)
// A value is used only if it differs by one step from that in the weights file.
#pragma once

#include "checkpoint/hf_contents.h"

#include <map>

namespace nibble {

struct ExactScale {
    std::optional<float> tensor_scale, input_scale;
};
using ExactScales = std::map<std::string, ExactScale, std::less<>>;  // by the canonical name of the weight

// Returns true if compressed-tensors stores the scalar scales of the format as divisors.
bool has_divisors(Format format);

// Adds the scales of a quantized tensor that divisors cannot represent. Does nothing for formats without divisors.
void add_inexact(ExactScales& scales, std::string_view name, Format format, float tensor_scale,
                 std::optional<float> input_scale);

// Returns a message for users: "12 matrices have a scale without ..."; empty if there are none.
std::string exact_scales_note(const ExactScales& scales);

// Adds the scales to the text of nibble.json (may be empty). Error: the text is not a JSON object.
Result<std::string> with_exact_scales(const std::string& manifest, const ExactScales& scales);

// Reads folder/nibble.json, if it exists, and replaces rounded scales by the exact ones. Errors name the tensor.
Status apply_exact_scales(const std::filesystem::path& folder, HfContents& contents);

}  // namespace nibble
