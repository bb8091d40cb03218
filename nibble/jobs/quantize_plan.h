// From the options of a quantization to values and to its plan.
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

namespace nibble {

// The words of QuantizeOptions as values, and the recipe they name.
struct QuantizeSettings {
    Dialect dialect;
    Arithmetic arithmetic;
    Format embeddings;
    RangeRule range;
    int64_t max_shard_bytes;
    const QuantizeKernels* kernels;
    DeviceChoice device;
    Recipe recipe;  // with the rules of QuantizeOptions::ignore
};
Result<QuantizeSettings> read_settings(const QuantizeOptions& options);

// Facts about the activations of a source when its plan is resolved.
struct Known {
    const ScaleTable* scales = nullptr;  // null: none
    bool statistics = false;             // of the inputs of linears, for weight solvers
    bool folded = false;                 // the source has awq_lite's scales in its weights
};
Result<Plan> make_plan(const QuantizeOptions& options, const QuantizeSettings& settings, const Checkpoint& source,
                       const Known& known);

// The options that change bytes, for the manifest and for the identity of a resumable job.
Json settings_json(const QuantizeOptions& options, const QuantizeSettings& settings);

// OUT.calibration, where calibration keeps what it finds until the job is done.
std::filesystem::path calibration_folder(const QuantizeOptions& options);

// OUT.partial, where the output is written until it is verified.
std::filesystem::path partial_output(const QuantizeOptions& options);

// Whether the export is continued, or begun. A job that was killed in its calibration has not begun to write.
bool resumes_export(const QuantizeOptions& options);

}  // namespace nibble
