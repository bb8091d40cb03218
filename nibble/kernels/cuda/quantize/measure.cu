// Measures the error of a quantized panel. A row's sums are doubles over sixteen lanes, element j in lane j % 16: half
// a warp processes a row, and every lane processes its elements in order, which gives the bits of kernels/quantize.h.
// The host adds rows. The chain of additions limits the speed (a row of 8192: about 20 us); panels of other streams
// fill the GPU meanwhile.
#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"
#include "kernels/device_stats.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int lanes = 16, threads = 32, batch = 8;
constexpr int64_t most_blocks = 1024;
constexpr unsigned everyone = 0xFFFFFFFFu;

template <class In>
__device__ float load_element(const uint8_t* data, int64_t index) {
    if constexpr (sizeof(Chunk<In>) == 32)
        return bf16_to_float(__ldg(reinterpret_cast<const uint16_t*>(data) + index));
    else
        return __ldg(reinterpret_cast<const float*>(data) + index);
}

// E2M1 is FP32 with another bias: shifted to the top of the mantissa, its value is too small by 2^126.
__device__ float e2m1_value(uint32_t nibble) {
    return __uint_as_float((nibble & 8u) << 28 | (nibble & 7u) << 22) * 0x1p126f;
}

__device__ double tree16(double x) {
#pragma unroll
    for (int half = 8; half > 0; half /= 2) x += __shfl_xor_sync(everyone, x, half);
    return x;
}

__device__ double squared(float x) { return double{x} * double{x}; }

template <int Bits>
struct Tally {
    // There are few 4-bit codes and lanes would contend for counters, so each lane has its own.
    static constexpr int codes = 1 << Bits, copies = Bits == 4 ? threads : 1;
    uint32_t code[codes * copies], scale[256];
};

// Measures element (row, j): `byte` contains its code, `scale_byte` is its block's scale.
template <int Bits>
__device__ float decoded(const MeasureArgs& a, int64_t row, int64_t j, uint32_t code, uint8_t scale_byte,
                         float& scale) {
    if (a.block)
        scale = a.e8m0 ? e8m0_to_float(scale_byte) : e4m3_value(scale_byte) * a.tensor_scale;
    else if (a.per_tile)
        scale = __ldg(a.float_scales + row / fp8_tile * ((a.cols + fp8_tile - 1) / fp8_tile) + j / fp8_tile);
    else
        scale = a.per_row ? __ldg(a.float_scales + row) : a.tensor_scale;
    return (Bits == 4 ? e2m1_value(code) : e4m3_value(static_cast<uint8_t>(code))) * scale;
}

template <class In, int Bits>
__global__ void __launch_bounds__(threads)
    quantize_measure_kernel(const uint8_t* __restrict__ data, const MeasureArgs a, DeviceStats* stats,
                            RowSums* rows_out) {
    __shared__ Tally<Bits> tally;
    const int lane = static_cast<int>(threadIdx.x), first = lane % lanes;
    for (int i = lane; i < Tally<Bits>::codes * Tally<Bits>::copies; i += threads) tally.code[i] = 0;
    for (int i = lane; i < 256; i += threads) tally.scale[i] = 0;
    __syncwarp();

    const int shift = 31 - __clz(a.block);  // blocks are 16 or 32
    uint32_t max_error = 0, zeros = 0, saturated = 0, flips = 0;
    for (int64_t pair = blockIdx.x; 2 * pair < a.rows; pair += gridDim.x) {
        const int64_t row = 2 * pair + lane / lanes, base = row * a.cols;
        const int64_t cols = row < a.rows ? a.cols : 0;
        RowSums sums{0, 0};
        for (int64_t start = first; start < cols; start += lanes * batch) {
            float w[batch];
            uint32_t code[batch];
            uint8_t scale_byte[batch];
#pragma unroll
            for (int k = 0; k < batch; ++k) {
                const int64_t j = start + k * lanes;
                w[k] = 0, code[k] = 0, scale_byte[k] = 0;
                if (j >= cols) continue;
                w[k] = load_element<In>(data, base + j);
                code[k] = Bits == 4 ? __ldg(a.codes + (base + j) / 2) >> (j % 2 * 4) & 15u : __ldg(a.codes + base + j);
                if (a.block) scale_byte[k] = __ldg(a.block_scales + ((base + j) >> shift));
            }
#pragma unroll
            for (int k = 0; k < batch; ++k) {
                const int64_t j = start + k * lanes;
                if (j >= cols) continue;
                float scale;
                const float y = decoded<Bits>(a, row, j, code[k], scale_byte[k], scale), error = fabsf(w[k] - y);
                sums.error += squared(error);
                sums.weight += squared(w[k]);
                max_error = max(max_error, __float_as_uint(error) & 0x7FFFFFFFu);
                zeros += w[k] != 0.0f && y == 0.0f;
                saturated += fabsf(w[k]) > (Bits == 4 ? e2m1_max : e4m3_max) * scale;
                flips += (w[k] < 0.0f && y > 0.0f) || (w[k] > 0.0f && y < 0.0f);
                atomicAdd(&tally.code[code[k] * Tally<Bits>::copies + lane % Tally<Bits>::copies], 1u);
                if (a.block && (j & (a.block - 1)) == 0) atomicAdd(&tally.scale[scale_byte[k]], 1u);
            }
        }
        sums.error = tree16(sums.error);
        sums.weight = tree16(sums.weight);
        if (first == 0 && row < a.rows) rows_out[row] = sums;
    }

    __syncwarp();
    for (int i = lane; i < Tally<Bits>::codes; i += threads) {
        uint32_t n = 0;
        for (int k = 0; k < Tally<Bits>::copies; ++k)
            n += tally.code[i * Tally<Bits>::copies + (k + lane) % Tally<Bits>::copies];
        if (n) atomicAdd(&stats->codes[i], n);
    }
    if (a.block)
        for (int i = lane; i < 256; i += threads)
            if (tally.scale[i]) atomicAdd(&stats->scales[i], tally.scale[i]);
    max_error = __reduce_max_sync(everyone, max_error);
    zeros = __reduce_add_sync(everyone, zeros);
    saturated = __reduce_add_sync(everyone, saturated);
    flips = __reduce_add_sync(everyone, flips);
    if (lane == 0) {
        atomicMax(&stats->max_error_bits, max_error);
        if (zeros) atomicAdd(&stats->zeros, zeros);
        if (saturated) atomicAdd(&stats->saturated, saturated);
        if (flips) atomicAdd(&stats->sign_flips, flips);
    }
}

}  // namespace

cudaError_t launch_measure(const Input& in, const MeasureArgs& a, DeviceStats* stats, RowSums* rows,
                           cudaStream_t stream) {
    if (in.elements() == 0) return cudaSuccess;
    const auto blocks = static_cast<unsigned>(std::min((in.rows + 1) / 2, most_blocks));
    const auto launch = [&](auto kernel) { kernel<<<blocks, threads, 0, stream>>>(in.data, a, stats, rows); };
    if (in.f32)
        a.code_bits == 4 ? launch(quantize_measure_kernel<F32, 4>) : launch(quantize_measure_kernel<F32, 8>);
    else
        a.code_bits == 4 ? launch(quantize_measure_kernel<Bf16, 4>) : launch(quantize_measure_kernel<Bf16, 8>);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
