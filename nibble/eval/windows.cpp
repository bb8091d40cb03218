#include "eval/windows.h"

#include <algorithm>

namespace nibble {

Result<std::vector<Window>> chunked_windows(int64_t tokens, int64_t context, bool bos) {
    if (context < 4) return fail("a context of {} tokens is too short to measure perplexity; 4 is the least", context);
    if (tokens < 2 * context)
        return fail("the text has {} tokens; perplexity with a context of {} needs at least {}", tokens, context,
                    2 * context);
    std::vector<Window> windows;
    for (int64_t begin = 0; begin + context <= tokens; begin += context)
        windows.push_back({begin, begin + context, begin + context / 2 + 1, bos});
    return windows;
}

Result<std::vector<Window>> sliding_windows(int64_t tokens, int64_t context, int64_t stride) {
    if (context < 2) return fail("a context of {} tokens is too short to measure perplexity; 2 is the least", context);
    if (stride < 1 || stride >= context) return fail("a stride of {} is not in [1, {})", stride, context);
    if (tokens < 2) return fail("the text has {} tokens; perplexity needs at least 2", tokens);
    std::vector<Window> windows;
    int64_t counted = 1;
    for (int64_t begin = 0; counted < tokens; begin += stride) {
        const int64_t end = std::min(begin + context, tokens);
        windows.push_back({begin, end, counted, false});
        counted = end;
    }
    return windows;
}

std::vector<int32_t> tokens_of(const Window& w, std::span<const int32_t> text, int32_t bos) {
    const auto part = text.subspan(static_cast<size_t>(w.begin), static_cast<size_t>(w.end - w.begin));
    std::vector<int32_t> tokens(part.begin(), part.end());
    if (w.replace_first) tokens[0] = bos;
    return tokens;
}

}  // namespace nibble
