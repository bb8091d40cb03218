// The tokens of a tokenizer as byte texts, ordered for the computation of masks.
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

// Texts as a tree. Nodes are in depth-first order, so a traversal is one pass that skips subtrees.
struct TokenTree {
    struct Node {
        uint8_t byte = 0;
        uint32_t depth = 0;            // number of bytes up to and including this one
        uint32_t next = 0;             // the first node after this node's descendants
        uint32_t first = 0, last = 0;  // its tokens: tokens[first, last)
    };
    std::vector<Node> nodes;
    std::vector<uint32_t> tokens;
    size_t depth = 0;

    // Builds the tree from pairs (non-empty text, token) and sorts them.
    static TokenTree of(std::vector<std::pair<std::string, uint32_t>> texts);
};

class GrammarVocabulary {
public:
    // `end_tokens` and tokens without text are never allowed. Control tokens are allowed only if the grammar names
    // them. `logits`: minimum number of entries of a mask; 0: the size of the vocabulary.
    static Result<std::shared_ptr<const GrammarVocabulary>> of(const Tokenizer& tokenizer,
                                                               std::span<const int32_t> end_tokens, size_t logits = 0);
    // Builds a vocabulary from texts; an empty text is never allowed.
    static Result<std::shared_ptr<const GrammarVocabulary>> of(std::vector<std::string> texts);

    size_t size() const { return texts_.size(); }
    size_t words() const { return (texts_.size() + 31) / 32; }
    std::string_view text(uint32_t token) const { return texts_[token]; }

    // Plain tokens consist of whole characters from U+0020 up without quote and backslash. others() holds the rest.
    const TokenTree& plain() const { return plain_; }
    const TokenTree& others() const { return others_; }
    // Bits of the plain tokens with at most n characters, n <= most_characters(). words() words.
    std::span<const uint32_t> plain_up_to(size_t n) const { return plain_masks_[n]; }
    size_t most_characters() const { return plain_masks_.size() - 1; }
    // (characters, token) of longer plain tokens, shortest first.
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
