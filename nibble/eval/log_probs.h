// Log-probabilities from a model: whole rows, or those of given continuations.
#pragma once

#include "model/language_model.h"

#include <span>
#include <vector>

namespace nibble {

// Computes the log-probabilities of rows [from, tokens.size()) of a text. out: [rows, vocab].
Status log_prob_rows(const LanguageModel& model, std::span<const int32_t> tokens, int64_t from, std::span<float> out);

struct Continuation {
    std::vector<int32_t> tokens;  // context, then continuation
    int64_t from = 1;             // index of the continuation's first token; at least 1
};
struct ContinuationScore {
    double log_prob = 0;
    bool greedy = true;  // every token is the model's likeliest
};
// Scores continuations in batches of at most `rows` rows and `wanted` rows of logits. Neighbours with a common context
// (the choices of one question) run it once; the bits of the result do not change. Errors: a continuation longer than
// the model's context (with its index), an id outside the vocabulary.
Result<std::vector<ContinuationScore>> score(const LanguageModel& model, std::span<const Continuation> continuations,
                                             int64_t rows = 1024, int64_t wanted = 256);

}  // namespace nibble
