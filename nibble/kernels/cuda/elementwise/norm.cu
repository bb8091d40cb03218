// Residual sums and norms, with sums in the order of kernels/elementwise.h.
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/elementwise/input_codes.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

// One thread block per token; a thread processes eight elements, PerThread times. Shared memory holds the row in the
// order of the reference sum. Narrow rows use small thread blocks, so that many share a multiprocessor.
// Centered: LayerNorm, else RMSNorm.
template <int PerThread, int Threads, bool Centered>
__global__ void __launch_bounds__(Threads) add_norm_kernel(const __grid_constant__ AddNormArgs args) {
    extern __shared__ __align__(16) float row[];
    __shared__ float2 shared_scale;
    const int64_t token = blockIdx.x, first = token * args.width;
    const int pitch = lane_pitch(args.width);
    float2 x[PerThread][4], w[PerThread][4];
    const auto visit = [&](auto each) {
#pragma unroll
        for (int k = 0; k < PerThread; ++k)
            if (const int i = static_cast<int>(threadIdx.x) + k * Threads; i < args.width / 8)
                each(k, Chunk8(i, token, args.width, args.tile_tokens));
    };
    // Returns the scale of the row and, with Centered, its mean; x must be in shared memory.
    const auto scale_of_row = [&] {
        __syncthreads();
        if (threadIdx.x < 32) {
            float mean = 0.0f;
            if constexpr (Centered) mean = row_mean(row, args.width);
            const float scale = norm_scale<Centered>(row, args.width, args.eps, mean);
            if (threadIdx.x == 0) shared_scale = {scale, mean};
        }
        __syncthreads();
        return shared_scale;
    };
    const auto normed = [&](float v, float2 of_row, float weight, const float* bias, int column) {
        if constexpr (!Centered) return (v * of_row.x) * weight;
        return fmaf((v - of_row.y) * of_row.x, weight, bias ? bias[column] : 0.0f);
    };
    const auto lay = [&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            float* to = lane_place(row, pitch, c.column[p]);
            to[0] = x[k][p].x, to[pitch] = x[k][p].y;
        }
    };
    // Loads eight elements of a row, adjacent if rows are.
    const auto load = [&](const uint16_t* from, const Chunk8& c, uint32_t(&to)[4]) {
        if (args.tile_tokens == 0) {
            const uint4 v = *reinterpret_cast<const uint4*>(from + first + c.column[0]);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            return;
        }
#pragma unroll
        for (int p = 0; p < 4; ++p) to[p] = *reinterpret_cast<const uint32_t*>(from + first + c.column[p]);
    };
    if (args.weight)
        visit([&](int k, const Chunk8& c) {
#pragma unroll
            for (int p = 0; p < 4; ++p) w[k][p] = *reinterpret_cast<const float2*>(args.weight + c.column[p]);
        });
    start(args.overlap);
    uint32_t h[PerThread][4];
    visit([&](int k, const Chunk8& c) {
        load(args.h, c, h[k]);
        uint32_t u16[4] = {};
        if (args.update16) load(args.update16, c, u16);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            if (args.update) {
                const float2 u = *reinterpret_cast<const float2*>(args.update + first + c.column[p]);
                x[k][p] = {rounded(u.x), rounded(u.y)};
            } else {
                x[k][p] = {__uint_as_float(u16[p] << 16), __uint_as_float(u16[p] & 0xFFFF0000u)};
            }
        }
    });
    const bool updates = args.update || args.update16;
    if (updates && args.post_norm) {
        visit(lay);
        const float2 r = scale_of_row();
        visit([&](int k, const Chunk8& c) {
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const float2 post = *reinterpret_cast<const float2*>(args.post_norm + c.column[p]);
                x[k][p] = {rounded(normed(x[k][p].x, r, post.x, args.post_bias, c.column[p])),
                           rounded(normed(x[k][p].y, r, post.y, args.post_bias, c.column[p] + 1))};
            }
        });
        __syncthreads();
    }
    if (updates && args.update_scale != 1.0f)
        visit([&](int k, const Chunk8&) {
#pragma unroll
            for (int p = 0; p < 4; ++p)
                x[k][p] = {rounded(x[k][p].x * args.update_scale), rounded(x[k][p].y * args.update_scale)};
        });
    const bool scales_sum = updates && args.sum_scale != 1.0f;
    bool bad = false;
    visit([&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            float low = __uint_as_float(h[k][p] << 16), high = __uint_as_float(h[k][p] & 0xFFFF0000u);
            if (updates) {
                low = rounded(low + x[k][p].x);
                high = rounded(high + x[k][p].y);
                if (scales_sum) low = rounded(low * args.sum_scale), high = rounded(high * args.sum_scale);
                h[k][p] = __float_as_uint(low) >> 16 | __float_as_uint(high);
            }
            bad = bad || !is_finite(low) || !is_finite(high);
            x[k][p] = {low, high};
        }
        if (updates && args.tile_tokens == 0)
            *reinterpret_cast<uint4*>(args.sum + first + c.column[0]) = {h[k][0], h[k][1], h[k][2], h[k][3]};
        else if (updates)
#pragma unroll
            for (int p = 0; p < 4; ++p) *reinterpret_cast<uint32_t*>(args.sum + first + c.column[p]) = h[k][p];
        lay(k, c);
    });
    if (bad && args.nonfinite) atomicMin(args.nonfinite, static_cast<int>(token));
    if (!args.weight) return;
    const float2 r = scale_of_row();
    visit([&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p)
            h[k][p] = pair_of(normed(x[k][p].x, r, w[k][p].x, args.bias, c.column[p]),
                              normed(x[k][p].y, r, w[k][p].y, args.bias, c.column[p] + 1));
        if (args.codes.format == 0)
            *reinterpret_cast<uint4*>(args.out + c.offset) = {h[k][0], h[k][1], h[k][2], h[k][3]};
    });
    if (args.codes.format == 0 && !args.amax) return;
    float scale = args.codes.input_scale;
    const bool by_token = args.codes.format == static_cast<int>(ActivationFormat::fp8_token);
    if (by_token || args.amax) {
        __shared__ float of_warp[Threads / 32];
        float m = 0.0f;
        visit([&](int k, const Chunk8&) { m = fmaxf(m, amax_of(h[k])); });
#pragma unroll
        for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
        __syncthreads();
        for (const float v : of_warp) m = fmaxf(m, v);
        if (threadIdx.x == 0 && args.amax) raise_amax(args.amax, m);
        if (by_token) {
            scale = code_scale(m);
            if (threadIdx.x == 0) args.codes.scales[token] = scale;
        }
    }
    if (args.codes.format == 0) return;
    visit([&](int k, const Chunk8& c) {
        store_codes(args.codes, args.out, token, args.width, c.column[0] / 8, h[k], scale);
    });
}

// One thread block per token and group of columns.
__global__ void norm_rows_kernel(const __grid_constant__ NormRowsArgs args) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared_scale;
    const int64_t token = blockIdx.y;
    const int width = args.group_width, pitch = lane_pitch(width), at = static_cast<int>(blockIdx.x) * width;
    start(args.overlap);
    const float* in = args.in + token * args.in_stride + at;
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x))
        *lane_place(row, pitch, j) = args.round ? rounded(in[j]) : in[j];
    __syncthreads();
    if (threadIdx.x < 32) {
        const float scale = norm_scale(row, width, args.eps);
        if (threadIdx.x == 0) shared_scale = scale;
    }
    __syncthreads();
    const float r = shared_scale;
    const int64_t to = token * args.out_stride + at;
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x)) {
        const float y = (*lane_place(row, pitch, j) * r) * args.weight[at + j];
        if (args.wide)
            args.wide[to + j] = rounded(y);
        else
            args.out[to + j] = bf16_from_float(y);
    }
}

// One thread block per token and for q or k.
__global__ void joined_scales_kernel(const __grid_constant__ JoinedScalesArgs args) {
    extern __shared__ __align__(16) float row[];
    const int64_t token = blockIdx.y, first = token * args.stride + (blockIdx.x ? args.k_at : 0);
    const int width = blockIdx.x ? args.k_width : args.q_width, pitch = lane_pitch(width);
    start(args.overlap);
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x))
        *lane_place(row, pitch, j) = args.qkv ? rounded(args.qkv[first + j]) : bf16_to_float(args.qkv16[first + j]);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float scale = norm_scale(row, width, args.eps);
    if (threadIdx.x == 0) args.scales[2 * token + blockIdx.x] = scale;
}

constexpr int default_shared = 48 * 1024;

template <int PerThread, int Threads>
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
    const auto kernel =
        args.centered ? add_norm_kernel<PerThread, Threads, true> : add_norm_kernel<PerThread, Threads, false>;
    const int bytes = norm_shared_bytes(args.width);
    if (bytes > default_shared)
        if (const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          norm_shared_bytes(most_norm_width)))
            return code;
    return launch_kernel(kernel, dim3(static_cast<unsigned>(args.tokens)), Threads, bytes, args, stream);
}

}  // namespace

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
    if (args.width <= 1024) return launch_add_norm<1, 128>(args, stream);
    if (args.width <= 2048) return launch_add_norm<1, 256>(args, stream);
    const int chunks = (args.width / 8 + 511) / 512;
    if (chunks == 1) return launch_add_norm<1, 512>(args, stream);
    if (chunks == 2) return launch_add_norm<2, 512>(args, stream);
    if (chunks <= 4) return launch_add_norm<4, 512>(args, stream);
    return launch_add_norm<8, 512>(args, stream);
}

cudaError_t launch_joined_scales(const JoinedScalesArgs& args, cudaStream_t stream) {
    const int bytes = norm_shared_bytes(args.q_width > args.k_width ? args.q_width : args.k_width);
    if (bytes > default_shared)
        if (const cudaError_t code = cudaFuncSetAttribute(
                joined_scales_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, norm_shared_bytes(most_norm_width)))
            return code;
    return launch_kernel(joined_scales_kernel, dim3(2, static_cast<unsigned>(args.tokens)), 256, bytes, args, stream);
}

cudaError_t launch_norm_rows(const NormRowsArgs& args, int groups, cudaStream_t stream) {
    const int bytes = norm_shared_bytes(args.group_width);
    if (bytes > default_shared)
        if (const cudaError_t code = cudaFuncSetAttribute(norm_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          norm_shared_bytes(most_norm_width)))
            return code;
    return launch_kernel(norm_rows_kernel, dim3(static_cast<unsigned>(groups), static_cast<unsigned>(args.tokens)),
                         args.group_width >= 1024 ? 256 : 128, bytes, args, stream);
}

}  // namespace nibble::cuda
