// The operations of kernels/elementwise.h that need no sum along a row.
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/cuda/elementwise/input_codes.cuh"
#include "kernels/cuda/primitives/rows8.cuh"

namespace nibble::cuda {
namespace {

__global__ void embed_kernel(const __grid_constant__ EmbedArgs args) {
    start(args.overlap);
    const int64_t row = args.width / 8;
    for (int64_t i = threadIdx.x; i < row; i += blockDim.x)
        args.h[blockIdx.x * row + i] = args.table[args.tokens[blockIdx.x] * row + i];
}

__global__ void activate_kernel(const __grid_constant__ ActivateArgs args) {
    start(args.overlap);
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= args.width / 8) return;
    const int64_t token = blockIdx.y;
    const Chunk8 to(i, token, args.width, args.tile_tokens);
    const auto pair_at = [&](int64_t at) -> float2 {
        return *reinterpret_cast<const float2*>(args.in + token * args.in_stride + at);
    };
    float2 x[4], up[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        const int column = to.column[p], at = args.interleaved_gate ? column + column / 16 * 16 : column;
        x[p] = pair_at(at);
        if (args.gated) up[p] = pair_at(at + (args.interleaved_gate ? 16 : args.width));
    }
    uint32_t packed[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        float low = rounded(x[p].x), high = rounded(x[p].y);
        if (args.clamp.limit > 0) {
            low = clamped_unit(args.clamp, low, rounded(up[p].x));
            high = clamped_unit(args.clamp, high, rounded(up[p].y));
        } else {
            if (args.activation >= 0) low = act(args.activation, low), high = act(args.activation, high);
            if (args.gated) low *= rounded(up[p].x), high *= rounded(up[p].y);
        }
        packed[p] = pair_of(low, high);
    }
    if (args.codes.format != 0)
        return store_codes(args.codes, args.out, token, args.width, i, packed, args.codes.input_scale);
    *reinterpret_cast<uint4*>(args.out + to.offset) = {packed[0], packed[1], packed[2], packed[3]};
}

// One thread block per token and 8 * blockDim.x columns.
__global__ void activate_bf16_rows_kernel(const __grid_constant__ ActivateRowsArgs args) {
    start(args.overlap);
    const int64_t token = blockIdx.x, column = 8 * (int64_t{blockIdx.y} * blockDim.x + threadIdx.x);
    float m = 0.0f;
    if (column < args.width) {
        const std::byte* in = args.in + 2 * (token * (args.gated ? 2 : 1) * args.width + column);
        float x[8], up[8];
        unpack8(in, x);
        if (args.gated) unpack8(in + 2 * args.width, up);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (args.clamp.limit > 0) {
                x[j] = clamped_unit(args.clamp, x[j], up[j]);
            } else {
                x[j] = act_of(args.activation, x[j]);
                if (args.gated) x[j] *= up[j];
            }
            m = fmaxf(m, fabsf(x[j]));
        }
        if (args.codes.format == 0) {
            pack8(args.out + 2 * (token * args.width + column), x);
        } else {
            const uint32_t pairs[4] = {pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]),
                                       pair_of(x[6], x[7])};
            store_codes(args.codes, reinterpret_cast<uint8_t*>(args.out), token, static_cast<int>(args.width),
                        static_cast<int>(column / 8), pairs, args.codes.input_scale);
        }
    }
    if (!args.amax) return;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
    if (threadIdx.x % 32 == 0) raise_amax(args.amax, rounded(m));  // rounding keeps the order
}

constexpr int argmax_blocks = 8;  // a cluster per row

__global__ void __cluster_dims__(argmax_blocks, 1, 1) __launch_bounds__(1024)
    argmax_kernel(const __grid_constant__ ArgmaxArgs args) {
    __shared__ unsigned long long best_of_warp[32], best_of_block;
    start(args.overlap);
    const uint32_t rank = blockIdx.x % argmax_blocks, token = blockIdx.x / argmax_blocks;
    const float* row = args.logits + token * args.width;
    unsigned long long best = 0;
#pragma unroll 8
    for (int64_t i = rank * 1024 + threadIdx.x; i < args.width; i += 1024 * argmax_blocks) {
        const unsigned long long key = key_of(row[i], static_cast<uint32_t>(i));
        best = key > best ? key : best;
    }
    const auto across_warp = [&] {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, best, step);
            best = other > best ? other : best;
        }
    };
    across_warp();
    if (threadIdx.x % 32 == 0) best_of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
        best = best_of_warp[threadIdx.x];
        across_warp();
        if (threadIdx.x == 0) best_of_block = best;
    }
    const auto cluster_barrier = [] {
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    };
    cluster_barrier();
    if (rank == 0 && threadIdx.x < 32) {
        best = 0;
        if (threadIdx.x < argmax_blocks)
            asm volatile(
                "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\t"
                "ld.shared::cluster.u64 %0, [there];\n\t}"
                : "=l"(best)
                : "r"(shared_address(&best_of_block)), "r"(threadIdx.x)
                : "memory");
        across_warp();
        if (threadIdx.x == 0) args.index[token] = static_cast<int32_t>(~static_cast<uint32_t>(best));
    }
    cluster_barrier();  // keeps shared memory alive until all blocks have read it
}

__global__ void round_rows_kernel(const __grid_constant__ RoundArgs args) {
    start(args.overlap);
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= args.count) return;
    float x = rounded(args.x[i]);
    if (args.scale != 1.0f) x = rounded(x * args.scale);
    if (args.cap > 0) x = rounded(soft_cap_of(x, args.cap));
    args.x[i] = x;
}

// One thread per element.
__global__ void scale_columns_kernel(const __grid_constant__ ScaleColumnsArgs args) {
    start(args.overlap);
    const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (column >= args.columns) return;
    float by = args.by[0];
#pragma unroll
    for (int part = 1; part < ScaleColumnsArgs::most_parts; ++part)
        if (column >= args.end[part - 1]) by = args.by[part];
    float& x = args.x[int64_t{blockIdx.x} * args.stride + args.first + column];
    x = rounded(rounded(x) * by);
}

__global__ void scale_rows_kernel(const __grid_constant__ ScaleRowsArgs args) {
    start(args.overlap);
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < args.count) args.y[i] = bf16_from_float(bf16_to_float(args.x[i]) * args.by);
}

// One thread per element.
__global__ void gate_heads_kernel(const __grid_constant__ GateHeadsArgs args) {
    start(args.overlap);
    const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (column >= args.heads * args.dim) return;
    const int64_t token = blockIdx.x;
    const int head = column / args.dim;
    const int64_t at = token * args.stride + head * args.pitch + (args.by_head ? 0 : column % args.dim);
    const float gate = args.gates ? rounded(args.gates[at]) : bf16_to_float(args.gate_rows[at]);
    uint16_t& to = args.x[token * args.heads * args.dim + column];
    const float x = bf16_to_float(to), below = 1.0f + exp_of(-gate);
    to = bf16_from_float(args.by_head ? x * rounded(1.0f / below) : x / below);
}

__global__ void add_rows_kernel(const __grid_constant__ AddRowsArgs args) {
    start(args.overlap);
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < args.count) args.y[i] = rounded(rounded(args.y[i]) + rounded(args.x[i]));
}

}  // namespace

cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream) {
    return launch_kernel(embed_kernel, dim3(static_cast<unsigned>(args.count)), 256, 0, args, stream);
}

cudaError_t launch_activate(const ActivateArgs& args, cudaStream_t stream) {
    constexpr int threads = 128;
    return launch_kernel(activate_kernel,
                         dim3(ceil_blocks(args.width / 8, threads), static_cast<unsigned>(args.tokens)), threads, 0,
                         args, stream);
}

cudaError_t launch_activate_rows(const ActivateRowsArgs& args, cudaStream_t stream) {
    const int64_t chunks = args.width / 8;
    const int threads = chunks <= 128 ? 128 : 256;
    return launch_kernel(activate_bf16_rows_kernel,
                         dim3(static_cast<unsigned>(args.tokens), ceil_blocks(chunks, threads)), threads, 0, args,
                         stream);
}

cudaError_t launch_round(const RoundArgs& args, cudaStream_t stream) {
    return launch_kernel(round_rows_kernel, dim3(ceil_blocks(args.count, 256)), 256, 0, args, stream);
}

cudaError_t launch_scale_columns(const ScaleColumnsArgs& args, cudaStream_t stream) {
    return launch_kernel(scale_columns_kernel, dim3(static_cast<unsigned>(args.tokens), ceil_blocks(args.columns, 256)),
                         256, 0, args, stream);
}

cudaError_t launch_scale_rows(const ScaleRowsArgs& args, cudaStream_t stream) {
    return launch_kernel(scale_rows_kernel, dim3(ceil_blocks(args.count, 256)), 256, 0, args, stream);
}

cudaError_t launch_gate_heads(const GateHeadsArgs& args, cudaStream_t stream) {
    return launch_kernel(gate_heads_kernel,
                         dim3(static_cast<unsigned>(args.tokens), ceil_blocks(int64_t{args.heads} * args.dim, 256)),
                         256, 0, args, stream);
}

cudaError_t launch_add_rows(const AddRowsArgs& args, cudaStream_t stream) {
    return launch_kernel(add_rows_kernel, dim3(ceil_blocks(args.count, 256)), 256, 0, args, stream);
}

cudaError_t launch_argmax(const ArgmaxArgs& args, cudaStream_t stream) {
    return launch_kernel(argmax_kernel, dim3(static_cast<unsigned>(args.tokens) * argmax_blocks), 1024, 0, args,
                         stream);
}

}  // namespace nibble::cuda
