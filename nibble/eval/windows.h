// Splits a long text into windows for a model and decides which tokens of each window are scored.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble {

// tokens[begin, end) are the model's input. Every token from `counted` on (counted > begin) is scored by the row before
// it. replace_first: the token at `begin` is replaced by BOS.
struct Window {
    int64_t begin = 0, end = 0, counted = 0;
    bool replace_first = false;
    bool operator==(const Window&) const = default;
};

// llama-perplexity's definition: adjacent windows of `context` tokens; an incomplete last one is dropped. In each,
// tokens from context/2 + 1 on are scored, so each has at least half a context before it. With `bos` the first token of
// a window is replaced by BOS. Error: the text has fewer than two windows.
Result<std::vector<Window>> chunked_windows(int64_t tokens, int64_t context, bool bos);

// The sliding window (transformers' "perplexity of fixed-length models"): windows of `context` tokens that move by
// `stride`. Each token is scored once, in the first window that contains it; the text's first token never is. Errors: a
// text of fewer than two tokens, stride outside [1, context).
Result<std::vector<Window>> sliding_windows(int64_t tokens, int64_t context, int64_t stride);

// Returns the model's input for a window.
std::vector<int32_t> tokens_of(const Window& window, std::span<const int32_t> text, int32_t bos);

}  // namespace nibble
