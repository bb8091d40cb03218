// Writes rows of BF16 as E4M3 codes with the bits of quantize_inputs(), without a separate pass.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"

#include <cuda_runtime.h>

namespace nibble::cuda {

// Returns the largest magnitude of eight values, pairs of BF16 in a word. NaN is ignored, as by std::max(amax, NaN).
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
// Raises *amax to m >= 0. Most callers find a value that is already as large.
__device__ inline void raise_amax(float* amax, float m) {
    if (m > __ldcg(amax)) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(m));  // ordered as their bits
}
// Returns the maximum over the 16 threads with the same 128 columns: aligned halves of a warp, with all or no threads
// of a half active.
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

// Writes columns 8 i to 8 i + 7 of a row. fp8_group128 computes its scale here; the other formats pass their scale.
__device__ inline void store_codes(const RowCodes& codes, uint8_t* out, int64_t token, int width, int i,
                                   const uint32_t (&pairs)[4], float scale) {
    if (codes.format == static_cast<int>(ActivationFormat::fp8_group128)) {
        scale = code_scale(amax_of_group(pairs));
        if (i % 16 == 0) codes.scales[token * (width / 128) + i / 16] = scale;
    }
    *reinterpret_cast<uint2*>(out + token * width + 8 * i) = codes_of(pairs, scale);
}

}  // namespace nibble::cuda
