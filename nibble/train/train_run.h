// The loop of a training run: batches, steps and validation in order. The caller handles everything around a step.
#pragma once

#include "base/trace.h"
#include "data/batch_source.h"
#include "train/train_config.h"
#include "train/train_engine.h"

#include <atomic>
#include <functional>
#include <optional>

namespace nibble {

struct StepReport {
    int64_t step = 0;  // from 0, as in MaxText
    TrainStep result;
    double seconds = 0;
    double flops = 0;  // operations of the model in this step, from train_flops()
    std::optional<double> validation;
    std::vector<UnitQuality> quality;  // empty: not measured
    double seconds_left = 0;  // estimated rest of the run, from the median of the last steps; without validation
};

struct RunHooks {
    std::function<Status(const StepReport&)> on_step;   // after the update
    const std::atomic<bool>* stop_requested = nullptr;  // checked between steps
    int64_t first_step = 0;                             // greater than 0 for a resumed run
    // If set, the validation after step `first_step` - 1 is still missing (it was stopped): runs it and calls this with
    // the loss.
    std::function<Status(double)> on_owed_validation;
    Trace* trace = nullptr;  // records steps [first_step + 2, first_step + 5); earlier ones warm up
};

// Runs steps [first_step, config.steps) and returns the number of completed steps, which is smaller if a stop was
// requested. `validation` may be null. Every round of validation reads the same rows, from its present position.
Result<int64_t> run_training(const TrainConfig& config, TrainEngine& trainer, BatchSource& data,
                             BatchSource* validation, const RunHooks& hooks);

}  // namespace nibble
