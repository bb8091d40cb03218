// Weights and inputs as exact BF16 operands.
#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 256;
enum Kind { bf16 = 0, f16 = 1, f32 = 2, e4m3 = 3, e2m1 = 4 };

template <int K>
__device__ float value_at(const OperandArgs& a, int64_t row, int64_t col) {
    const int64_t i = row * a.cols + col;
    if constexpr (K == bf16) return bf16_to_float(reinterpret_cast<const uint16_t*>(a.from)[i]);
    if constexpr (K == f16) return fp16_to_float(reinterpret_cast<const uint16_t*>(a.from)[i]);
    if constexpr (K == f32) return reinterpret_cast<const float*>(a.from)[i];
    float scale = 1.0f;
    if (a.block_scales) {
        const int64_t across = a.cols / a.block, block = col / a.block;
        const uint8_t s = a.block_scales[a.swizzled ? swizzled_scale_offset(row, block, across) : row * across + block];
        scale = a.e8m0 ? e8m0_to_float(s) : e4m3_to_float(s);
    }
    if constexpr (K == e4m3) return e4m3_to_float(a.from[i]) * scale;
    return e2m1_to_float(a.from[i / 2] >> (i % 2 * 4) & 15) * scale;
}

// Each thread converts eight columns.
template <int K>
__global__ void __launch_bounds__(threads) make_bf16_operand_kernel(const __grid_constant__ OperandArgs a) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x, chunks = a.cols / 8;
    if (i >= a.rows * chunks) return;
    const int64_t from = i / chunks, row = a.first_row + from, chunk = i % chunks;
    uint32_t word[4];
#pragma unroll
    for (int p = 0; p < 4; ++p)
        word[p] = bf16_from_float(value_at<K>(a, from, 8 * chunk + 2 * p)) |
                  uint32_t{bf16_from_float(value_at<K>(a, from, 8 * chunk + 2 * p + 1))} << 16;
    if (a.rows_out) {
        *reinterpret_cast<uint4*>(a.rows_out + row * a.cols + 8 * chunk) = {word[0], word[1], word[2], word[3]};
        return;
    }
    uint8_t* tile = a.tiles + (row / 64 * ((a.cols + 63) / 64) + chunk / 8) * operand_tile_bytes;
    *reinterpret_cast<uint4*>(tile + row % 64 * 128 + (chunk % 8 ^ row % 8) * 16) = {word[0], word[1], word[2],
                                                                                     word[3]};
}

// Each thread converts 16 columns; cols may end inside.
__global__ void __launch_bounds__(threads) make_fp8_operand_kernel(const __grid_constant__ OperandArgs a) {
    const int64_t chunks = (a.cols + 15) / 16, i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= a.rows * chunks) return;
    const int64_t from = i / chunks, chunk = i % chunks, row = a.first_row + from;
    uint2 word[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (16 * chunk + 8 * h < a.cols)
            word[h] = *reinterpret_cast<const uint2*>(a.from + from * a.cols + 16 * chunk + 8 * h);
    uint8_t* tile = a.tiles + (row / 8 * ((a.cols + 127) / 128) + chunk / 8) * fp8_tile_bytes;
    *reinterpret_cast<uint4*>(tile + row % 8 * 128 + (chunk % 8 ^ row % 8) * 16) = {word[0].x, word[0].y, word[1].x,
                                                                                    word[1].y};
}

// ---- Inputs: one thread block per token, eight elements per thread at a time ----------------------------------------

struct Eight {
    float x[8];
    bool present;

    __device__ Eight(const InputsArgs& a, int64_t token, int64_t chunk) : present(8 * chunk < a.cols) {
        if (!present) {
            for (float& v : x) v = 0.0f;
            return;
        }
        const uint4 w = *reinterpret_cast<const uint4*>(a.x + token * a.stride + 8 * chunk);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
    }
    // Returns the maximum over the `Lanes` threads that share a block. NaN is ignored, as by std::max(amax, NaN).
    template <int Lanes>
    __device__ float amax() const {
        float m = 0.0f;
        for (const float v : x) m = magnitude(v) > m ? magnitude(v) : m;
#pragma unroll
        for (int step = 1; step < Lanes; step *= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
        return m;
    }
    __device__ void store_codes(const InputsArgs& a, int64_t token, int64_t chunk, const uint8_t (&code)[8]) const {
        if (8 * chunk >= a.out_pitch) return;
        uint32_t word[2] = {};
        for (int i = 0; i < 8; ++i) word[i / 4] |= uint32_t{present ? code[i] : uint8_t{0}} << (8 * (i % 4));
        *reinterpret_cast<uint2*>(reinterpret_cast<uint8_t*>(a.out) + token * a.out_pitch + 8 * chunk) = {word[0],
                                                                                                          word[1]};
    }
    __device__ void store(const InputsArgs& a, int64_t token, int64_t chunk) const {
        if (!present) return;
        uint32_t word[4];
        for (int i = 0; i < 4; ++i) word[i] = bf16_from_float(x[2 * i]) | uint32_t{bf16_from_float(x[2 * i + 1])} << 16;
        *reinterpret_cast<uint4*>(a.out + token * a.stride + 8 * chunk) = {word[0], word[1], word[2], word[3]};
    }
};

__device__ float row_amax(const InputsArgs& a, int64_t token, int64_t chunks) {
    __shared__ float of_warp[threads / 32];
    float m = 0.0f;
    for (int64_t i = threadIdx.x; i < chunks; i += threads) m = fmaxf(m, Eight(a, token, i).amax<32>());
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
    for (const float v : of_warp) m = fmaxf(m, v);
    return m;
}

// Returns the expert whose rows contain `token`.
__device__ float input_scale_of(const InputsArgs& a, int64_t token) {
    if (a.experts == 0) return a.input_scale;
    int low = 0, high = a.experts - 1;  // the last expert that begins at or before the token
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (a.begin[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return a.expert_scales[low];
}

template <ActivationFormat F>
__global__ void __launch_bounds__(threads) quantize_inputs_kernel(const __grid_constant__ InputsArgs a) {
    if (a.overlap) {
        overlap_next();
        wait_for_previous();
    }
    const int64_t token = blockIdx.x, chunks = (a.cols / 8 + 31) / 32 * 32;  // rounded up to whole warps
    const float input_scale = input_scale_of(a, token);
    float row_scale = 1.0f;
    if constexpr (F == ActivationFormat::fp8_token) {
        row_scale = fp8_scale(row_amax(a, token, chunks), Arithmetic::true_division);
        if (threadIdx.x == 0) a.scales[token] = row_scale;
    }
    for (int64_t i = threadIdx.x; i < chunks; i += threads) {
        Eight e(a, token, i);
        if constexpr (F == ActivationFormat::fp8 || F == ActivationFormat::fp8_token ||
                      F == ActivationFormat::fp8_group128) {
            float scale = F == ActivationFormat::fp8_token ? row_scale : input_scale;
            if constexpr (F == ActivationFormat::fp8_group128) {
                scale = fp8_scale(e.amax<16>(), Arithmetic::true_division);
                if (e.present && i % 16 == 0) a.scales[token * ((a.cols + 127) / 128) + i / 16] = scale;
            }
            uint8_t code[8];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                code[j] =
                    F == ActivationFormat::fp8 ? e4m3_from_float_saturating(e.x[j] / scale) : fp8_code(e.x[j], scale);
            if (a.codes) {
                e.store_codes(a, token, i, code);
                continue;
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) e.x[j] = e4m3_to_float(code[j]);
        } else if constexpr (F == ActivationFormat::nvfp4) {
            const uint8_t scale = nvfp4_dynamic_scale(e.amax<2>(), input_scale);
            const float decode = nvfp4_decode_scale(scale, input_scale), value = e4m3_to_float(scale);
            for (float& v : e.x) v = e2m1_to_float(nvfp4_code(v, decode)) * value;
        } else {
            constexpr bool fp4 = F == ActivationFormat::mxfp4;
            const float amax = e.amax<4>();
            const uint8_t scale = fp4 ? mxfp4_input_scale(amax) : mxfp8_scale(amax);
            const float inverse = mx_inverse_scale(scale), value = e8m0_to_float(scale);
            for (float& v : e.x)
                v = (fp4 ? e2m1_to_float(mxfp4_input_code(v, inverse)) : e4m3_to_float(mxfp8_code(v, inverse))) * value;
        }
        e.store(a, token, i);
    }
}

template <ActivationFormat F>
cudaError_t launch(const InputsArgs& args, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(args.tokens);
    config.blockDim = threads;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, quantize_inputs_kernel<F>, args);
}

}  // namespace

cudaError_t launch_make_fp8_operand(const OperandArgs& args, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((args.rows * ((args.cols + 15) / 16) + threads - 1) / threads);
    if (blocks == 0) return cudaSuccess;
    make_fp8_operand_kernel<<<blocks, threads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_make_bf16_operand(const OperandArgs& args, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((args.rows * (args.cols / 8) + threads - 1) / threads);
    if (blocks == 0) return cudaSuccess;
    switch (args.kind) {
        case bf16:
            make_bf16_operand_kernel<bf16><<<blocks, threads, 0, stream>>>(args);
            break;
        case f16:
            make_bf16_operand_kernel<f16><<<blocks, threads, 0, stream>>>(args);
            break;
        case f32:
            make_bf16_operand_kernel<f32><<<blocks, threads, 0, stream>>>(args);
            break;
        case e4m3:
            make_bf16_operand_kernel<e4m3><<<blocks, threads, 0, stream>>>(args);
            break;
        default:
            make_bf16_operand_kernel<e2m1><<<blocks, threads, 0, stream>>>(args);
    }
    return cudaGetLastError();
}

cudaError_t launch_quantize_inputs(const InputsArgs& args, cudaStream_t stream) {
    switch (static_cast<ActivationFormat>(args.format)) {
        case ActivationFormat::nvfp4:
            return launch<ActivationFormat::nvfp4>(args, stream);
        case ActivationFormat::fp8:
            return launch<ActivationFormat::fp8>(args, stream);
        case ActivationFormat::fp8_token:
            return launch<ActivationFormat::fp8_token>(args, stream);
        case ActivationFormat::fp8_group128:
            return launch<ActivationFormat::fp8_group128>(args, stream);
        case ActivationFormat::mxfp8:
            return launch<ActivationFormat::mxfp8>(args, stream);
        case ActivationFormat::mxfp4:
            return launch<ActivationFormat::mxfp4>(args, stream);
        case ActivationFormat::none:
            break;
    }
    return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
