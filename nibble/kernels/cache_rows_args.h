// What the functions of kernels/cache_rows_cuda.h are given: plain values, for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

struct CacheSide {                 // K, V or Q
    const std::byte* x = nullptr;  // [tokens, width]
    int64_t width = 0;
    const float* scale = nullptr;  // one: value = code * scale
};
inline constexpr int most_cache_sides = 3;

// out = bf16(code * scale), the code being what append_kv() stores. The first `count` sides.
struct RoundCache {
    int64_t tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    std::byte* out[most_cache_sides] = {};
};

// Gradients d, whose rows lie `stride` elements apart, become 0 where |x| is above 448 times the scale.
struct ClearClipped {
    int64_t tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    std::byte* d[most_cache_sides] = {};
    int64_t stride = 0;
};

// Of rows of row_tokens tokens: maxima[row * apart + side] becomes the larger of itself and the largest |x| of the row;
// NaNs count as nothing. clipped[0] += the elements of K and V, which are the first two sides, above 448 times their
// scale (null: none), clipped[1] those of Q, the third.
struct SeeCache {
    int64_t rows = 0, row_tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    float* maxima = nullptr;
    int64_t apart = 0;
    uint64_t* clipped = nullptr;
};

}  // namespace nibble::cuda
