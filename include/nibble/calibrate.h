// The calibration of `nibble quantize` by itself: a text goes through the model, and the scales of activations that a
// recipe stores are returned.
#pragma once

#include "nibble/quantize.h"

#include <functional>
#include <map>
#include <string>

namespace nibble {

struct CalibrationReport {
    std::string origin;  // of the scales: the text and the number of its tokens
    // By tensor name: "....input_scale", "....k_proj.k_scale", "....v_proj.v_scale".
    std::map<std::string, float, std::less<>> scales;
    std::vector<std::string> warnings;
};

// Reads the options for the source, the recipe, the text and the device; ignores the others. options.out: a .json file
// for the scales, as QuantizeOptions::input_scales reads it; empty: none is written. Errors by kind: as quantize();
// recipe also for recipes whose solvers or folded scales change the weights, which only quantize() can do.
Result<CalibrationReport> calibrate(const QuantizeOptions& options, const JobHooks& hooks);

}  // namespace nibble
