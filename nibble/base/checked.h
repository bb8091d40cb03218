// Integer arithmetic on sizes from files: overflow gives an empty optional instead of wrapping around.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

namespace nibble {

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
    T r;
    if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
    return r;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
    T r;
    if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
    return r;
}

// Returns the product of the dimensions; 1 for a scalar. Returns nothing if a dimension is negative or the product
// exceeds int64.
constexpr std::optional<int64_t> checked_elements(std::span<const int64_t> shape) {
    int64_t n = 1;
    for (int64_t d : shape) {
        if (d < 0) return std::nullopt;
        auto next = checked_mul(n, d);
        if (!next) return std::nullopt;
        n = *next;
    }
    return n;
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

template <std::integral T>
constexpr T round_up(T a, T multiple) {
    return ceil_div(a, multiple) * multiple;
}

}  // namespace nibble
