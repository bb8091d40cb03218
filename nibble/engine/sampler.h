// Chooses a token from a row of logits by the rules of kernels/sampling.h. The choice depends only on the logits, the
// parameters, the tokens before, and (seed, sequence, position), not on batch, thread or device.
#pragma once

#include "base/error.h"
#include "kernels/token_filter.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

// Error: a value out of range, with its name.
Status check(const SamplingParams& params);

class Sampler {
public:
    // `params` must be checked. `sequence`: sequences with the same seed draw different numbers.
    Sampler(const SamplingParams& params, uint64_t sequence, std::span<const int32_t> prompt);

    // Returns the token at `position` (in the sequence, prompt included). `logits` [vocab] must be finite; they are
    // overwritten.
    int32_t sample(std::span<float> logits, int64_t position) { return filter_.choose(logits, request(position)); }
    // Returns the same choice as a request to a device. Valid until the next accept().
    TokenRequest request(int64_t position) const { return {params_, sequence_, position, seen_}; }
    // Adds the token that follows, whether it was sampled or not, so that penalties count it.
    void accept(int32_t token);

private:
    SamplingParams params_;
    uint64_t sequence_;
    SeenToken& seen(int32_t id);

    std::vector<SeenToken> seen_;
    std::unordered_map<int32_t, size_t> places_;  // index in seen_ by token id
    TokenFilter filter_;
};

}  // namespace nibble
