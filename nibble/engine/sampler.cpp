#include "engine/sampler.h"

namespace nibble {

Status check(const SamplingParams& p) {
    // false for NaN
    const auto in = [](float v, float low, float high) { return v >= low && v <= high; };
    if (!in(p.temperature, 0, 1000)) return fail("temperature {} is not in [0, 1000]", p.temperature);
    if (p.temperature > 0 && p.temperature < 1e-4f)
        return fail("temperature {} is too small; 0 chooses the most likely token", p.temperature);
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

}  // namespace nibble
