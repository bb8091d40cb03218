// A grammar over a vocabulary: which tokens may follow what was said so far.
//
// The mask of a state of the automaton is computed when the state is first met and kept: tokens that the rule of the
// state decides alone, and what is left over of tokens that reach beyond the end of the rule. With the stack only the
// left-overs are looked at. Tokens that are plain text (no quote, backslash or control character) are accepted by their
// number of characters, not one by one.
#pragma once

#include "grammar/grammar.h"
#include "grammar/stacks.h"
#include "grammar/vocabulary.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct StateMask;

// A grammar and a vocabulary, and the masks found so far. Shared by all requests with the same grammar; safe to use
// from several threads.
class GrammarTokens {
public:
    // `mask_bytes`: memory that the kept masks may take; beyond it they are dropped and found again.
    GrammarTokens(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const GrammarVocabulary> vocabulary,
                  size_t mask_bytes = 32 << 20);
    ~GrammarTokens();

    const Grammar& grammar() const { return *grammar_; }
    const GrammarVocabulary& vocabulary() const { return *vocabulary_; }
    std::shared_ptr<const StateMask> mask_of(uint32_t state) const;

private:
    std::shared_ptr<const Grammar> grammar_;
    std::shared_ptr<const GrammarVocabulary> vocabulary_;
    size_t most_bytes_;
    mutable std::mutex mutex_;
    mutable std::unordered_map<uint32_t, std::shared_ptr<const StateMask>> masks_;
    mutable size_t bytes_ = 0;
};

// One answer. Copies are cheap (the stacks of the answer) and independent. Used by one thread at a time.
class GrammarMatcher {
public:
    explicit GrammarMatcher(std::shared_ptr<const GrammarTokens> tokens);

    // Sets the bits of the tokens that may follow and clears all others; token i is bit i % 32 of word i / 32. End
    // tokens are never set. [(vocab + 31) / 32 or more]
    void mask(std::span<uint32_t> allowed) const;
    // False, and nothing changes, where the token may not follow.
    bool accept(int32_t token);
    bool accept_bytes(std::string_view bytes);
    bool may_end() const { return stacks_.may_end(); }
    // Complete, and nothing can follow.
    bool finished() const { return stacks_.finished(); }
    // The bytes that must follow whatever is chosen; at most `most`.
    std::string forced(size_t most = 256) const;

private:
    std::shared_ptr<const GrammarTokens> tokens_;
    GrammarStacks stacks_;
};

}  // namespace nibble
