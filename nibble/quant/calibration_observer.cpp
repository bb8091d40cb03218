#include "quant/calibration_observer.h"

#include <algorithm>

namespace nibble {
namespace {

// Statistics use every second row of those that only go through the forward pass, because adjacent rows are similar.
constexpr int64_t uniform_step = 2;

float sum_of_squares(const float* x, int64_t n) {
    double lane[8] = {}, sum = 0;
    int64_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int64_t l = 0; l < 8; ++l) lane[l] += double{x[j + l]} * double{x[j + l]};
    for (; j < n; ++j) sum += double{x[j]} * double{x[j]};
    for (const double l : lane) sum += l;
    return static_cast<float>(sum);
}

}  // namespace

CalibrationObserver::CalibrationObserver(Pass pass, const Plan& plan, const CalibrationOptions& options,
                                         const SolverKernels& kernels, const ByteKernels* bytes, ThreadPool& pool,
                                         const StatisticsStore& done, Calibration* seen, UniformMoments& uniform)
    : options_(&options),
      kernels_(&kernels),
      bytes_(pass == Pass::forward ? nullptr : bytes),
      pool_(&pool),
      seen_(seen),
      uniform_(&uniform),
      pass_(pass) {
    for (const PlanEntry& entry : plan.entries)
        if (entry.solver && !done.holds(entry.module)) solved_.emplace(entry.module, &entry);
}

// Returns the entry whose statistics this pass collects; null: none.
const PlanEntry* CalibrationObserver::solved(const std::string& module) const {
    const auto found = solved_.find(module);
    if (found == solved_.end()) return nullptr;
    const bool gradients = needed_statistics(found->second->solver).gradients;
    return gradients == (pass_ != Pass::forward) ? found->second : nullptr;
}

CalibrationObserver::Open& CalibrationObserver::open(const PlanEntry& entry) {
    const auto [found, fresh] = open_.try_emplace(entry.module);
    if (fresh) {
        const StatisticsNeeds needs = needed_statistics(entry.solver);
        if (needs.local) found->second.local.emplace(entry.cols(), *kernels_);
        if (needs.inputs) found->second.inputs.emplace(entry.cols(), *kernels_, bytes_);
        if (needs.outputs && pass_ == Pass::backward) found->second.outputs.emplace(entry.rows(), *kernels_, bytes_);
    }
    return found->second;
}

Status CalibrationObserver::input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                                  std::span<const int32_t>) {
    if (seen_)
        if (const auto found = seen_->inputs.find(linear.name); found != seen_->inputs.end())
            found->second.add(x, rows, cols);
    const PlanEntry* entry = solved(linear.name);
    if (!entry) return Ok{};
    if (pass_ == Pass::backward) {
        x_ = x;
        return Ok{};
    }
    if (pass_ == Pass::uniform) return add_uniform(*entry, x, rows).within(linear.name);
    if (quantized_.plan && entry->solver.kind == WeightSolver::Kind::gptq &&
        entry->activation == ActivationFormat::nvfp4) {
        const float scale = *quantized_.scales->input[static_cast<size_t>(entry - quantized_.plan->entries.data())];
        quantized_.rows.resize(static_cast<size_t>(rows * cols));
        nvfp4_inputs(*quantized_.kernels, x, rows, cols, scale, *pool_, quantized_.rows.data());
        x = quantized_.rows.data();
    }
    Open& sums = open(*entry);
    sums.tokens += rows;
    if (sums.local) NIBBLE_CHECK(sums.local->add(x, rows, cols, {}, *pool_).within(linear.name));
    if (sums.inputs) NIBBLE_CHECK(sums.inputs->add(x, rows, cols, {}, *pool_).within(linear.name));
    return Ok{};
}

Status CalibrationObserver::add_uniform(const PlanEntry& entry, const float* x, int64_t rows) {
    if (sharing_.contains(entry.module)) return Ok{};
    const auto parent = [](std::string_view module) { return module.substr(0, module.rfind('.')); };
    const bool same = x == last_.x && rows == last_.rows && entry.cols() == last_.cols &&
                      parent(entry.module) == parent(last_.owner);  // the same buffer may be reused, for another expert
                                                                    // for example
    if (same && !open_.contains(entry.module)) {
        sharing_.emplace(entry.module, last_.owner);
        return Ok{};
    }
    last_ = {x, rows, entry.cols(), entry.module};
    Open& sums = open(entry);
    const int64_t first = (uniform_step - sums.tokens % uniform_step) % uniform_step, cols = entry.cols();
    sums.tokens += rows;
    if (first >= rows) return Ok{};
    return sums.inputs->add(x + first * cols, (rows - first + uniform_step - 1) / uniform_step, uniform_step * cols, {},
                            *pool_);
}

Status CalibrationObserver::kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                               int64_t v_cols) {
    if (!seen_) return Ok{};
    if (const auto found = seen_->keys.find(prefix); found != seen_->keys.end()) found->second.add(k, rows, k_cols);
    if (const auto found = seen_->values.find(prefix); found != seen_->values.end()) found->second.add(v, rows, v_cols);
    return Ok{};
}

Status CalibrationObserver::output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                                            std::span<const int32_t>) {
    const PlanEntry* entry = solved(linear.name);
    if (!entry) return Ok{};
    Open& sums = open(*entry);
    sums.tokens += rows;
    if (sums.inputs && entry->solver.best.token_weights) {
        std::vector<float> weights(static_cast<size_t>(rows));
        constexpr int64_t together = 64;
        pool_->parallel_for((rows + together - 1) / together, [&](int64_t part) {
            for (int64_t t = part * together; t < std::min((part + 1) * together, rows); ++t)
                weights[static_cast<size_t>(t)] = sum_of_squares(g + t * cols, cols);
        });
        for (const float weight : weights) sums.weight += double{weight};
        NIBBLE_CHECK(sums.inputs->add(x_, rows, entry->cols(), weights, *pool_).within(linear.name));
    }
    if (sums.outputs) NIBBLE_CHECK(sums.outputs->add(g, rows, cols, {}, *pool_).within(linear.name));
    return Ok{};
}

Status CalibrationObserver::keep_uniform() {
    for (auto& [module, sums] : open_) {
        sums.inputs->finish(*pool_);
        NIBBLE_CHECK(uniform_->put(module, *sums.inputs, *pool_));
    }
    for (const auto& [module, owner] : sharing_) uniform_->share(module, owner);
    open_.clear();
    sharing_.clear();
    last_ = {};
    return Ok{};
}

Status CalibrationObserver::end_block(BlockSolver& solver) {
    for (auto& [module, sums] : open_) {
        LinearStatistics done{.tokens = sums.tokens};
        if (sums.local) {
            sums.local->finish(*pool_);
            done.local = sums.local->mean();
        }
        if (sums.inputs) {
            sums.inputs->finish(*pool_);
            if (pass_ == Pass::backward) {
                // Without token weights, or if there were no gradients, all tokens have equal weight.
                const int64_t all = std::max<int64_t>(uniform_->tokens(module), 1);
                const float mix = solved_.at(module)->solver.best.mix;
                uniform_->add_to(*sums.inputs, module,
                                 sums.weight > 0 ? mix * sums.weight / static_cast<double>(all) : 1.0, *pool_);
                done.tokens = all;
            }
            done.inputs = std::move(sums.inputs);
        }
        if (sums.outputs) {
            sums.outputs->finish(*pool_);
            done.outputs = std::move(sums.outputs);
        }
        solver.add(module, std::move(done));
    }
    for (const auto& [module, sums] : open_) uniform_->forget(module);
    open_.clear();
    return solver.solve_if_enough();
}

}  // namespace nibble
