// Log-probabilities from a model: whole rows, or of given continuations.
#pragma once

#include "model/language_model.h"

#include <span>
#include <vector>

namespace nibble {

// Rows [from, tokens.size()) of a text as log-probabilities: out [rows, vocab].
Status log_prob_rows(const LanguageModel& model, std::span<const int32_t> tokens, int64_t from, std::span<float> out);

struct Continuation {
    std::vector<int32_t> tokens;  // context and continuation
    int64_t from = 1;             // the continuation's first token; at least 1
};
struct ContinuationScore {
    double log_prob = 0;
    bool greedy = true;  // every token is the likeliest
};
// Continuations run together, as many as fit `rows` rows and `wanted` rows of logits; neighbours with a common context
// (the choices of one question) run it once, with the same bits. Error: one that is longer than
// the model's context (names its number), an id outside the vocabulary.
Result<std::vector<ContinuationScore>> score(const LanguageModel& model, std::span<const Continuation> continuations,
                                             int64_t rows = 1024, int64_t wanted = 256);

}  // namespace nibble
