// Random walks over the masks of a grammar, and a slow computation of the masks for comparison.
#pragma once

#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace nibble::test {

// Random numbers of a test, equal on all machines.
class Dice {
public:
    explicit Dice(uint64_t seed) : engine_(seed) {}
    uint32_t below(uint32_t n) { return uint32_t(engine_() % n); }

private:
    std::mt19937_64 engine_;
};

inline bool bit_of(const std::vector<uint32_t>& mask, size_t token) { return mask[token / 32] >> (token % 32) & 1; }

// Computes the mask by trying every token.
inline std::vector<uint32_t> slow_mask(const GrammarMatcher& matcher, const GrammarVocabulary& vocabulary) {
    std::vector<uint32_t> out(vocabulary.words(), 0);
    for (uint32_t t = 0; t < vocabulary.size(); ++t) {
        GrammarMatcher copy = matcher;
        if (copy.accept(int32_t(t))) out[t / 32] |= 1u << (t % 32);
    }
    return out;
}

// All 256 bytes, and typical tokens of text: words with and without a space, joined JSON punctuation, parts of
// characters.
std::shared_ptr<const GrammarVocabulary> small_vocabulary();

struct Walk {
    std::string text;
    bool complete = false;  // ended at a position where the answer may end
    size_t tokens = 0;
};
// Chooses tokens from the masks until the end. `shorten` > 0: ends at the first allowed position with a chance of 1 in
// `shorten`. `check`: compares every mask with the slow one. Fails the test if a mask is empty and the text is
// incomplete.
Walk random_walk(const std::shared_ptr<const GrammarTokens>& tokens, Dice& dice, size_t most, uint32_t shorten,
                 bool check);

}  // namespace nibble::test
