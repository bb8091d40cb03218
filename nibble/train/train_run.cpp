#include "train/train_run.h"

#include "train/schedule.h"

#include <algorithm>
#include <chrono>

namespace nibble {
namespace {

// With chat data a step's rows may have no token of the assistant.
bool learns(const TrainBatch& batch) {
    for (size_t i = 0; i < batch.labels.size(); ++i)
        if (batch.labels[i] >= 0 && (batch.weights.empty() || batch.weights[i] > 0)) return true;
    return false;
}

Result<std::vector<TrainBatch>> validation_rows(const TrainConfig& config, BatchSource& source) {
    const Json place = source.place();
    std::vector<TrainBatch> batches;
    for (int64_t i = 0; i < config.validation.batches; ++i) {
        NIBBLE_TRY(TrainBatch batch, source.next(config.batch));
        batches.push_back(std::move(batch));
    }
    NIBBLE_CHECK(source.set_place(place));
    if (std::ranges::none_of(batches, learns))
        return fail("validation: none of the tokens in its {} rows is a label",
                    config.validation.batches * config.batch);
    return batches;
}

// Estimates the remaining time by the median time of the last steps.
class TimeLeft {
public:
    double after(double seconds, int64_t left) {
        last_.push_back(seconds);
        if (last_.size() > 21) last_.erase(last_.begin());
        std::vector<double> sorted = last_;
        std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
        return sorted[sorted.size() / 2] * static_cast<double>(left);
    }

private:
    std::vector<double> last_;
};

}  // namespace

Result<int64_t> run_training(const TrainConfig& config, TrainEngine& trainer, BatchSource& data,
                             BatchSource* validation, const RunHooks& hooks) {
    using Clock = std::chrono::steady_clock;
    std::vector<TrainBatch> held_out;
    if (validation) {
        NIBBLE_TRY(held_out, validation_rows(config, *validation));
    }
    const double flops = trainer.flops(config.sequence);
    const int64_t looks = config.quality.every.value_or(trainer.usual_look());
    NIBBLE_TRY(const bool owes, trainer.any(validation && hooks.on_owed_validation != nullptr));
    if (owes) {
        NIBBLE_TRY(const auto loss, trainer.evaluate(held_out, hooks.stop_requested));
        if (loss && hooks.on_owed_validation) NIBBLE_CHECK(hooks.on_owed_validation(*loss));
    }
    TimeLeft time_left;
    for (int64_t step = hooks.first_step; step < config.steps; ++step) {
        if (hooks.trace) hooks.trace->record(step >= hooks.first_step + 2 && step < hooks.first_step + 5);
        const bool stop = hooks.stop_requested && hooks.stop_requested->load(std::memory_order_relaxed);
        NIBBLE_TRY(const bool stops, trainer.any(stop));
        if (stops) return step;
        const auto start = Clock::now();
        NIBBLE_TRY(const TrainBatch batch, data.next(config.batch));
        const double rate = learning_rate(config.schedule, config.optimizer.learning_rate, step, config.steps);
        StepReport report{.step = step};
        trainer.begin(step, config.steps);
        const bool last = step + 1 == config.steps;
        const bool look = looks > 0 && (last || step % looks == 0);
        trainer.recipe().watch(look);
        if (learns(batch)) {
            const TraceSpan span(hooks.trace, "step", step);
            NIBBLE_TRY(report.result, trainer.step({&batch, 1}, rate));
        } else {
            report.result = {.learning_rate = rate, .skipped = true};
        }
        if (look && !report.result.skipped) report.quality = trainer.recipe().quality();
        report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
        report.flops = flops * static_cast<double>(report.result.tokens);
        const int64_t every = config.validation.every;
        report.seconds_left = time_left.after(report.seconds, config.steps - step - 1);
        const bool due = last || (every > 0 && (step + 1) % every == 0);
        if (validation && due) {
            NIBBLE_TRY(report.validation, trainer.evaluate(held_out, hooks.stop_requested));
        }
        if (hooks.on_step) {
            NIBBLE_CHECK(hooks.on_step(report));
        }
        NIBBLE_CHECK(trainer.sync());
    }
    return config.steps;
}

}  // namespace nibble
