#include "kernels/sampling_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::cuda {

Drawn drawn_from(const SamplingParams& p) {
    if (p.temperature == 0) return {};
    return {.temperature = p.temperature,
            .top_p = p.top_p,
            .lowest = p.min_p > 0 ? std::log(p.min_p) : -INFINITY,
            .top_k = static_cast<int32_t>(std::min<int64_t>(p.top_k, INT32_MAX))};
}

SampleRow sample_row(const TokenRequest& r, int64_t first_seen) {
    const SamplingParams& p = r.params;
    return {.temperature = p.temperature,
            .top_p = p.top_p,
            .lowest = p.min_p > 0 ? std::log(p.min_p) : -INFINITY,
            .repetition = p.repetition_penalty,
            .presence = p.presence_penalty,
            .frequency = p.frequency_penalty,
            .top_k = static_cast<int32_t>(std::min<int64_t>(p.top_k, INT32_MAX)),
            .first_seen = static_cast<int32_t>(first_seen),
            .seen = p.penalizes() && !r.deferred ? static_cast<int32_t>(r.seen.size()) : 0,
            .mask = r.deferred ? deferred_row : no_mask,
            .scored = r.sampled_logprob && !drawn_from(p).raw(),
            .seed = p.seed,
            .sequence = r.sequence,
            .position = r.position};
}

}  // namespace nibble::cuda
