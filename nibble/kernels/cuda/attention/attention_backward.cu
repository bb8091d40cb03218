// The backward pass of causal attention with mma.sync.m16n8k16: for heads of 96, 192 and 256 dimensions, and for GPUs
// other than Hopper, where sm90_attention_backward.cu has no kernels. Blocks of 64 rows by 64 rows, four warps of 16
// rows each.
//
//   dq    a thread block per 64 queries and head: sum(dO * O), then over the keys: P = 2^(s - sum) with the forward
//         pass's base-2 log sum, dS = P * (dO V^T - sum(dO * O)), dQ += dS K
//   dkv   a thread block per 64 keys and KV head, over its heads and their queries: dV += P^T dO, dK += dS^T Q
//
// Heads of more than 128 dimensions compute dV and dK in two launches, because the registers hold only one of them.
// Sums run over blocks in ascending order, heads first, the same in every launch.
#include "base/checked.h"
#include "kernels/cuda/attention/attention_backward_args.cuh"
#include "kernels/cuda/attention/attention_backward_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int block = 64, warps = 4, threads = 32 * warps;
constexpr float log2_e = 1.4426950408889634f;

// [64, Dim] BF16 in shared memory: rows padded to whole 128 bytes, 16-byte chunks swizzled by the row modulo 8.
template <int Dim>
struct Tile {
    static constexpr int chunks = Dim / 8, pitch = (Dim + 63) / 64 * 128, bytes = block * pitch;

    __device__ static uint32_t at(uint32_t base, int row, int chunk) {
        return base + row * pitch + ((chunk ^ (row & 7)) << 4);
    }
    // Loads rows [row, row + 64) of [rows, stride]; zeros after the last row.
    __device__ static void load(uint32_t base, const std::byte* from, int64_t row, int64_t rows, int64_t stride) {
        for (int i = static_cast<int>(threadIdx.x); i < block * chunks; i += threads) {
            const int r = i / chunks, c = i % chunks;
            const bool present = row + r < rows;
            copy16_or_zero(at(base, r, c), from + 2 * ((present ? row + r : row) * stride + 8 * c), present);
        }
    }
    // Loads operand A of m16n8k16: rows [row, row + 16), columns [16 step, 16 step + 16).
    __device__ static void rows16(uint32_t (&a)[4], uint32_t base, int row, int step) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        load_matrices(a, at(base, row + lane % 16, 2 * step + lane / 16));
    }
    // Loads operand B: rows [row, row + 16) as columns n, for two tiles of 8.
    __device__ static void columns16(uint32_t (&b)[4], uint32_t base, int row, int step) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        load_matrices(b, at(base, row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
    }
    // Loads operand B: rows [row, row + 16) as the reduction, columns [16 step, 16 step + 16) as two tiles of n.
    __device__ static void transposed16(uint32_t (&b)[4], uint32_t base, int row, int step) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const uint32_t from = at(base, row + lane % 16, 2 * step + lane / 16);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(from)
                     : "memory");
    }
};

__device__ void wait_for_copies() {
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}

// c [16, 64] = rows [row, row + 16) of `a` times the 64 rows of `b` transposed.
template <int Dim>
__device__ void scores(float (&c)[8][4], uint32_t a, int row, uint32_t b) {
#pragma unroll
    for (auto& tile : c)
        for (float& v : tile) v = 0.0f;
#pragma unroll
    for (int step = 0; step < Dim / 16; ++step) {
        uint32_t left[4];
        Tile<Dim>::rows16(left, a, row, step);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            uint32_t right[4];
            Tile<Dim>::columns16(right, b, 16 * t, step);
            multiply_add(c[2 * t], left, right[0], right[1]);
            multiply_add(c[2 * t + 1], left, right[2], right[3]);
        }
    }
}

// sum [16, Dim] += p [16, 64] (rounded to BF16) times the 64 rows of `b`.
template <int Dim>
__device__ void add_product(float (&sum)[Dim / 8][4], const float (&p)[8][4], uint32_t b) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint32_t left[4] = {pair_of(p[2 * k][0], p[2 * k][1]), pair_of(p[2 * k][2], p[2 * k][3]),
                                  pair_of(p[2 * k + 1][0], p[2 * k + 1][1]), pair_of(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
        for (int step = 0; step < Dim / 16; ++step) {
            uint32_t right[4];
            Tile<Dim>::transposed16(right, b, 16 * k, step);
            multiply_add(sum[2 * step], left, right[0], right[1]);
            multiply_add(sum[2 * step + 1], left, right[2], right[3]);
        }
    }
}

template <int Dim>
__device__ void store_rows(std::byte* to, int64_t row0, int64_t rows, int64_t stride, const float (&sum)[Dim / 8][4],
                           float factor) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + g + 8 * half;
        if (row >= rows) continue;
#pragma unroll
        for (int t = 0; t < Dim / 8; ++t)
            *reinterpret_cast<uint32_t*>(to + 2 * (row * stride + 8 * t + 2 * c)) =
                pair_of(sum[t][2 * half] * factor, sum[t][2 * half + 1] * factor);
    }
}

template <int Dim>
__global__ void __launch_bounds__(threads)
    attention_backward_dq_kernel(const __grid_constant__ AttentionBackArgs args) {
    extern __shared__ __align__(128) uint8_t shared_tiles[];
    const AttentionBackward& a = args.a;
    const uint32_t base = shared_address(shared_tiles);
    const uint32_t q_tile = base, do_tile = base + Tile<Dim>::bytes, k_tile = base + 2 * Tile<Dim>::bytes,
                   v_tile = base + 3 * Tile<Dim>::bytes;
    // The last queries see most keys and run first.
    const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * block, rows = static_cast<int>(a.tokens);
    const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.q_heads / a.kv_heads);
    const int64_t q_stride = int64_t{a.q_heads} * Dim, kv_stride = int64_t{a.kv_heads} * Dim;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int c = lane % 4;
    Tile<Dim>::load(q_tile, a.q + 2 * head * Dim, query0, a.tokens, q_stride);
    Tile<Dim>::load(do_tile, a.d_o + 2 * head * Dim, query0, a.tokens, q_stride);
    const QueryRows<Dim> own(args, query0 + 16 * warp, head);
    const int begin = lowest_key(a, query0) / block * block, end = min(query0 + block, rows);
    float dq[Dim / 8][4] = {};
    for (int key0 = begin; key0 < end; key0 += block) {
        __syncthreads();
        Tile<Dim>::load(k_tile, a.k + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
        Tile<Dim>::load(v_tile, a.v + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
        wait_for_copies();
        float s[8][4], dp[8][4];
        scores<Dim>(s, q_tile, 16 * warp, k_tile);
        scores<Dim>(dp, do_tile, 16 * warp, v_tile);
#pragma unroll
        for (int t = 0; t < 8; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool sees = own.sees(key0 + 8 * t + 2 * c + i % 2, i / 2);
                const float p = sees ? exp2f(fmaf(s[t][i], args.factor, -own.sum[i / 2])) : 0.0f;
                s[t][i] = p * (dp[t][i] - own.delta[i / 2]);
            }
        add_product<Dim>(dq, s, k_tile);
    }
    store_rows<Dim>(a.dq + 2 * head * Dim, query0 + 16 * warp, a.tokens, a.d_stride, dq, a.scale);
}

enum class Of : uint8_t { both, keys, values };

template <int Dim, Of Which>
__global__ void __launch_bounds__(threads)
    attention_backward_dkv_kernel(const __grid_constant__ AttentionBackArgs args) {
    extern __shared__ __align__(128) uint8_t shared_tiles[];
    __shared__ float sum_of[block], delta_of[block];
    __shared__ int lowest_of[block];
    const AttentionBackward& a = args.a;
    const uint32_t base = shared_address(shared_tiles);
    const uint32_t k_tile = base, v_tile = base + Tile<Dim>::bytes, q_tile = base + 2 * Tile<Dim>::bytes,
                   do_tile = base + 3 * Tile<Dim>::bytes;
    const int key0 = static_cast<int>(blockIdx.x) * block, rows = static_cast<int>(a.tokens);
    const int kv_head = static_cast<int>(blockIdx.y), group = a.q_heads / a.kv_heads;
    const int64_t q_stride = int64_t{a.q_heads} * Dim, kv_stride = int64_t{a.kv_heads} * Dim;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, c = lane % 4;
    Tile<Dim>::load(k_tile, a.k + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
    Tile<Dim>::load(v_tile, a.v + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
    const int last_key = min(key0 + block, rows) - 1;
    constexpr bool keys = Which != Of::values, values = Which != Of::keys;
    float dk[keys ? Dim / 8 : 1][4] = {}, dv[values ? Dim / 8 : 1][4] = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (int query0 = key0; query0 < rows; query0 += block) {
            if (lowest_key(a, query0) > last_key) break;  // also for all later queries
            __syncthreads();
            Tile<Dim>::load(q_tile, a.q + 2 * head * Dim, query0, a.tokens, q_stride);
            Tile<Dim>::load(do_tile, a.d_o + 2 * head * Dim, query0, a.tokens, q_stride);
            if (threadIdx.x < block) {
                const int query = query0 + static_cast<int>(threadIdx.x);
                sum_of[threadIdx.x] = args.sums[head * args.padded + query];
                delta_of[threadIdx.x] = args.deltas[head * args.padded + query];
                lowest_of[threadIdx.x] = args.lowest[query];
            }
            wait_for_copies();
            float p[8][4], dp[8][4];  // [keys][queries]
            scores<Dim>(p, k_tile, 16 * warp, q_tile);
            if constexpr (keys) scores<Dim>(dp, v_tile, 16 * warp, do_tile);
#pragma unroll
            for (int t = 0; t < 8; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 8 * t + 2 * c + i % 2;
                    const int key = key0 + 16 * warp + g + 8 * (i / 2);
                    const bool visible = key <= query0 + at && key >= lowest_of[at];
                    p[t][i] = visible ? exp2f(fmaf(p[t][i], args.factor, -sum_of[at])) : 0.0f;
                    if constexpr (keys) dp[t][i] = p[t][i] * (dp[t][i] - delta_of[at]);
                }
            if constexpr (values) add_product<Dim>(dv, p, do_tile);
            if constexpr (keys) add_product<Dim>(dk, dp, q_tile);
        }
    if constexpr (keys) store_rows<Dim>(a.dk + 2 * kv_head * Dim, key0 + 16 * warp, a.tokens, a.d_stride, dk, a.scale);
    if constexpr (values) store_rows<Dim>(a.dv + 2 * kv_head * Dim, key0 + 16 * warp, a.tokens, a.d_stride, dv, 1.0f);
}

template <int Dim>
cudaError_t prepare_dim() {
    if (const cudaError_t code = allow_shared_memory(attention_backward_dq_kernel<Dim>, 4 * Tile<Dim>::bytes))
        return code;
    if constexpr (Dim <= 128) {
        return allow_shared_memory(attention_backward_dkv_kernel<Dim, Of::both>, 4 * Tile<Dim>::bytes);
    } else {
        if (const cudaError_t code =
                allow_shared_memory(attention_backward_dkv_kernel<Dim, Of::keys>, 4 * Tile<Dim>::bytes))
            return code;
        return allow_shared_memory(attention_backward_dkv_kernel<Dim, Of::values>, 4 * Tile<Dim>::bytes);
    }
}

template <int Dim>
cudaError_t run_dim(const AttentionBackArgs& args, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(args.a.tokens, block);
    attention_backward_dq_kernel<Dim>
        <<<dim3(blocks, static_cast<unsigned>(args.a.q_heads)), threads, 4 * Tile<Dim>::bytes, stream>>>(args);
    if (const cudaError_t code = cudaGetLastError()) return code;
    const dim3 of_keys(blocks, static_cast<unsigned>(args.a.kv_heads));
    if constexpr (Dim <= 128) {
        attention_backward_dkv_kernel<Dim, Of::both><<<of_keys, threads, 4 * Tile<Dim>::bytes, stream>>>(args);
    } else {
        attention_backward_dkv_kernel<Dim, Of::keys><<<of_keys, threads, 4 * Tile<Dim>::bytes, stream>>>(args);
        attention_backward_dkv_kernel<Dim, Of::values><<<of_keys, threads, 4 * Tile<Dim>::bytes, stream>>>(args);
    }
    return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_attention_backward() {
    if (const cudaError_t code = prepare_dim<64>()) return code;
    if (const cudaError_t code = prepare_dim<96>()) return code;
    if (const cudaError_t code = prepare_dim<128>()) return code;
    if (const cudaError_t code = prepare_dim<192>()) return code;
    if (const cudaError_t code = prepare_dim<256>()) return code;
    return prepare_attention_backward_wide();
}

cudaError_t launch_attention_backward(const AttentionBackward& a, bool wide, cudaStream_t stream) {
    const int64_t padded = round_up<int64_t>(a.tokens, block), terms = padded * a.q_heads;
    auto* sums = reinterpret_cast<float*>(a.workspace);
    const AttentionBackArgs args{.a = a,
                                 .factor = a.scale * log2_e,
                                 .padded = padded,
                                 .sums = sums,
                                 .deltas = sums + terms,
                                 .lowest = reinterpret_cast<int*>(sums + 2 * terms)};
    if (wide && (a.dim == 64 || a.dim == 128)) return launch_attention_backward_wide(args, stream);
    if (a.dim == 64) return run_dim<64>(args, stream);
    if (a.dim == 96) return run_dim<96>(args, stream);
    if (a.dim == 128) return run_dim<128>(args, stream);
    if (a.dim == 192) return run_dim<192>(args, stream);
    if (a.dim == 256) return run_dim<256>(args, stream);
    return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
