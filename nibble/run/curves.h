// Curves over the steps of a run, for its pages.
#pragma once

#include "base/json.h"

#include <span>
#include <vector>

namespace nibble {

struct CurveSample {
    int64_t step = 0;
    double value = 0;
};

// Returns points [step, value]. In a curve with more than 240 samples a point is [first step, last step, mean, lowest,
// highest] of several samples. Values that are not finite are null. `samples`: by ascending step.
Json curve_json(std::span<const CurveSample> samples);

// Returns, for each field of the lines that is a number, {"curve", "sum", "first", "last"}; the last two are means over
// the first and the last `headline_steps` lines. Every line has "step".
Json number_fields(std::span<const Json> lines, size_t headline_steps);

}  // namespace nibble
