// A request's changes to a row of logits before penalties and temperature: the constraint's mask, allowed tokens, bad
// words, end tokens before min_tokens, biases. Forbidden tokens get -infinity.
#pragma once

#include "engine/shared_request.h"

namespace nibble {

class LogitRules {
public:
    // The request must outlive the rules.
    explicit LogitRules(const SharedRequest& request) : request_(&request.request), lists_(&request.lists) {}

    // Returns true if some token is forbidden after `answer` tokens of the answer.
    bool masks(int64_t answer) const;
    bool biases() const { return !request_->bias.empty(); }
    // Computes the mask of tokens that may follow `answer`, before apply(), because a mask needs no logits.
    // `constraint`: the request's constraint after these tokens, or null. Bit i % 32 of word i / 32 belongs to token i;
    // an empty mask allows every token.
    std::span<const uint32_t> mask(int64_t vocab, std::span<const int32_t> answer, TokenConstraint* constraint);
    // Applies the rules to the row [vocab] of the token that follows `answer`. Returns false if no token is allowed.
    bool apply(std::span<float> logits, std::span<const int32_t> answer, TokenConstraint* constraint);

private:
    void fill(int64_t vocab, std::span<const int32_t> answer, TokenConstraint* constraint);

    const Request* request_;
    const TokenLists* lists_;
    std::vector<uint32_t> mask_;
    int64_t masked_ = -1;  // number of answer tokens for which mask_ was computed
};

}  // namespace nibble
