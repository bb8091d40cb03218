#pragma once

#include <algorithm>
#include <vector>

namespace nibble {

// Returns the median, the upper one of two. `values` must not be empty.
inline double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace nibble
