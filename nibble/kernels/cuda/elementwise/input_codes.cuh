// Rows of BF16 on their way out as E4M3 codes: the bits of quantize_inputs(), without a pass of its own.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"

#include <cuda_runtime.h>

namespace nibble::cuda {

// Eight values, pairs of BF16 in a word. NaN is dropped as std::max(amax, NaN) drops it.
__device__ inline float amax_of(const uint32_t (&pairs)[4]) {
    float m = 0.0f;
#pragma unroll
    for (const uint32_t pair : pairs) {
        const float low = magnitude(__uint_as_float(pair << 16)), high = magnitude(__uint_as_float(pair & 0xFFFF0000u));
        m = low > m ? low : m;
        m = high > m ? high : m;
    }
    return m;
}
// Raises *amax to m >= 0, of which most callers have one that is not larger.
__device__ inline void raise_amax(float* amax, float m) {
    if (m > __ldcg(amax)) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(m));  // ordered as their bits
}
// Of the 16 threads that have the same 128 columns: aligned halves of a warp, all or none of a half here.
__device__ inline float amax_of_group(const uint32_t (&pairs)[4]) {
    const uint32_t half = 0xFFFFu << (threadIdx.x & 16);
    float m = amax_of(pairs);
#pragma unroll
    for (int step = 1; step < 16; step *= 2) m = fmaxf(m, __shfl_xor_sync(half, m, step));
    return m;
}
__device__ inline float code_scale(float amax) { return fp8_scale(amax, Arithmetic::true_division); }

__device__ inline uint2 codes_of(const uint32_t (&pairs)[4], float scale) {
    uint32_t word[2] = {};
#pragma unroll
    for (int p = 0; p < 4; ++p)
        word[p / 2] |= (uint32_t{fp8_code(__uint_as_float(pairs[p] << 16), scale)} |
                        uint32_t{fp8_code(__uint_as_float(pairs[p] & 0xFFFF0000u), scale)} << 8)
                       << (16 * (p % 2));
    return {word[0], word[1]};
}

// Columns 8 i to 8 i + 7 of a row: fp8_group128 makes its scale here, the others come with theirs.
__device__ inline void store_codes(const RowCodes& codes, uint8_t* out, int64_t token, int width, int i,
                                   const uint32_t (&pairs)[4], float scale) {
    if (codes.format == static_cast<int>(ActivationFormat::fp8_group128)) {
        scale = code_scale(amax_of_group(pairs));
        if (i % 16 == 0) codes.scales[token * (width / 128) + i / 16] = scale;
    }
    *reinterpret_cast<uint2*>(out + token * width + 8 * i) = codes_of(pairs, scale);
}

}  // namespace nibble::cuda
