// What observers leave on the device: plain data that kernels and hosts share.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Of one place of a model; zero at the start.
struct RangeSums {
    float largest;  // of |x|; NaN once a NaN came
    uint32_t reserved;
    uint64_t rows;
};
inline constexpr int64_t range_buckets = int64_t{1} << 15;  // BF16 codes without their sign
inline constexpr int64_t local_moment_chunk = 512;

}  // namespace nibble::cuda
