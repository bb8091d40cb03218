// What a request changes in a row of logits before penalties and temperature: the constraint's mask and the tokens
// allowed, bad words, end tokens before their time, biases. A token that may not follow gets -infinity.
#pragma once

#include "serve/request.h"

namespace nibble {

class LogitRules {
public:
    // The request outlives the rules.
    explicit LogitRules(const Request& request) : request_(&request) {}

    // Whether they change anything behind `answer` tokens; rows that they leave alone may be chosen from elsewhere.
    bool touch(int64_t answer) const;
    // Which tokens may follow `answer` tokens, ahead of apply(): a mask needs no logits.
    void prepare(int64_t vocab, int64_t answer, TokenConstraint* constraint);
    // The row of the token that follows `answer`. `constraint`: the request's in the state behind these tokens, or
    // null. False: no token may follow.
    bool apply(std::span<float> logits, std::span<const int32_t> answer, TokenConstraint* constraint);

private:
    const Request* request_;
    std::vector<uint32_t> mask_;
    int64_t prepared_ = -1;  // mask_ is of the token behind so many
};

}  // namespace nibble
