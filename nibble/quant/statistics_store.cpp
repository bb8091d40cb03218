#include "quant/statistics_store.h"

#include "quant/plan.h"

#include <cstring>

namespace nibble {
namespace {

std::optional<Gram> restored(const ScratchMemory& sums, int64_t n, int64_t tokens, double weight) {
    return Gram::of({reinterpret_cast<const double*>(sums.data()), static_cast<size_t>(n * n)}, n, tokens, weight);
}

}  // namespace

Result<std::optional<StatisticsStore::StoredGram>> StatisticsStore::store(const std::optional<Gram>& gram) {
    std::optional<StoredGram> kept;
    if (!gram) return kept;
    const std::span<const double> sums = gram->sums();
    const auto limit = static_cast<size_t>(std::max<int64_t>(memory_, 0));
    NIBBLE_TRY(auto memory, ScratchMemory::create(sums.size_bytes(), limit, scratch_));
    if (!memory.spilled()) memory_ -= static_cast<int64_t>(sums.size_bytes());
    std::memcpy(memory.data(), sums.data(), sums.size_bytes());
    kept = StoredGram{std::move(memory), gram->size(), gram->tokens(), gram->weight()};
    return kept;
}

Status StatisticsStore::put(const std::string& module, const LinearStatistics& statistics) {
    NIBBLE_TRY(auto inputs, store(statistics.inputs).within(module));
    NIBBLE_TRY(auto outputs, store(statistics.outputs).within(module));
    stored_.insert_or_assign(module,
                             Stored{statistics.tokens, statistics.local, std::move(inputs), std::move(outputs)});
    return Ok{};
}

Result<std::shared_ptr<const LinearStatistics>> StatisticsStore::statistics(const PlanEntry& linear) {
    const auto found = stored_.find(linear.module);
    if (found == stored_.end()) return fail("{}: calibration never ran it, so it has no statistics", linear.module);
    const Stored& s = found->second;
    auto out = std::make_shared<LinearStatistics>();
    out->tokens = s.tokens;
    out->local = s.local;
    if (s.inputs) out->inputs = restored(s.inputs->sums, s.inputs->n, s.inputs->tokens, s.inputs->weight);
    if (s.outputs) out->outputs = restored(s.outputs->sums, s.outputs->n, s.outputs->tokens, s.outputs->weight);
    return std::shared_ptr<const LinearStatistics>(std::move(out));
}

}  // namespace nibble
