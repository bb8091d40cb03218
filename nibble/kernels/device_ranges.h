// Results of observers in device memory: plain data shared by kernels and host.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Sums of one observed position of a model; zero at the start.
struct RangeSums {
    float largest;  // largest |x|; NaN once a NaN was seen
    uint32_t reserved;
    uint64_t rows;
};
inline constexpr int64_t range_buckets = int64_t{1} << 15;  // BF16 codes without their sign
inline constexpr int64_t local_moment_chunk = 512;

}  // namespace nibble::cuda
