#include "quant/calibration_observer.h"

#include "quant/statistics_store.h"

namespace nibble {

CalibrationObserver::CalibrationObserver(const Plan& plan, const CalibrationOptions& options,
                                         const SolverKernels& kernels, ThreadPool& pool, Calibration& seen)
    : options_(&options), kernels_(&kernels), pool_(&pool), seen_(&seen) {
    for (const PlanEntry& entry : plan.entries)
        if (entry.solver) solved_.emplace(entry.module, &entry);
}

// The entry whose statistics this pass collects; null for others.
const PlanEntry* CalibrationObserver::solved(const std::string& module) const {
    const auto found = solved_.find(module);
    if (found == solved_.end()) return nullptr;
    const bool backward = needed_statistics(found->second->solver).gradients;
    return backward == (pass_ == Pass::backward) ? found->second : nullptr;
}

CalibrationObserver::Open& CalibrationObserver::open(const PlanEntry& entry) {
    const auto [found, fresh] = open_.try_emplace(entry.module);
    if (fresh) {
        const StatisticsNeeds needs = needed_statistics(entry.solver);
        if (needs.local) found->second.local.emplace(entry.cols(), *kernels_);
        if (needs.inputs) found->second.inputs.emplace(entry.cols(), *kernels_);
        if (needs.outputs) found->second.outputs.emplace(entry.rows(), *kernels_);
    }
    return found->second;
}

Status CalibrationObserver::input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                                  std::span<const int32_t>) {
    if (pass_ == Pass::forward)
        if (const auto found = seen_->inputs.find(linear.name); found != seen_->inputs.end())
            found->second.add(x, rows, cols);
    const PlanEntry* entry = solved(linear.name);
    if (!entry) return Ok{};
    if (pass_ == Pass::backward) {
        x_.assign(x, x + rows * cols);
        return Ok{};
    }
    Open& sums = open(*entry);
    sums.tokens += rows;
    if (sums.local) NIBBLE_CHECK(sums.local->add(x, rows, cols, {}, *pool_).within(linear.name));
    if (sums.inputs) NIBBLE_CHECK(sums.inputs->add(x, rows, cols, {}, *pool_).within(linear.name));
    return Ok{};
}

Status CalibrationObserver::kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                               int64_t v_cols) {
    if (pass_ == Pass::backward) return Ok{};
    if (const auto found = seen_->keys.find(prefix); found != seen_->keys.end()) found->second.add(k, rows, k_cols);
    if (const auto found = seen_->values.find(prefix); found != seen_->values.end()) found->second.add(v, rows, v_cols);
    return Ok{};
}

Status CalibrationObserver::output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                                            std::span<const int32_t>) {
    const PlanEntry* entry = solved(linear.name);
    if (!entry) return Ok{};
    Open& sums = open(*entry);
    std::vector<float> weights;
    const NibbleBestOptions& best = entry->solver.best;
    if (best.token_weights) {
        weights.resize(static_cast<size_t>(rows));
        for (int64_t t = 0; t < rows; ++t) {
            double square = 0;
            for (int64_t j = 0; j < cols; ++j) square += static_cast<double>(g[t * cols + j]) * g[t * cols + j];
            weights[static_cast<size_t>(t)] = static_cast<float>(square);
        }
        mix_with_uniform(weights, best.mix);
    }
    sums.tokens += rows;
    if (sums.inputs)
        NIBBLE_CHECK(sums.inputs->add(x_.data(), rows, entry->cols(), weights, *pool_).within(linear.name));
    if (sums.outputs) NIBBLE_CHECK(sums.outputs->add(g, rows, cols, {}, *pool_).within(linear.name));
    return Ok{};
}

Status CalibrationObserver::end_block(StatisticsStore& store) {
    for (auto& [module, sums] : open_) {
        LinearStatistics done{.tokens = sums.tokens};
        if (sums.local) {
            sums.local->finish(*pool_);
            done.local = sums.local->mean();
        }
        if (sums.inputs) {
            sums.inputs->finish(*pool_);
            done.inputs = std::move(sums.inputs);
        }
        if (sums.outputs) {
            sums.outputs->finish(*pool_);
            done.outputs = std::move(sums.outputs);
        }
        NIBBLE_CHECK(store.put(module, done));
    }
    open_.clear();
    return Ok{};
}

}  // namespace nibble
