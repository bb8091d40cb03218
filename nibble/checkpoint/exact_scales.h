// Scales that compressed-tensors cannot store exactly. It keeps reciprocals, and 17 % of FP32 mantissas have none that
// leads back (reciprocal.h): engines then see such a scale one FP32 step, 6e-8, away. So that a conversion is bit-exact
// on its way back, nibble.json keeps the exact value beside the weights, under "exact_scales":
//   {"model.layers.0.mlp.up_proj.weight": {"tensor_scale": "3af55555", "input_scale": "3c0a3d71"}}     (FP32 bits)
// A value is believed only where it is one step from what the weights file says.
#pragma once

#include "checkpoint/hf_contents.h"

#include <map>

namespace nibble {

struct ExactScale {
    std::optional<float> tensor_scale, input_scale;
};
using ExactScales = std::map<std::string, ExactScale, std::less<>>;  // by the weight's canonical name

// Whether compressed-tensors keeps the scalar scales of the format as divisors.
bool has_divisors(Format format);

// Adds the scales of a quantized tensor that divisors do not hold; nothing for formats without divisors.
void add_inexact(ExactScales& scales, std::string_view name, Format format, float tensor_scale,
                 std::optional<float> input_scale);

// What users are told when there are any: "12 matrices have a scale without ...".
std::string exact_scales_note(const ExactScales& scales);

// Adds them to the text of nibble.json (may be empty).
Result<std::string> with_exact_scales(const std::string& manifest, const ExactScales& scales);

// Reads folder/nibble.json, if there is one, and puts its exact scales in place. Errors name the tensor.
Status apply_exact_scales(const std::filesystem::path& folder, HfContents& contents);

}  // namespace nibble
