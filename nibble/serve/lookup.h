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
    // `expected`: what the text may largely say behind `prompt`, as if the prompt had been answered so before.
    explicit PromptLookup(int64_t most, std::span<const int32_t> prompt = {}, std::span<const int32_t> expected = {});

    // What may follow `text`: a continuation of what is earlier in it, or expected, up to `limit` tokens; often
    // nothing. `text` begins with the prompt and has only grown since the last call.
    std::vector<int32_t> guess(std::span<const int32_t> text, int64_t limit);
    // How much of a guess was right. It is another's guess where the last one here was nothing: nothing is learned.
    void learn(int64_t guessed, int64_t right);

private:
    static constexpr size_t shortest = 2, longest = 4;  // tokens that a place is found by

    int64_t most_, ahead_;
    bool guessed_ = false;        // whether the last guess was one
    std::vector<int32_t> known_;  // the prompt, its last tokens and what is expected, then the rest of the text
    size_t text_ = 0;             // tokens of the text in known_
    size_t seen_ = 0;             // tokens of known_ in places_
    std::array<std::unordered_map<uint64_t, size_t>, longest - shortest + 1> places_;  // last token's place + 1
};

}  // namespace nibble
