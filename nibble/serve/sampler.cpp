#include "serve/sampler.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

uint64_t product_high(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

}  // namespace

Status check(const SamplingParams& p) {
    const auto in = [](float v, float low, float high) { return v >= low && v <= high; };  // false for NaN
    if (!in(p.temperature, 0, 1000)) return fail("temperature {} is not in [0, 1000]", p.temperature);
    if (p.temperature > 0 && p.temperature < 1e-4f)
        return fail("temperature {} is too small; 0 chooses the likeliest token", p.temperature);
    if (p.top_k < 0) return fail("top-k {} is negative", p.top_k);
    if (!(p.top_p > 0 && p.top_p <= 1)) return fail("top-p {} is not in (0, 1]", p.top_p);
    if (!in(p.min_p, 0, 1)) return fail("min-p {} is not in [0, 1]", p.min_p);
    if (!in(p.repetition_penalty, 0.01f, 100))
        return fail("repetition penalty {} is not in [0.01, 100]", p.repetition_penalty);
    if (!in(p.presence_penalty, -100, 100))
        return fail("presence penalty {} is not in [-100, 100]", p.presence_penalty);
    if (!in(p.frequency_penalty, -100, 100))
        return fail("frequency penalty {} is not in [-100, 100]", p.frequency_penalty);
    return Ok{};
}

Sampler::Sampler(const SamplingParams& params, uint64_t sequence, std::span<const int32_t> prompt)
    : params_(params), sequence_(sequence) {
    if (params_.penalizes())
        for (const int32_t id : prompt) seen(id);
}

SeenToken& Sampler::seen(int32_t id) {
    const auto [place, is_new] = places_.try_emplace(id, seen_.size());
    if (is_new) seen_.push_back({.id = id});
    return seen_[place->second];
}

void Sampler::accept(int32_t token) {
    if (params_.penalizes()) ++seen(token).answer;
}

void Sampler::penalize(std::span<float> logits) const {
    for (const SeenToken& s : seen_) {
        if (s.id < 0 || static_cast<size_t>(s.id) >= logits.size()) continue;
        float& logit = logits[static_cast<size_t>(s.id)];
        logit =
            penalized(logit, params_.repetition_penalty, params_.presence_penalty, params_.frequency_penalty, s.answer);
    }
}

int32_t Sampler::sample(std::span<float> logits, int64_t position) {
    penalize(logits);
    const auto best = std::ranges::max_element(logits);  // the first of equal ones
    if (params_.temperature == 0) return static_cast<int32_t>(best - logits.begin());
    for (float& logit : logits) logit /= params_.temperature;
    const float largest = *best;
    const auto candidates = filter_.keep(logits, largest, params_);
    uint64_t total = 0;
    for (const TokenCandidate& c : candidates) total += sampling_weight(c.logit, largest);
    const uint64_t target = product_high(sampling_bits(params_.seed, sequence_, position), total);
    uint64_t sum = 0;
    for (const TokenCandidate& c : candidates) {
        sum += sampling_weight(c.logit, largest);
        if (sum > target) return c.id;
    }
    return candidates.back().id;  // logits beyond FP32
}

}  // namespace nibble
