// The part of a quantization that runs the model on text: awq_lite's search for scales, then ranges of activations and
// the statistics that weight solvers read.
#pragma once

#include "base/thread_pool.h"
#include "jobs/quantize_plan.h"
#include "quant/calibrate.h"
#include "quant/calibration_folder.h"

#include <memory>
#include <optional>

namespace nibble {

// Everything that the later steps of the job take from the text.
struct Calibrated {
    Plan plan;                                    // resolved with all of the following
    std::optional<ScaleTable> scales;             // given ones, and those that were found
    std::unique_ptr<Checkpoint> folded;           // the source with awq_lite's scales in its weights; null: as it is
    std::unique_ptr<StatisticsStore> statistics;  // null: no solver reads any
    std::vector<LayerOutputError> output_errors;
    std::vector<CalibrationGap> gaps;
    Json settings;             // settings_json() and what calibration adds to it
    CalibrationFolder folder;  // keeps what was found until the job is done
};

// `plan` is that of the source with the scales that were `given`, which win over those that are found. Finished parts
// are kept in calibration_folder(options) and taken from there with options.resume. Also checks that the output can be
// written, before the hours of work.
Result<Calibrated> calibrate_source(const QuantizeOptions& options, const QuantizeSettings& settings,
                                    const Checkpoint& source, Plan plan, std::optional<ScaleTable> given,
                                    const JobHooks& hooks);

}  // namespace nibble
