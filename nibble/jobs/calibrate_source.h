// The part of a quantization that runs the model on text: the search for awq_lite's scales, then ranges of activations
// and the statistics of weight solvers.
#pragma once

#include "base/thread_pool.h"
#include "jobs/quantize_plan.h"
#include "quant/calibrate.h"
#include "quant/calibration_folder.h"

#include <memory>
#include <optional>

namespace nibble {

// The results that later steps of the job need.
struct Calibrated {
    Plan plan;                           // resolved with all the following members
    std::optional<ScaleTable> scales;    // given scales, and those that were found
    std::unique_ptr<Checkpoint> folded;  // the source with awq_lite's scales multiplied into its weights; null: the
                                         // source itself
    std::unique_ptr<StatisticsStore> statistics;  // null: no solver needs them
    std::vector<LayerOutputError> output_errors;
    std::vector<CalibrationGap> gaps;
    Json settings;             // settings_json() and the settings of calibration
    CalibrationFolder folder;  // keeps the results until the job is done
};

// Runs the calibration. `plan`: plan of the source with the `given` scales, which take precedence over those that are
// found. Finished parts are saved in calibration_folder(options) and reused with options.resume. Before the work,
// checks that the output can be written. `ranks`: set if other ranks share the work; nothing is saved in
// calibration_folder() then. Errors: those of calibrate() and awq_search(), and of the output.
Result<Calibrated> calibrate_source(const QuantizeOptions& options, const QuantizeSettings& settings,
                                    const Checkpoint& source, Plan plan, std::optional<ScaleTable> given,
                                    const std::optional<StageChainOptions>& ranks, const JobHooks& hooks);

}  // namespace nibble
