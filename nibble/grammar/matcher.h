// Combines a grammar with a vocabulary and finds the tokens that may follow the answer so far.
//
// The mask of an automaton state is computed on first use and cached. It holds the tokens that the state's rule decides
// alone, and the remainders of tokens that extend beyond the end of the rule. Only these remainders are checked against
// the stack. Plain tokens (without quote, backslash and control characters) are allowed by their number of characters,
// not one by one.
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

// A grammar, a vocabulary and the cached masks. Shared by all requests with the same grammar; thread-safe.
class GrammarTokens {
public:
    // `mask_bytes` limits the memory of cached masks. Beyond it the cache is cleared.
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

// The state of one answer. Copies are independent and cheap (they copy the stacks). Used by one thread at a time.
class GrammarMatcher {
public:
    explicit GrammarMatcher(std::shared_ptr<const GrammarTokens> tokens);

    // Sets the bits of allowed tokens and clears all others; token i is bit i % 32 of word i / 32. End tokens are never
    // set. `allowed` has at least (vocab + 31) / 32 words.
    void mask(std::span<uint32_t> allowed) const;
    // Appends a token or bytes. Returns false without a change if the grammar does not allow them.
    bool accept(int32_t token);
    bool accept_bytes(std::string_view bytes);
    bool may_end() const { return stacks_.may_end(); }
    // Returns true if the answer is complete and nothing can follow.
    bool finished() const { return stacks_.finished(); }
    // Returns the bytes that must follow in any case, at most `most`.
    std::string forced(size_t most = 256) const;

private:
    std::shared_ptr<const GrammarTokens> tokens_;
    GrammarStacks stacks_;
};

}  // namespace nibble
