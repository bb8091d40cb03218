// What the functions of kernels/cache_rows_cuda.h are given: plain values, for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

struct CacheSide {                 // K or V
    const std::byte* x = nullptr;  // [tokens, width]
    int64_t width = 0;
    const float* scale = nullptr;  // one: value = code * scale
};

// k_out, v_out = bf16(code * scale), the code being what append_kv() stores.
struct RoundCache {
    int64_t tokens = 0;
    CacheSide k, v;
    std::byte* k_out = nullptr;
    std::byte* v_out = nullptr;
};

// Gradients dk and dv, whose rows lie `stride` elements apart, become 0 where |x| is above 448 times the scale.
struct ClearClipped {
    int64_t tokens = 0;
    CacheSide k, v;
    std::byte* dk = nullptr;
    std::byte* dv = nullptr;
    int64_t stride = 0;
};

// Of rows of row_tokens tokens: maxima[row * apart] becomes the larger of itself and the largest |k| of the row, the
// number behind it that of v; NaNs count as nothing. *clipped += the elements above 448 times their scale (null: none).
struct SeeCache {
    int64_t rows = 0, row_tokens = 0;
    CacheSide k, v;
    float* maxima = nullptr;
    int64_t apart = 0;
    uint64_t* clipped = nullptr;
};

}  // namespace nibble::cuda
