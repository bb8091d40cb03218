// Converts the options of a quantization to values, and makes its plan.
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/quantize.h"
#include "nibble/quantize.h"
#include "quant/input_scales.h"
#include "quant/plan.h"
#include "quant/ranges.h"
#include "quant/recipe.h"
#include "tensor/device.h"

#include <filesystem>
#include <optional>

namespace nibble {

// The words of QuantizeOptions as values, and the recipe.
struct QuantizeSettings {
    Dialect dialect;
    Arithmetic arithmetic;
    Format embeddings;
    RangeRule range;
    int64_t max_shard_bytes;
    const QuantizeKernels* kernels;
    DeviceChoice device;
    Recipe recipe;  // including the rules of QuantizeOptions::ignore
};
Result<QuantizeSettings> read_settings(const QuantizeOptions& options);

// Facts about the source's activations that are known when the plan is resolved.
struct Known {
    const ScaleTable* scales = nullptr;  // null: no scales
    bool statistics = false;             // statistics of linears' inputs for weight solvers are available
    bool folded = false;                 // awq_lite's scales are multiplied into the source's weights
};
// Returns the number that QuantizeOptions::input_scales is; no value: a file, or nothing.
std::optional<float> given_scale(const QuantizeOptions& options);

Result<Plan> make_plan(const QuantizeOptions& options, const QuantizeSettings& settings, const Checkpoint& source,
                       const Known& known);

// Returns the options that change bytes, for the manifest and for the identity of a resumable job.
Json settings_json(const QuantizeOptions& options, const QuantizeSettings& settings);

// Returns OUT.calibration, where calibration saves its results until the job is done.
std::filesystem::path calibration_folder(const QuantizeOptions& options);

// Returns OUT.partial, where the output is written until it is verified.
std::filesystem::path partial_output(const QuantizeOptions& options);

// Returns true if the export is resumed. A job that was killed during calibration has not started to write.
bool resumes_export(const QuantizeOptions& options);

}  // namespace nibble
