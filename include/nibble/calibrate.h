// Calibration without quantization: runs a text through the model and returns the scales of activations that a recipe
// stores.
#pragma once

#include "nibble/quantize.h"

#include <functional>
#include <map>
#include <string>

namespace nibble {

// Scales of activations found by one calibration.
struct CalibrationReport {
    std::string origin;  // source of the scales: the text and its number of tokens
    // Scales by tensor name: "....input_scale", "....k_proj.k_scale", "....v_proj.v_scale". Each is the number that a
    // checkpoint stores: the largest magnitude divided by 2688 (NVFP4) or 448 (FP8).
    std::map<std::string, float, std::less<>> scales;
    std::vector<std::string> warnings;
};

// Uses the options for the source, the recipe, the text and the device, and ignores the others. options.out: a .json
// file for the scales, in the form that QuantizeOptions::input_scales accepts; empty: no file. Errors by kind: those of
// quantize(); recipe also for recipes whose solvers or folded scales change the weights, which only quantize()
// supports.
Result<CalibrationReport> calibrate(const QuantizeOptions& options, const JobHooks& hooks);

}  // namespace nibble
