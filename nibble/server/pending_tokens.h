// Tokens whose text is not yet in the answer's message: parsers of reasoning and tools hold back text, and tags are not
// part of a message.
#pragma once

#include "base/json.h"

#include <deque>
#include <string>
#include <string_view>

namespace nibble {

class PendingTokens {
public:
    void push(std::string bytes, Json logprob) { tokens_.push_back({std::move(bytes), std::move(logprob)}); }
    void clear() { tokens_.clear(); }
    // Returns the log-probabilities of the tokens that form `text`, and removes these tokens and those before them.
    Json take(std::string_view text) {
        std::string joined;
        for (const Token& token : tokens_) joined += token.bytes;
        size_t at = joined.find(text);
        size_t left = text.size();
        if (at == std::string::npos)
            at = 0, left = joined.size();  // invalid bytes were replaced, so the text differs
                                           // from the tokens' bytes
        Json out = Json::array();
        while (!tokens_.empty() && (at > 0 || left > 0)) {
            Token& token = tokens_.front();
            const size_t skipped = std::min(at, token.bytes.size());
            const size_t used = std::min(left, token.bytes.size() - skipped);
            if (used > 0 && !token.logprob.is_null()) out.push_back(std::exchange(token.logprob, nullptr));
            at -= skipped;
            left -= used;
            token.bytes.erase(0, skipped + used);
            if (!token.bytes.empty()) break;
            tokens_.pop_front();
        }
        return out;
    }

private:
    struct Token {
        std::string bytes;
        Json logprob;  // null: already returned, but part of the token's text was not
    };
    std::deque<Token> tokens_;
};

}  // namespace nibble
