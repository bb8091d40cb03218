// How a long text is cut into what a model sees at once, and which tokens of each piece count.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble {

// tokens[begin, end) go through the model; every token from `counted` on (counted > begin) is scored by the row before
// it. replace_first: the token at `begin` is replaced (by BOS).
struct Window {
    int64_t begin = 0, end = 0, counted = 0;
    bool replace_first = false;
    bool operator==(const Window&) const = default;
};

// llama-perplexity's definition: pieces of `context` tokens side by side, the last one dropped unless full; of each the
// tokens from context/2 + 1 on count, so that every one has at least half a context before it. With `bos` the first
// token of a piece is replaced by BOS. Error: the text has less than two pieces.
Result<std::vector<Window>> chunked_windows(int64_t tokens, int64_t context, bool bos);

// The sliding window (transformers' "perplexity of fixed-length models"): windows of `context` tokens that move by
// `stride`; each token counts once, in the first window that holds it; the text's first token never does. Error: a text
// of less than two tokens, stride outside [1, context).
Result<std::vector<Window>> sliding_windows(int64_t tokens, int64_t context, int64_t stride);

// The tokens of a window as the model sees them.
std::vector<int32_t> tokens_of(const Window& window, std::span<const int32_t> text, int32_t bos);

}  // namespace nibble
