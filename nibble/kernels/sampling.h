// How a token is chosen from a row of logits. The samplers on the CPU (engine/sampler.h) and on a GPU
// (kernels/sampling_cuda.h) share these definitions, so the same logits give the same token.
//
// Order, as in vLLM V1: penalties; temperature 0 then takes the largest logit (the lower id of equal ones); division by
// the temperature; min-p, top-k, top-p; a draw. Every filter keeps a prefix, of at least one token, of the order
// "likeliest first, lower id of equal ones first". The draw uses the same order; without top-k and top-p, which sort,
// it goes by id. Probabilities are integers, so their sums do not depend on the order.
#pragma once

#include "base/philox.h"
#include "kernels/exp.h"

#include <cstdint>
#include <span>

namespace nibble {

struct SamplingParams {
    float temperature = 1.0f;  // 0: greedy
    int64_t top_k = 0;         // 0: off
    float top_p = 1.0f;        // keeps the fewest likeliest tokens with at least this probability mass; 1: off
    float min_p = 0.0f;        // drops tokens less likely than min_p * the likeliest; 0: off
    // Divides positive logits and multiplies negative ones, for tokens in prompt or answer (Keskar et al. 2019, CTRL).
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;   // subtracted from the logits of tokens in the answer
    float frequency_penalty = 0.0f;  // subtracted once per occurrence in the answer
    uint64_t seed = 0;

    bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
    bool penalizes() const { return repetition_penalty != 1.0f || presence_penalty != 0 || frequency_penalty != 0; }
};

// A token of prompt or answer, for penalties.
struct SeenToken {
    int32_t id = 0;
    int32_t answer = 0;  // number of occurrences in the answer
};

NIBBLE_HD inline float penalized(float logit, float repetition, float presence, float frequency, int32_t answer) {
    logit = logit > 0 ? logit / repetition : logit * repetition;
    return answer > 0 ? logit - (presence + frequency * static_cast<float>(answer)) : logit;
}

// A probability as an integer: e^(logit - largest) in units of 2^-44, truncated. 2^19 tokens fit a sum.
inline constexpr float sampling_unit = 0x1p44f;
inline uint64_t sampling_weight(float logit, float largest) {
    const float share = exp_f32(logit - largest) * sampling_unit;
    return share > 0 ? static_cast<uint64_t>(share) : 0;
}

// top-p keeps tokens until their sum reaches this mass.
NIBBLE_HD inline double top_p_mass(float top_p, uint64_t mass) {
    return static_cast<double>(top_p) * static_cast<double>(mass);
}

// Returns 64 random bits for the token at `position`; sequences with one seed get different bits. The drawn token is
// the first whose running sum exceeds bits * total / 2^64, truncated.
NIBBLE_HD inline uint64_t sampling_bits(uint64_t seed, uint64_t sequence, int64_t position) {
    const PhiloxBlock b = PhiloxStream{seed, sequence}.block(static_cast<uint64_t>(position));
    return uint64_t{b.word[0]} << 32 | b.word[1];
}

// A request to choose the token that follows a row: the one at `position` of `sequence` (a number, see above).
struct TokenRequest {
    SamplingParams params;  // checked
    uint64_t sequence = 0;
    int64_t position = 0;
    std::span<const SeenToken> seen;  // empty if nothing is penalized; each id once
    // Bit i % 32 of word i / 32 is set if token i is allowed; empty: all tokens are allowed.
    std::span<const uint32_t> mask;
    // The mask or penalties are not known yet when the row is computed; the token is chosen from it later.
    bool deferred = false;
    bool sampled_logprob =
        false;  // refers to the distribution that ChosenToken is drawn from; nothing is masked or penalized
};
struct ChosenToken {
    int32_t id = -1;    // -1: the device leaves this row to the host's sampler
    float logprob = 0;  // log-probability in the raw distribution: before masks, penalties, temperature and filters; or
                        // as the request says
};

}  // namespace nibble
