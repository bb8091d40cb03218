// What the functions of kernels/cast_cuda.h are given: plain values, for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Scales of fp8 that follow from the steps before, as DelayedScale (train/train_products.h) has them: where there is a
// number that was seen, it becomes the newest of the history, the scale follows from the largest of that, and 0 was
// seen. What counts is the largest number that any process saw.
struct DelayedScales {
    bool stored = false;  // DelayedScale::stored
    bool hold = false;    // what was seen goes to `held`, and nothing else changes
    int64_t count = 0, history = 0;
    float* scales = nullptr;        // [count]
    float* seen = nullptr;          // [count]
    float* held = nullptr;          // [count], of updates before that were held
    float* histories = nullptr;     // [count, history]
    float largest = 448;            // of the format
    const float* others = nullptr;  // [sets, apart]: what other processes saw; the first `count` of each
    int64_t sets = 0, apart = 0;
};

// Scales of codes in blocks of 128: of row o (or tile o of 128 rows) and group g along the reduction at
// [o * outer + g * group].
struct CodeScales {
    float* at = nullptr;
    int64_t outer = 0, group = 0;
};

// What multiplies the sums of a product, written with an operand's values: product_scales() of the operand's scale by
// another one's.
struct CastFactor {
    const float* other = nullptr;  // null: not wanted
    float constant = 1;
    float* out = nullptr;  // [count]
    int64_t count = 0;     // 1, or the rows
};

// a [n, pitch] BF16 = x P, zeros behind the rank; rest [n, cols] BF16 = x - a P^T, where it is wanted. Sums ascend in
// FP32: the bits of InputDirections::split() (train/train_rank.h).
inline constexpr int most_directions = 128;
struct SplitRows {
    const std::byte* x = nullptr;  // [n, cols] BF16
    int64_t n = 0, cols = 0;
    const float* p = nullptr;     // [cols, rank], BF16 numbers
    int64_t rank = 0, pitch = 0;  // pitch: rank, up to a multiple of 8
    std::byte* a = nullptr;
    std::byte* rest = nullptr;
};

}  // namespace nibble::cuda
