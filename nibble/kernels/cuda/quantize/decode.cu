// Decodes codes to numbers, and converts block scales to the 128 x 4 layout.
#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int threads = 256;

// Returns the factor of the codes of a chunk, which lies in one row and one block.
__device__ float chunk_scale(const DecodeArgs& a, int64_t index, int64_t row, int64_t col) {
    const float tensor = a.tensor_scale ? *a.tensor_scale : 1.0f;
    if (a.per_row) return a.float_scales[row];
    if (a.per_tile) return a.float_scales[row / fp8_tile * ((a.cols + fp8_tile - 1) / fp8_tile) + col / fp8_tile];
    if (a.block == 0) return tensor;
    const uint8_t scale = a.block_scales[index / (a.block / chunk)];
    return a.e8m0 ? e8m0_to_float(scale) : e4m3_value(scale) * tensor;
}

// E2M1 is FP32 with another bias: shifted to the top of the mantissa, its value is too small by 2^126.
__device__ float e2m1_value(uint32_t nibble) {
    return __uint_as_float((nibble & 8u) << 28 | (nibble & 7u) << 22) * 0x1p126f;
}

template <bool F32Out>
__device__ void store16(void* out, int64_t index, const float (&y)[16]) {
    if constexpr (F32Out) {
        float4* p = reinterpret_cast<float4*>(out) + index * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) __stcs(p + i, make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]));
    } else {
        uint32_t w[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(y[2 * i], y[2 * i + 1]);
            w[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        uint4* p = reinterpret_cast<uint4*>(out) + index * 2;
        __stcs(p, make_uint4(w[0], w[1], w[2], w[3]));
        __stcs(p + 1, make_uint4(w[4], w[5], w[6], w[7]));
    }
}

template <int Bits, bool F32Out>
__global__ void __launch_bounds__(threads) dequantize_kernel(const DecodeArgs a, void* __restrict__ out) {
    const int64_t index = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (index >= a.rows * a.cols / chunk) return;
    const int64_t across = a.cols / chunk;
    int64_t row = 0, col = 0;
    if (a.per_row || a.per_tile) row = index / across, col = index % across * chunk;
    const float scale = chunk_scale(a, index, row, col);
    float y[16];
    if constexpr (Bits == 4) {
        const uint2 c = __ldcs(reinterpret_cast<const uint2*>(a.codes) + index);
#pragma unroll
        for (int i = 0; i < 16; ++i) y[i] = e2m1_value((i < 8 ? c.x : c.y) >> (4 * (i % 8))) * scale;
    } else {
        const uint4 c = __ldcs(reinterpret_cast<const uint4*>(a.codes) + index);
        const uint32_t word[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
        for (int i = 0; i < 16; ++i) y[i] = e4m3_value(static_cast<uint8_t>(word[i / 4] >> (8 * (i % 4)))) * scale;
    }
    store16<F32Out>(out, index, y);
}

// FP8 of any width, element by element.
__global__ void __launch_bounds__(threads) dequantize_fp8_elements_kernel(const DecodeArgs a, bool f32, void* out) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= a.rows * a.cols) return;
    const int64_t row = i / a.cols;
    const float y = e4m3_to_float(a.codes[i]) * chunk_scale(a, 0, row, i - row * a.cols);
    if (f32)
        static_cast<float*>(out)[i] = y;
    else
        static_cast<uint16_t*>(out)[i] = bf16_from_float(y);
}

// One thread per four output bytes: a row of a tile.
__global__ void __launch_bounds__(threads)
    swizzle_scales_kernel(const uint8_t* __restrict__ scales, int64_t rows, int64_t cols, uint32_t* __restrict__ out) {
    const int64_t word = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (word >= swizzled_scale_bytes(rows, cols) / 4) return;
    const int64_t tile = word / 128, across = (cols + 3) / 4;
    const int in_tile = static_cast<int>(word % 128);
    const int64_t row = tile / across * 128 + in_tile % 4 * 32 + in_tile / 4, col = tile % across * 4;
    uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (row < rows && col + i < cols) four |= uint32_t{scales[row * cols + col + i]} << (8 * i);
    out[word] = four;
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + threads - 1) / threads); }

}  // namespace

cudaError_t launch_decode(const DecodeArgs& a, bool f32_out, void* out, cudaStream_t stream) {
    const int64_t n = a.rows * a.cols;
    if (n == 0) return cudaSuccess;
    const bool whole = a.cols % chunk == 0 || (a.block == 0 && !a.per_row && !a.per_tile && n % chunk == 0);
    if (!whole)
        dequantize_fp8_elements_kernel<<<blocks_for(n), threads, 0, stream>>>(a, f32_out, out);
    else if (a.code_bits == 4 && f32_out)
        dequantize_kernel<4, true><<<blocks_for(n / chunk), threads, 0, stream>>>(a, out);
    else if (a.code_bits == 4)
        dequantize_kernel<4, false><<<blocks_for(n / chunk), threads, 0, stream>>>(a, out);
    else if (f32_out)
        dequantize_kernel<8, true><<<blocks_for(n / chunk), threads, 0, stream>>>(a, out);
    else
        dequantize_kernel<8, false><<<blocks_for(n / chunk), threads, 0, stream>>>(a, out);
    return cudaGetLastError();
}

cudaError_t launch_swizzle(const uint8_t* scales, int64_t rows, int64_t cols, uint8_t* out, cudaStream_t stream) {
    const int64_t words = swizzled_scale_bytes(rows, cols) / 4;
    if (words == 0) return cudaSuccess;
    swizzle_scales_kernel<<<blocks_for(words), threads, 0, stream>>>(scales, rows, cols,
                                                                     reinterpret_cast<uint32_t*>(out));
    return cudaGetLastError();
}

}  // namespace nibble::cuda
