// A request's parameters, checked and converted once and shared by all its prompts and choices.
#pragma once

#include "base/error.h"
#include "engine/request.h"
#include "engine/stop_strings.h"

namespace nibble {

// Bit i % 32 of word i / 32 belongs to token i; empty: no list was given.
using TokenBits = std::vector<uint32_t>;
inline bool has_bit(const TokenBits& bits, int32_t id) {
    return !bits.empty() && (bits[static_cast<size_t>(id) / 32] >> static_cast<uint32_t>(id) % 32 & 1);
}

// The token lists of a request as masks over the vocabulary, so that the cost of a step does not depend on their
// length.
struct TokenLists {
    TokenLists(const Request& request, int64_t vocab);

    TokenBits ends, allowed, banned;  // banned: bad words that consist of one token
    struct BadWord {
        std::vector<int32_t> before;  // the tokens before the last one, at least one
        int32_t last = 0;
    };
    std::vector<BadWord> bad_words;  // words of several tokens, sorted by the last token of `before`
    bool bans() const { return !banned.empty() || !bad_words.empty(); }
};

struct SharedRequest {
    SharedRequest(Request parameters, int64_t vocab)
        : request(std::move(parameters)),
          lists(request, vocab),
          stop(std::make_shared<const StopPatterns>(request.stop)) {}

    const Request request;  // its prompt and sequence are not used
    const TokenLists lists;
    const std::shared_ptr<const StopPatterns> stop;
};
using SharedRequestPtr = std::shared_ptr<const SharedRequest>;

}  // namespace nibble
