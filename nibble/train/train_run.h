// The loop of a training run: batches, steps, validation, in order; what happens around a step is the caller's.
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
    int64_t step = 0;  // from 0, as MaxText counts
    TrainStep result;
    double seconds = 0;
    double flops = 0;  // of the model, as train_flops() counts
    std::optional<double> validation;
    std::vector<UnitQuality> quality;  // empty: not looked at
    double seconds_left = 0;           // of the run, by the median of the last steps; validation not counted
};

struct RunHooks {
    std::function<Status(const StepReport&)> on_step;   // after the update
    const std::atomic<bool>* stop_requested = nullptr;  // looked at between steps
    int64_t first_step = 0;                             // of a run that goes on
    // Set where the step before `first_step` was to be validated and was stopped before: takes the loss.
    std::function<Status(double)> on_owed_validation;
    Trace* trace = nullptr;  // records steps [first_step + 2, first_step + 5): those before warm up
};

// Steps [first_step, config.steps). Returns the number of steps that are done: fewer when a stop was asked for.
// `validation` may be nullptr; each of its rounds reads the same rows, from the place it has now.
Result<int64_t> run_training(const TrainConfig& config, TrainEngine& trainer, BatchSource& data,
                             BatchSource* validation, const RunHooks& hooks);

}  // namespace nibble
