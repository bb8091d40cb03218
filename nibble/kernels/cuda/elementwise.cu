// The operations of kernels/elementwise.h: element by element the text of kernels/ref, sums in its order of lanes.
#include "kernels/cuda/elementwise_launch.h"
#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/exp.h"

#include <cfloat>

namespace nibble::cuda {
namespace {

constexpr int norm_threads = 512, lanes = 16;
// Floats between the elements of neighbouring lanes: lanes read 16 aligned bytes each, from different banks.
__host__ __device__ constexpr int lane_pitch(int width) { return (width / lanes + 3) / 4 * 4 + 4; }

__device__ float rounded(float x) { return bf16_to_float(bf16_from_float(x)); }

// exp_f32 of kernels/exp.h; arrays of constants do not exist on the device.
__device__ float exp_of(float x) {
    constexpr float t0 = exp_terms[0], t1 = exp_terms[1], t2 = exp_terms[2], t3 = exp_terms[3], t4 = exp_terms[4],
                    t5 = exp_terms[5];
    if (x != x) return x;
    if (x < exp_lowest) return 0.0f;
    if (x > exp_highest) return INFINITY;
    const float shifted = fmaf(x, exp_log2e, exp_round), n = shifted - exp_round;
    const float r = fmaf(-n, exp_ln2_low, fmaf(-n, exp_ln2_high, x));
    const float p = fmaf(fmaf(fmaf(fmaf(fmaf(t0, r, t1), r, t2), r, t3), r, t4), r, t5);
    const float y = fmaf(p, r * r, r) + 1.0f;
    const uint32_t exponent = __float_as_uint(shifted) - float_bits(exp_round);
    return __uint_as_float(__float_as_uint(y) + (exponent << 23));
}

__device__ float act(int activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f;
    if (activation == 0) return x / (1.0f + exp_of(-x));
    if (activation == 1) return x / (1.0f + exp_of(-(x * fmaf(c1, x * x, c0))));
    return x > 0.0f || x != x ? x * x : 0.0f;
}

__device__ uint32_t pair_of(float low, float high) {
    return bf16_from_float(low) | uint32_t{bf16_from_float(high)} << 16;
}

// Eight elements of a row go out as 16 bytes. Row-major: columns 8 i ... 8 i + 7. Permuted (see permute_kernel of
// w4a16_wide.cu): the pairs q, 8 + q, 16 + q, 24 + q of 64 columns.
struct Chunk8 {
    int column[4];   // of each pair
    int64_t offset;  // in bytes

    __device__ Chunk8(int i, int64_t token, int width, int tile) {
        if (tile == 0) {
            for (int p = 0; p < 4; ++p) column[p] = 8 * i + 2 * p;
            offset = (token * width + 8 * i) * 2;
        } else {
            const int block = i / 8, q = i % 8, t = static_cast<int>(token % tile);
            for (int p = 0; p < 4; ++p) column[p] = 64 * block + 2 * q + 16 * p;
            offset = (((token / tile * (width / 64) + block) * tile + t) * 8 + (q ^ t % 8)) * 16;
        }
    }
};

__device__ void start(bool overlap) {
    if (overlap) {
        overlap_next();
        wait_for_previous();
    }
}

__global__ void embed_kernel(const __grid_constant__ EmbedArgs args) {
    start(args.overlap);
    const int64_t row = args.width / 8;
    for (int64_t i = threadIdx.x; i < row; i += blockDim.x)
        args.h[blockIdx.x * row + i] = args.table[args.tokens[blockIdx.x] * row + i];
}

// A thread block per token, a thread for eight elements (PerThread times). Shared memory holds the row in the order of
// ref's sum: lane l of 16 finds its elements l, l + 16, l + 32 ... one after the other.
template <int PerThread>
__global__ void __launch_bounds__(norm_threads) add_norm_kernel(const __grid_constant__ AddNormArgs args) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared_scale;
    const int64_t token = blockIdx.x, first = token * args.width;
    const int pitch = lane_pitch(args.width);
    float2 x[PerThread][4], w[PerThread][4];
    const auto visit = [&](auto each) {
#pragma unroll
        for (int k = 0; k < PerThread; ++k)
            if (const int i = static_cast<int>(threadIdx.x) + k * norm_threads; i < args.width / 8)
                each(k, Chunk8(i, token, args.width, args.tile_tokens));
    };
    visit([&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p) w[k][p] = *reinterpret_cast<const float2*>(args.weight + c.column[p]);
    });
    start(args.overlap);
    uint32_t h[PerThread][4];
    float2 u[PerThread][4];
    visit([&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            h[k][p] = *reinterpret_cast<const uint32_t*>(args.h + first + c.column[p]);
            if (args.update) u[k][p] = *reinterpret_cast<const float2*>(args.update + first + c.column[p]);
        }
    });
    visit([&](int k, const Chunk8& c) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            float low = __uint_as_float(h[k][p] << 16), high = __uint_as_float(h[k][p] & 0xFFFF0000u);
            if (args.update) {
                low = rounded(low + rounded(u[k][p].x));
                high = rounded(high + rounded(u[k][p].y));
                *reinterpret_cast<uint32_t*>(args.h + first + c.column[p]) =
                    __float_as_uint(low) >> 16 | __float_as_uint(high);
            }
            x[k][p] = {low, high};
            float* to = row + c.column[p] % lanes * pitch + c.column[p] / lanes;
            to[0] = low, to[pitch] = high;
        }
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        const float* own = row + threadIdx.x % lanes * pitch;
        const int count = args.width / lanes;
        float sum = 0.0f;
        int j = 0;
#pragma unroll 8
        for (; j + 4 <= count; j += 4) {
            const float4 v = *reinterpret_cast<const float4*>(own + j);
            sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum);
            sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
        }
        for (; j < count; ++j) sum = fmaf(own[j], own[j], sum);
#pragma unroll
        for (int half = lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
        if (threadIdx.x == 0) shared_scale = 1.0f / sqrtf(sum / static_cast<float>(args.width) + args.eps);
    }
    __syncthreads();
    const float r = shared_scale;
    visit([&](int k, const Chunk8& c) {
        uint32_t packed[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) packed[p] = pair_of((x[k][p].x * r) * w[k][p].x, (x[k][p].y * r) * w[k][p].y);
        *reinterpret_cast<uint4*>(args.out + c.offset) = {packed[0], packed[1], packed[2], packed[3]};
    });
}

__global__ void activate_kernel(const __grid_constant__ ActivateArgs args) {
    start(args.overlap);
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= args.width / 8) return;
    const int64_t token = blockIdx.y;
    const Chunk8 to(i, token, args.width, args.tile_tokens);
    const float* in = args.in + token * args.width * (args.gated ? 2 : 1);
    float2 x[4], up[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        x[p] = *reinterpret_cast<const float2*>(in + to.column[p]);
        if (args.gated) up[p] = *reinterpret_cast<const float2*>(in + args.width + to.column[p]);
    }
    uint32_t packed[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        float low = act(args.activation, rounded(x[p].x)), high = act(args.activation, rounded(x[p].y));
        if (args.gated) low *= rounded(up[p].x), high *= rounded(up[p].y);
        packed[p] = pair_of(low, high);
    }
    *reinterpret_cast<uint4*>(args.out + to.offset) = {packed[0], packed[1], packed[2], packed[3]};
}

// A warp per token and head: queries, then keys, then values.
template <KvType Type>
__global__ void rope_kernel(const __grid_constant__ RopeArgs args) {
    constexpr int half = kv_head_dim / 2;
    start(args.overlap);
    const int heads = args.q_heads + 2 * args.kv_heads;
    const int64_t item = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
    if (item >= args.tokens * heads) return;
    const int64_t token = item / heads;
    const int head = static_cast<int>(item % heads), lane = static_cast<int>(threadIdx.x) % 32;
    const float* x = args.qkv + item * kv_head_dim;
    const int64_t slot = head < args.q_heads ? 0 : args.slots[token];
    if (slot < 0) return;
    const int t = static_cast<int>(slot % args.page_tokens) % kv_tile_tokens;
    const int kv_head = head < args.q_heads                   ? 0
                        : head < args.q_heads + args.kv_heads ? head - args.q_heads
                                                              : head - args.q_heads - args.kv_heads;
    uint8_t* tile = tile_of_slot<Type>(args.pages, args.page_bytes, args.page_tokens, kv_head, slot);
    if (head >= args.q_heads + args.kv_heads) {
#pragma unroll
        for (int d = lane; d < kv_head_dim; d += 32)
            store_element<Type>(tile + v_offset(Type, t, d), bf16_from_float(x[d]), args.v_scales, kv_head);
        return;
    }
    const int64_t angle = int64_t{args.positions[token]} * half;
#pragma unroll
    for (int i = lane; i < half; i += 32) {
        const float a = rounded(x[i]), b = rounded(x[i + half]), c = args.cos[angle + i], s = args.sin[angle + i];
        const uint16_t first = bf16_from_float(fmaf(a, c, -(b * s))), second = bf16_from_float(fmaf(b, c, a * s));
        if (head < args.q_heads) {
            uint16_t* q = args.q + (token * args.q_heads + head) * kv_head_dim;
            q[i] = first, q[i + half] = second;
        } else {
            store_element<Type>(tile + k_offset(Type, t, i), first, args.k_scales, kv_head);
            store_element<Type>(tile + k_offset(Type, t, i + half), second, args.k_scales, kv_head);
        }
    }
}

// Larger values and, among equals, smaller indices have larger keys.
__device__ unsigned long long key_of(float value, uint32_t index) {
    const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    const uint32_t order = value != value ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<unsigned long long>(order) << 32 | ~index;
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
    cluster_barrier();  // nobody leaves while its best is read
}

template <class Args>
cudaError_t launch(void (*kernel)(Args), dim3 blocks, int threads, int shared_bytes, const Args& args,
                   cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args);
}

unsigned ceil_blocks(int64_t items, int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

}  // namespace

cudaError_t launch_embed(const EmbedArgs& args, cudaStream_t stream) {
    return launch(embed_kernel, dim3(static_cast<unsigned>(args.count)), 256, 0, args, stream);
}

namespace {

template <int PerThread>
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
    const int bytes = lanes * lane_pitch(args.width) * 4;
    if (bytes > 48 * 1024)
        if (const cudaError_t code =
                cudaFuncSetAttribute(add_norm_kernel<PerThread>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     lanes * lane_pitch(most_norm_width) * 4))
            return code;
    return launch(add_norm_kernel<PerThread>, dim3(static_cast<unsigned>(args.tokens)), norm_threads, bytes, args,
                  stream);
}

}  // namespace

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
    const int chunks = (args.width / 8 + norm_threads - 1) / norm_threads;
    if (chunks == 1) return launch_add_norm<1>(args, stream);
    if (chunks == 2) return launch_add_norm<2>(args, stream);
    if (chunks <= 4) return launch_add_norm<4>(args, stream);
    return launch_add_norm<8>(args, stream);
}

cudaError_t launch_activate(const ActivateArgs& args, cudaStream_t stream) {
    constexpr int threads = 128;
    return launch(activate_kernel, dim3(ceil_blocks(args.width / 8, threads), static_cast<unsigned>(args.tokens)),
                  threads, 0, args, stream);
}

cudaError_t launch_rope(const RopeArgs& args, KvType type, cudaStream_t stream) {
    constexpr int warps = 4;
    const dim3 blocks(ceil_blocks(args.tokens * (args.q_heads + 2 * args.kv_heads), warps));
    if (type == KvType::bf16) return launch(rope_kernel<KvType::bf16>, blocks, 32 * warps, 0, args, stream);
    return launch(rope_kernel<KvType::e4m3>, blocks, 32 * warps, 0, args, stream);
}

cudaError_t launch_argmax(const ArgmaxArgs& args, cudaStream_t stream) {
    return launch(argmax_kernel, dim3(static_cast<unsigned>(args.tokens) * argmax_blocks), 1024, 0, args, stream);
}

}  // namespace nibble::cuda
