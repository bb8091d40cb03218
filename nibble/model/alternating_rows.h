// Matrices whose rows alternate between two halves, as stacks of experts in files of GPT-OSS store them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace nibble {

// Returns the even rows of a row-major matrix, then the odd ones.
template <class T>
std::vector<T> separated(const T* from, int64_t rows, int64_t cols) {
    std::vector<T> to(static_cast<size_t>(rows * cols));
    const int64_t half = rows / 2;
    for (int64_t r = 0; r < rows; ++r)
        std::copy_n(from + (r < half ? 2 * r : 2 * (r - half) + 1) * cols, cols, to.data() + r * cols);
    return to;
}

}  // namespace nibble
