// Which tokens min-p, top-k and top-p leave to a draw, by the rules of kernels/sampling.h.
#pragma once

#include "kernels/sampling.h"

#include <span>
#include <vector>

namespace nibble {

struct TokenCandidate {
    float logit;
    int32_t id;
};

// Memory for one row at a time, and what it kept of the last one.
class TokenFilter {
public:
    // Of logits that are divided by the temperature; `largest` of them. In the order of a draw; valid until the next
    // call.
    std::span<const TokenCandidate> keep(std::span<const float> logits, float largest, const SamplingParams& params);
    // In place: finite logits to those of the distribution that is drawn from, divided by the temperature where a token
    // is kept, -inf elsewhere. Temperature 0 and penalties change nothing.
    void restrict(std::span<float> logits, const SamplingParams& params);
    // The token that `request` asks for. `logits` is finite and is scratch afterwards.
    int32_t choose(std::span<float> logits, const TokenRequest& request);

private:
    std::vector<TokenCandidate> candidates_;
};

}  // namespace nibble
