// Tokens that are found in the text before the model sees it: control tokens and those that users added.
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

// Of tokenizer.json's "added_tokens". Errors name the entry.
Result<std::vector<AddedToken>> parse_added_tokens(const Json& list);

// Finds the leftmost, and of these the longest; one that is special and not wanted swallows its text all the same,
// which stays text (as Hugging Face's library does).
class AddedTokenFinder {
public:
    // `text`: what to look for, the content or its normalized form.
    void add(std::string_view text, AddedToken token);

    struct Part {
        size_t begin = 0, end = 0;
        const AddedToken* token = nullptr;  // null: text between tokens
    };
    // The parts cover the text in order. White space that lstrip and rstrip take belongs to the token. Errors: the
    // meter's.
    // `refused`, where given: what is found but stays text; a shorter token may begin inside of it.
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
