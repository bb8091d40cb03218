#include "kernels/token_filter.h"

#include <algorithm>
#include <cmath>

namespace nibble {

std::span<const TokenCandidate> TokenFilter::keep(std::span<const float> logits, float largest,
                                                  const SamplingParams& params) {
    const float lowest = params.min_p > 0 ? largest + std::log(params.min_p) : -INFINITY;
    candidates_.clear();
    uint64_t mass = 0;  // of what min-p leaves
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] < lowest) continue;
        candidates_.push_back({logits[i], static_cast<int32_t>(i)});
        mass += sampling_weight(logits[i], largest);
    }
    const auto before = [](const TokenCandidate& a, const TokenCandidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    };
    const size_t limit =
        params.top_k > 0 ? std::min<size_t>(candidates_.size(), static_cast<size_t>(params.top_k)) : candidates_.size();
    // Sorts only as far as top-p needs: a few hundred of a hundred thousand, nearly always.
    size_t sorted = 0;
    const auto sort_to = [&](size_t end) {
        std::partial_sort(candidates_.begin() + ptrdiff_t(sorted), candidates_.begin() + ptrdiff_t(end),
                          candidates_.end(), before);
        sorted = end;
    };
    if (params.top_k > 0) {
        sort_to(limit);
        mass = 0;
        for (size_t i = 0; i < limit; ++i) mass += sampling_weight(candidates_[i].logit, largest);
    }
    size_t kept = limit;
    if (params.top_p < 1) {
        const double enough = top_p_mass(params.top_p, mass);
        uint64_t sum = 0;
        for (kept = 0; kept < limit && static_cast<double>(sum) < enough; ++kept) {
            if (kept == sorted) sort_to(std::min(limit, std::max<size_t>(64, 2 * sorted)));
            sum += sampling_weight(candidates_[kept].logit, largest);
        }
    }
    candidates_.resize(std::max<size_t>(kept, 1));
    return candidates_;
}

void TokenFilter::restrict(std::span<float> logits, const SamplingParams& params) {
    if (params.temperature == 0) return;
    if (params.temperature != 1)
        for (float& logit : logits) logit /= params.temperature;
    if (!params.filters()) return;
    const auto kept = keep(logits, *std::ranges::max_element(logits), params);
    std::ranges::fill(logits, -INFINITY);
    for (const TokenCandidate& c : kept) logits[static_cast<size_t>(c.id)] = c.logit;
}

}  // namespace nibble
