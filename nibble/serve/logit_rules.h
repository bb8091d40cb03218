// What a request changes in a row of logits before penalties and temperature: the constraint's mask and the tokens
// allowed, bad words, end tokens before their time, biases. A token that may not follow gets -infinity.
#pragma once

#include "serve/shared_request.h"

namespace nibble {

class LogitRules {
public:
    // The request outlives the rules.
    explicit LogitRules(const SharedRequest& request) : request_(&request.request), lists_(&request.lists) {}

    // Whether some token may not follow `answer` tokens.
    bool masks(int64_t answer) const;
    bool biases() const { return !request_->bias.empty(); }
    // Which tokens may follow `answer`, ahead of apply(): a mask needs no logits. `constraint`: the request's in the
    // state behind these tokens, or null. Bit i % 32 of word i / 32 is token i's; empty: every token may follow.
    std::span<const uint32_t> mask(int64_t vocab, std::span<const int32_t> answer, TokenConstraint* constraint);
    // The row of the token that follows `answer`. False: no token may follow.
    bool apply(std::span<float> logits, std::span<const int32_t> answer, TokenConstraint* constraint);

private:
    void fill(int64_t vocab, std::span<const int32_t> answer, TokenConstraint* constraint);

    const Request* request_;
    const TokenLists* lists_;
    std::vector<uint32_t> mask_;
    int64_t masked_ = -1;  // mask_ is of the token behind so many
};

}  // namespace nibble
