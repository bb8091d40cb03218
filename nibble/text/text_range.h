// Bytes [begin, end) of a text.
#pragma once

#include <cstddef>
#include <vector>

namespace nibble {

struct TextRange {
    size_t begin = 0, end = 0;
    bool operator==(const TextRange&) const = default;
};
// In order, not empty, not adjacent.
using TextRanges = std::vector<TextRange>;

}  // namespace nibble
