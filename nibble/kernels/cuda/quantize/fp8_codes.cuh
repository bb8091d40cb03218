// Sixteen E4M3 codes with one divisor.
#pragma once

#include "formats/fp8.h"
#include "kernels/cuda/primitives/block16.cuh"

#include <cuda_fp16.h>

namespace nibble::cuda {

// Rounds two quotients to the dtype of the weights.
template <class In>
__device__ float2 rounded_quotients(float a, float b, DType weights) {
    if (!is_f32<In> || weights == DType::bf16) return __bfloat1622float2(__floats2bfloat162_rn(a, b));
    return weights == DType::f16 ? __half22float2(__floats2half2_rn(a, b)) : float2{a, b};
}

// Encodes with the functions of formats/. PerTensor: rounds the quotient to the dtype of the weights first.
template <class In, bool PerTensor>
__device__ __noinline__ uint4 exact_fp8_codes(const uint8_t* at, float divisor, DType weights) {
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        word[k] = 0;
#pragma unroll 1
        for (int i = 3; i >= 0; --i) {
            const float x = code_source<In>(at, 4 * k + i, weights != DType::bf16);
            word[k] = word[k] << 8 | (PerTensor ? fp8_tensor_code(x, divisor, weights) : fp8_code(x, divisor));
        }
    }
    return {word[0], word[1], word[2], word[3]};
}

// `w` is rounded; `amax` is the largest magnitude before rounding. Divisors outside the range of the shared reciprocal,
// and quotients far beyond 448, use the plain path.
template <class In, bool PerTensor>
__device__ uint4 fp8_codes(const Chunk<In>& w, const uint8_t* at, float amax, const Divisor& by, DType weights) {
    if (!safe_divisor(by.d) || !(amax <= 456.0f * by.d))
        return exact_fp8_codes<In, PerTensor>(at, by.d, is_f32<In> ? weights : DType::bf16);
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float q[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = w.value(4 * k + i);
            q[i] = copysignf(by.quotient(fabsf(x)), x);
        }
        if constexpr (PerTensor) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float2 r = rounded_quotients<In>(q[i], q[i + 1], weights);
                q[i] = r.x, q[i + 1] = r.y;
            }
        }
        word[k] = e4m3_pack4(q[0], q[1], q[2], q[3]);
    }
    return {word[0], word[1], word[2], word[3]};
}

}  // namespace nibble::cuda
