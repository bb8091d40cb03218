// Arguments of the functions in kernels/cast_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// FP8 scales from the maxima of earlier steps (DelayedScale in train/host_recipe.h). A maximum in `seen` becomes the
// newest entry of the history, the scale follows from the largest entry, and `seen` is set to 0. The maximum is taken
// over all processes.
struct DelayedScales {
    bool stored = false;  // DelayedScale::stored
    bool hold = false;    // stores the maxima in `held` and changes nothing else
    int64_t count = 0, history = 0;
    float* scales = nullptr;        // [count]
    float* seen = nullptr;          // [count]
    float* held = nullptr;          // [count]: maxima of earlier held updates
    float* histories = nullptr;     // [count, history]
    float largest = 448;            // largest value of the format
    const float* others = nullptr;  // [sets, apart]: maxima of other processes; the first `count` of each
    int64_t sets = 0, apart = 0;
};

// Scales of codes in blocks of 128: the scale of row o (or of tile o of 128 rows) and group g along the reduction is at
// [o * outer + g * group].
struct CodeScales {
    float* at = nullptr;
    int64_t outer = 0, group = 0;
};

// A cast can also write the factor by which the sums of a matrix product must be multiplied: this operand's scale times
// the other operand's (`other`) times `constant`, rounded as by product_scales().
struct CastFactor {
    const float* other = nullptr;  // null: no factor
    float constant = 1;
    float* out = nullptr;  // [count]
    int64_t count = 0;     // 1, or the number of rows
};

// a [n, pitch] BF16 = x P, with zeros after the rank; rest [n, cols] BF16 = x - a P^T, if not null. FP32 sums ascend:
// the bits of InputDirections::split() (train/input_directions.h).
inline constexpr int most_directions = 128;
struct SplitRows {
    const std::byte* x = nullptr;  // [n, cols] BF16
    int64_t n = 0, cols = 0;
    const float* p = nullptr;     // [cols, rank], values exact in BF16
    int64_t rank = 0, pitch = 0;  // pitch: rank rounded up to a multiple of 8
    std::byte* a = nullptr;
    std::byte* rest = nullptr;
};

}  // namespace nibble::cuda
