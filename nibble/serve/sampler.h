// Chooses a token from a row of logits, by the rules of kernels/sampling.h. The choice is a function of the logits, the
// parameters, the tokens before, and (seed, sequence, position) alone: never of the batch, the thread or the device.
#pragma once

#include "base/error.h"
#include "kernels/token_filter.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

// Error: a value out of range, by name.
Status check(const SamplingParams& params);

class Sampler {
public:
    // `params` is checked. `sequence`: sequences of one seed draw different numbers.
    Sampler(const SamplingParams& params, uint64_t sequence, std::span<const int32_t> prompt);

    // The token at `position` (of the sequence, prompt included). `logits` is finite and is scratch afterwards.
    int32_t sample(std::span<float> logits, int64_t position) { return filter_.choose(logits, request(position)); }
    // The same choice, for a device to make. Valid until the next accept().
    TokenRequest request(int64_t position) const { return {params_, sequence_, position, seen_}; }
    // The token that now follows, sampled or not: penalties count it.
    void accept(int32_t token);

private:
    SamplingParams params_;
    uint64_t sequence_;
    SeenToken& seen(int32_t id);

    std::vector<SeenToken> seen_;
    std::unordered_map<int32_t, size_t> places_;  // of an id in seen_
    TokenFilter filter_;
};

}  // namespace nibble
