// Applies min-p, top-k and top-p by the rules of kernels/sampling.h.
#pragma once

#include "kernels/sampling.h"

#include <span>
#include <vector>

namespace nibble {

struct TokenCandidate {
    float logit;
    int32_t id;
};

// Filters one row at a time and reuses its memory.
class TokenFilter {
public:
    // Returns the kept tokens in the order of a draw; valid until the next call. `logits` are divided by the
    // temperature, `largest` is their maximum.
    std::span<const TokenCandidate> keep(std::span<const float> logits, float largest, const SamplingParams& params);
    // Converts finite logits in place to those of the sampled distribution: divided by the temperature for kept tokens,
    // -inf for others. Temperature 0 and penalties change nothing.
    void restrict(std::span<float> logits, const SamplingParams& params);
    // Returns the token for `request`. `logits` are finite and are overwritten.
    int32_t choose(std::span<float> logits, const TokenRequest& request);

private:
    std::vector<TokenCandidate> candidates_;
};

}  // namespace nibble
