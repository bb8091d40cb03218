#include "quant/search_scores.h"

namespace nibble {

Result<Trials> Trials::create(const Checkpoint& source, const SearchSpace& space, std::string_view origin,
                              TokenSequences sequences, const ScoreOptions& options, ThreadPool& pool,
                              const JobHooks& hooks) {
    Trials trials;
    trials.source_ = &source;
    trials.space_ = &space;
    trials.pool_ = &pool;
    // All formats compute their input scales from the same maxima, so one plan that observes all their linears is
    // sufficient.
    Plan watch;
    for (size_t f = 0; f < space.formats.size(); ++f) {
        NIBBLE_TRY(Plan plan, trials.uniform_plan(f));
        if (watch.entries.empty()) {
            watch = std::move(plan);
            continue;
        }
        for (size_t i = 0; i < plan.entries.size(); ++i)
            if (!stores_input_scale(watch.entries[i].activation) && stores_input_scale(plan.entries[i].activation))
                watch.entries[i] = std::move(plan.entries[i]);
    }
    if (!needs_calibration(watch)) return trials;
    NIBBLE_TRY(trials.ranges_, calibrate(source, watch, origin, sequences,
                                         {.compute = options.compute,
                                          .batch_tokens = options.batch_tokens,
                                          .memory = options.memory,
                                          .scratch = options.scratch,
                                          .device = options.device},
                                         pool, hooks));
    for (const std::string& warning : trials.ranges_->warnings)
        if (hooks.warn) hooks.warn(warning);
    return trials;
}

std::vector<size_t> Trials::uniform_choice(size_t format) const {
    std::vector<size_t> choice;
    for (const SearchGroup& group : space_->groups)
        choice.push_back(std::ranges::find(group.candidates, format) != group.candidates.end() ? format
                                                                                               : space_->none());
    return choice;
}

Result<Plan> Trials::uniform_plan(size_t format) const {
    return plan_of(*space_, uniform_choice(format), source_->tensors(), source_->config());
}

Result<std::unique_ptr<TrialCheckpoint>> Trials::uniform(size_t format) const { return of(uniform_choice(format)); }

Result<std::unique_ptr<TrialCheckpoint>> Trials::of(std::span<const size_t> choice) const {
    NIBBLE_TRY(Plan plan, plan_of(*space_, choice, source_->tensors(), source_->config()));
    ScaleTable table;
    if (ranges_) {
        // Keeps only values of the plan's own linears; an unused value would cause a warning.
        table = scale_table(*ranges_, plan, Arithmetic::reciprocal);
        std::erase_if(table.values, [&](const auto& value) {
            return std::ranges::none_of(plan.entries, [&](const PlanEntry& e) {
                return stores_input_scale(e.activation) && e.module + ".input_scale" == value.first;
            });
        });
    }
    NIBBLE_TRY(const ActivationScales scales, resolve_activation_scales(plan, ranges_ ? &table : nullptr));
    return TrialCheckpoint::create(*source_, std::move(plan), scales, *pool_);
}

}  // namespace nibble
