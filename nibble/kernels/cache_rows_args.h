// Arguments of the functions in kernels/cache_rows_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

struct CacheSide {                 // K, V or Q
    const std::byte* x = nullptr;  // [tokens, width]
    int64_t width = 0;
    const float* scale = nullptr;  // one float: value = code * scale
};
inline constexpr int most_cache_sides = 3;

// out = bf16(code * scale) with the code that append_kv() stores, for the first `count` sides.
struct RoundCache {
    int64_t tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    std::byte* out[most_cache_sides] = {};
};

// Sets gradients d to 0 where |x| is above 448 times the scale. Rows of d are `stride` elements apart.
struct ClearClipped {
    int64_t tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    std::byte* d[most_cache_sides] = {};
    int64_t stride = 0;
};

// Updates statistics per row of row_tokens tokens. maxima[row * apart + side] becomes its maximum with the largest |x|
// of the row; NaNs are ignored. clipped[0] += number of elements of K and V (the first two sides) above 448 times their
// scale (null: no counts); clipped[1] += those of Q, the third side.
struct SeeCache {
    int64_t rows = 0, row_tokens = 0;
    int count = 0;
    CacheSide sides[most_cache_sides];
    float* maxima = nullptr;
    int64_t apart = 0;
    uint64_t* clipped = nullptr;
};

}  // namespace nibble::cuda
