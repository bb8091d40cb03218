// Prompt lookup: guesses the tokens that follow from an earlier place of the same text where its last few tokens stood
// before (Saxena 2023, "Prompt Lookup Decoding"). A guess costs nothing when the model's own tokens are checked against
// it, and changes none of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

class PromptLookup {
public:
    // `most`: tokens of a guess at most; it grows while guesses are right and shrinks where they are wrong.
    explicit PromptLookup(int64_t most) : most_(most), ahead_(most < 4 ? most : 4) {}

    // What may follow `text`: a continuation of what is earlier in it, up to `limit` tokens; often nothing. `text` has
    // only grown since the last call.
    std::vector<int32_t> guess(std::span<const int32_t> text, int64_t limit);
    // How much of the last guess was right.
    void learn(int64_t guessed, int64_t right);

private:
    static constexpr size_t shortest = 2, longest = 4;  // tokens that a place is found by

    int64_t most_, ahead_;
    size_t seen_ = 0;                                                                  // tokens of the text in places_
    std::array<std::unordered_map<uint64_t, size_t>, longest - shortest + 1> places_;  // last token's place + 1
};

}  // namespace nibble
