// Prompt lookup: drafts the next tokens from an earlier place of the same text where its last few tokens occurred
// (Saxena 2023, "Prompt Lookup Decoding"). The model verifies drafts, so they never change its tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble {

class PromptLookup {
public:
    // `most`: most draft tokens; the current limit grows after accepted drafts and shrinks after rejected ones.
    // `expected`: text that the answer may largely repeat, treated as if the prompt had been answered with it before.
    explicit PromptLookup(int64_t most, std::span<const int32_t> prompt = {}, std::span<const int32_t> expected = {});

    // Returns up to `limit` tokens that may follow `text`, a continuation found earlier in the text or in the expected
    // text; often none. `text` must begin with the prompt and extend the text of the last call.
    std::vector<int32_t> draft(std::span<const int32_t> text, int64_t limit);
    // Reports how many of the drafted tokens were accepted. Ignored if the last draft of this object was empty, because
    // the draft then came from another source.
    void learn(int64_t drafted, int64_t right);

private:
    static constexpr size_t shortest = 2, longest = 4;  // lengths of the token sequences that are looked up

    int64_t most_, ahead_;
    bool drafted_ = false;        // true if the last draft had tokens
    std::vector<int32_t> known_;  // the prompt, its last tokens followed by the expected text, then the rest of the
                                  // text
    size_t text_ = 0;             // number of the text's tokens in known_
    size_t seen_ = 0;             // number of known_'s tokens that are indexed in places_
    // index of the last token + 1
    std::array<std::unordered_map<uint64_t, size_t>, longest - shortest + 1> places_;
};

}  // namespace nibble
