// Chooses a token from a row of logits. The choice is a function of the logits, the parameters, the tokens before, and
// (seed, sequence, position) alone: never of the batch or the thread.
//
// Order, as vLLM V1 has it: penalties; temperature 0 ends here with the largest logit (of equal ones the lower id);
// division by the temperature; min-p, top-k, top-p; a draw. Every filter keeps at least one token; a filter's ties are
// broken towards the lower id.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

struct SamplingParams {
    float temperature = 1.0f;  // 0: greedy
    int64_t top_k = 0;         // 0: off
    float top_p = 1.0f;        // the fewest tokens, most likely first, with at least this mass; 1: off
    float min_p = 0.0f;        // drops tokens less likely than min_p * the likeliest; 0: off
    // Divides positive logits and multiplies negative ones of tokens in prompt or answer (Keskar et al. 2019, CTRL).
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;   // subtracted from the logits of tokens in the answer
    float frequency_penalty = 0.0f;  // the same, once per occurrence
    uint64_t seed = 0;

    bool penalizes() const { return repetition_penalty != 1.0f || presence_penalty != 0 || frequency_penalty != 0; }
};

// Error: a value out of range, by name.
Status check(const SamplingParams& params);

class Sampler {
public:
    // `params` is checked. `sequence`: sequences of one seed draw different numbers.
    Sampler(const SamplingParams& params, uint64_t sequence, std::span<const int32_t> prompt);

    // The token at `position` (of the sequence, prompt included). `logits` is finite and is scratch afterwards.
    int32_t sample(std::span<float> logits, int64_t position);
    // The token that now follows, sampled or not: penalties count it.
    void accept(int32_t token);

private:
    struct Seen {
        bool prompt = false;
        int64_t answer = 0;
    };
    struct Candidate {
        float logit;
        int32_t id;
    };
    void penalize(std::span<float> logits) const;
    void filter(std::span<const float> logits, float largest);

    SamplingParams params_;
    uint64_t sequence_;
    std::unordered_map<int32_t, Seen> seen_;
    std::vector<Candidate> candidates_;
};

}  // namespace nibble
