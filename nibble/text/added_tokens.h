// Added tokens: control tokens and tokens added by users. They are found in the text before the model encodes it.
#pragma once

#include "base/json.h"
#include "text/meter.h"
#include "text/trie.h"
#include "text/vocabulary.h"

#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct AddedToken {
    std::string content;
    uint32_t id = 0;
    bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// Parses tokenizer.json's "added_tokens". Errors name the entry.
Result<std::vector<AddedToken>> parse_added_tokens(const Json& list);

// Finds the leftmost token, and of several at one place the longest. A special token that is not wanted still consumes
// its text, which stays text (as in Hugging Face's library).
class AddedTokenFinder {
public:
    // Adds a token to find; `text` is its content or its normalized form.
    void add(std::string_view text, AddedToken token);

    struct Part {
        size_t begin = 0, end = 0;
        const AddedToken* token = nullptr;  // null: text between tokens
    };
    // Splits the text into parts that cover it in order. White space taken by lstrip and rstrip belongs to the token.
    // Error: a limit of the meter.
    // `refused` (optional) returns true for a match that must stay text; a shorter token may then begin inside it.
    using Refused = std::function<bool(size_t begin, size_t end, const AddedToken&)>;
    Result<std::vector<Part>> split(std::string_view text, bool parse_special, Meter& meter,
                                    const Refused& refused = {}) const;

    bool empty() const { return trie_.empty(); }
    const std::vector<AddedToken>& tokens() const { return tokens_; }

private:
    Trie trie_;
    std::vector<AddedToken> tokens_;
};

}  // namespace nibble
