// The tokens of a tokenizer as byte texts, in the order that masks are found in.
#pragma once

#include "base/error.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Texts as a tree: the nodes in depth-first order, so that a walk is one pass that jumps over what does not fit.
struct TokenTree {
    struct Node {
        uint8_t byte = 0;
        uint32_t depth = 0;            // bytes up to here, this one included
        uint32_t next = 0;             // the first node behind this one's descendants
        uint32_t first = 0, last = 0;  // its tokens: tokens[first, last)
    };
    std::vector<Node> nodes;
    std::vector<uint32_t> tokens;
    size_t depth = 0;

    // `texts`: (text, token), not empty texts. Sorts them.
    static TokenTree of(std::vector<std::pair<std::string, uint32_t>> texts);
};

class GrammarVocabulary {
public:
    // `end_tokens` and tokens without a text are never allowed. Control tokens are allowed only where the grammar names
    // them. `logits`: entries of a mask at least; 0: the vocabulary's.
    static Result<std::shared_ptr<const GrammarVocabulary>> of(const Tokenizer& tokenizer,
                                                               std::span<const int32_t> end_tokens, size_t logits = 0);
    // From texts; an empty one is never allowed.
    static Result<std::shared_ptr<const GrammarVocabulary>> of(std::vector<std::string> texts);

    size_t size() const { return texts_.size(); }
    size_t words() const { return (texts_.size() + 31) / 32; }
    std::string_view text(uint32_t token) const { return texts_[token]; }

    // Tokens that are whole characters from U+0020 up without quote and backslash, and the others.
    const TokenTree& plain() const { return plain_; }
    const TokenTree& others() const { return others_; }
    // Bits of the plain tokens with at most n characters, n <= most_characters(). [words()]
    std::span<const uint32_t> plain_up_to(size_t n) const { return plain_masks_[n]; }
    size_t most_characters() const { return plain_masks_.size() - 1; }
    // (characters, token) of the plain tokens that are longer, shortest first.
    std::span<const std::pair<size_t, uint32_t>> long_plain() const { return long_plain_; }
    size_t longest_plain() const { return longest_; }  // in characters

private:
    GrammarVocabulary() = default;
    std::vector<std::string> texts_;
    TokenTree plain_, others_;
    std::vector<std::vector<uint32_t>> plain_masks_;  // [0] is empty
    std::vector<std::pair<size_t, uint32_t>> long_plain_;
    size_t longest_ = 0;
};

}  // namespace nibble
