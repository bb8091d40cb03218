#include "quant/statistics_store.h"

#include "quant/plan.h"

namespace nibble {

Status StatisticsStore::keep_in(CalibrationKeep& keep) {
    NIBBLE_CHECK(
        keep.recall([&](const std::string& module, Solution solution) { return put(module, std::move(solution)); }));
    keep_ = &keep;
    return Ok{};
}

Status StatisticsStore::put(const std::string& module, Solution solution) {
    if (keep_) NIBBLE_CHECK(keep_->note(module, solution));
    auto kept = std::make_shared<LinearStatistics>();
    kept->solution = std::move(solution);
    solved_.insert_or_assign(module, std::move(kept));
    return Ok{};
}

Result<std::shared_ptr<const LinearStatistics>> StatisticsStore::statistics(const PlanEntry& linear) {
    const auto found = solved_.find(linear.module);
    if (found == solved_.end()) return fail("{}: calibration never ran it, so it has no statistics", linear.module);
    return found->second;
}

std::vector<LayerOutputError> StatisticsStore::output_errors() const {
    std::vector<LayerOutputError> all;
    for (const auto& [module, statistics] : solved_)
        if (const SolvedOutputError& e = statistics->solution->output_error; e.rows > 0)
            all.push_back({module, e.rows, e.energy, e.before, e.after});
    return all;
}

}  // namespace nibble
