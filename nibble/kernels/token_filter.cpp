#include "kernels/token_filter.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

uint64_t product_high(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

}  // namespace

std::span<const TokenCandidate> TokenFilter::keep(std::span<const float> logits, float largest,
                                                  const SamplingParams& params) {
    const float lowest = params.min_p > 0 ? largest + std::log(params.min_p) : -INFINITY;
    candidates_.clear();
    uint64_t mass = 0;  // total weight of tokens that min-p keeps
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
    // Sorts only as far as top-p needs: usually a few hundred of a hundred thousand tokens.
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

int32_t TokenFilter::choose(std::span<float> logits, const TokenRequest& request) {
    const SamplingParams& p = request.params;
    for (const SeenToken& s : request.seen) {
        if (s.id < 0 || static_cast<size_t>(s.id) >= logits.size()) continue;
        float& logit = logits[static_cast<size_t>(s.id)];
        logit = penalized(logit, p.repetition_penalty, p.presence_penalty, p.frequency_penalty, s.answer);
    }
    const auto best = std::ranges::max_element(logits);  // the first of equal ones
    if (p.temperature == 0) return static_cast<int32_t>(best - logits.begin());
    for (float& logit : logits) logit /= p.temperature;
    const float largest = *best;
    const auto candidates = keep(logits, largest, p);
    uint64_t total = 0;
    for (const TokenCandidate& c : candidates) total += sampling_weight(c.logit, largest);
    const uint64_t target = product_high(sampling_bits(p.seed, request.sequence, request.position), total);
    uint64_t sum = 0;
    for (const TokenCandidate& c : candidates) {
        sum += sampling_weight(c.logit, largest);
        if (sum > target) return c.id;
    }
    return candidates.back().id;  // reached only with logits beyond FP32
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
