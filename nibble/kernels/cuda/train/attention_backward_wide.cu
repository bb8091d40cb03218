// The way back through causal attention on Hopper: attention_backward.cu's two kernels on wgmma, for heads of 64 and
// 128 dimensions. Two warpgroups a thread block, 64 rows each; tiles of the other side come by cp.async, two at a time.
//
//   dq    128 queries of a head, over their keys; the sums of rows are the forward's
//   dkv   128 keys of a KV head, over its heads and their queries; scores are computed transposed, so that P and dS are
//         in registers what the next product reads
//
// Sums run over blocks in ascending order, heads first: one order for every launch.
#include "kernels/cuda/train/attention_args.cuh"
#include "kernels/cuda/train/attention_wide.cuh"
#include "kernels/cuda/train/train_launch.h"

#include <climits>

namespace nibble::cuda {
namespace {

constexpr int own = 128, other = 64, threads = 256;  // rows of a thread block, rows of a step

template <int Dim>
constexpr int wide_bytes = 2 * WideTile<Dim, own>::bytes + 4 * WideTile<Dim, other>::bytes + 1024;

__device__ uint32_t whole_kib(uint32_t address) { return (address + 1023u) & ~1023u; }

template <int Dim>
__global__ void __launch_bounds__(threads, Dim == 64 ? 2 : 1)
    dq_wide_kernel(const __grid_constant__ AttentionBackArgs args) {
    using Own = WideTile<Dim, own>;
    using Other = WideTile<Dim, other>;
    extern __shared__ __align__(128) uint8_t wide_tiles[];
    const AttentionBackward& a = args.a;
    const uint32_t base = whole_kib(shared_address(wide_tiles));
    const uint32_t q_tile = base, do_tile = base + Own::bytes, ring = base + 2 * Own::bytes;
    const auto k_tile = [&](int turn) { return ring + (turn & 1) * 2 * Other::bytes; };
    const auto v_tile = [&](int turn) { return k_tile(turn) + Other::bytes; };
    // The last queries, which see most, first.
    const int query0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * own, rows = static_cast<int>(a.tokens);
    const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.q_heads / a.kv_heads);
    const int64_t q_stride = int64_t{a.q_heads} * Dim, kv_stride = int64_t{a.kv_heads} * Dim;
    const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const std::byte *k_rows = a.k + 2 * kv_head * Dim, *v_rows = a.v + 2 * kv_head * Dim;
    const int first_query = query0 + 64 * group, last_query = min(first_query + 63, rows - 1);
    const int begin = lowest_key(a, query0) / other * other;
    const int blocks = (min(query0 + own, rows) - begin + other - 1) / other;
    const auto ask = [&](int turn) {
        const int key0 = begin + turn * other;
        Other::template load<threads>(k_tile(turn), k_rows, key0, a.tokens, kv_stride);
        Other::template load<threads>(v_tile(turn), v_rows, key0, a.tokens, kv_stride);
        tiles_asked_for();
    };
    Own::template load<threads>(q_tile, a.q + 2 * head * Dim, query0, a.tokens, q_stride);
    Own::template load<threads>(do_tile, a.d_o + 2 * head * Dim, query0, a.tokens, q_stride);
    ask(0);
    int query[2], lowest[2];
    float delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        query[half] = first_query + 16 * warp + g + 8 * half;
        const bool present = query[half] < rows;
        lowest[half] = present ? lowest_key(a, query[half]) : INT_MAX;
        float sum = 0.0f;
        if (present) {
            const int64_t at = 2 * (int64_t{query[half]} * q_stride + head * Dim);
#pragma unroll
            for (int i = 8 * c; i < Dim; i += 32) {
                const uint4 x = *reinterpret_cast<const uint4*>(a.o + at + 2 * i),
                            y = *reinterpret_cast<const uint4*>(a.d_o + at + 2 * i);
                const uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum = fmaf(__uint_as_float(left[j] << 16), __uint_as_float(right[j] << 16), sum);
                    sum = fmaf(__uint_as_float(left[j] & 0xFFFF0000u), __uint_as_float(right[j] & 0xFFFF0000u), sum);
                }
            }
        }
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        delta[half] = sum;
    }
    const int all_see_from = first_query < rows ? lowest_key(a, last_query) : INT_MAX;
    const auto visible = [&](int key0, int i) {
        const int key = key0 + i / 4 * 8 + 2 * c + i % 2, half = i / 2 % 2;
        return key <= query[half] && key >= lowest[half];
    };
    float sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sums[half] = query[half] < rows ? a.log_sums[int64_t{query[half]} * a.q_heads + head] : INFINITY;
        if (c == 0 && query[half] < rows) args.deltas[int64_t{head} * a.tokens + query[half]] = delta[half];
    }
    float dq[Dim / 2];
    for (int turn = 0; turn < blocks; ++turn) {
        if (turn + 1 < blocks)
            ask(turn + 1);
        else
            tiles_asked_for();
        wait_for_tiles<1>();
        float s[32], dp[32];
        wgmma_fence();
        queue_scores<Dim, own>(s, q_tile + group * 64 * 128, k_tile(turn));
        wgmma_commit();
        queue_scores<Dim, own>(dp, do_tile + group * 64 * 128, v_tile(turn));
        wgmma_commit();
        wgmma_wait<1>();
        pin(s);
        const int key0 = begin + turn * other;
        const bool whole = key0 >= all_see_from && key0 + other - 1 <= first_query;
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = power_of_2(fmaf(s[i], args.factor, -sums[i / 2 % 2]));
        if (!whole) {
#pragma unroll
            for (int i = 0; i < 32; ++i)
                if (!visible(key0, i)) s[i] = 0.0f;
        }
        wgmma_wait<0>();
        pin(dp);
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] *= dp[i] - delta[i / 2 % 2];
        uint32_t ds[16];
        as_operand(s, ds);
        wgmma_fence();
        queue_product<Dim>(dq, ds, k_tile(turn), turn > 0);
        wgmma_commit();
        wgmma_wait<0>();
        pin(dq);
        __syncthreads();
    }
    store_wide<Dim>(a.dq + 2 * head * Dim, first_query + 16 * warp, a.tokens, a.d_stride, dq, a.scale);
}

template <int Dim>
__global__ void __launch_bounds__(threads, 1) dkv_wide_kernel(const __grid_constant__ AttentionBackArgs args) {
    using Own = WideTile<Dim, own>;
    using Other = WideTile<Dim, other>;
    extern __shared__ __align__(128) uint8_t wide_tiles[];
    // Of the queries of a tile: loaded with it, for a load that is waited for costs more than a product.
    __shared__ float sum_of[2][other], delta_of[2][other];
    __shared__ int first_of[2][other];
    const AttentionBackward& a = args.a;
    const uint32_t base = whole_kib(shared_address(wide_tiles));
    const uint32_t k_tile = base, v_tile = base + Own::bytes, ring = base + 2 * Own::bytes;
    const auto q_tile = [&](int turn) { return ring + (turn & 1) * 2 * Other::bytes; };
    const auto do_tile = [&](int turn) { return q_tile(turn) + Other::bytes; };
    const int key0 = static_cast<int>(blockIdx.x) * own, rows = static_cast<int>(a.tokens);
    const int kv_head = static_cast<int>(blockIdx.y), heads = a.q_heads / a.kv_heads;
    const int64_t q_stride = int64_t{a.q_heads} * Dim, kv_stride = int64_t{a.kv_heads} * Dim;
    const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    // Queries from key0 on, up to the last that sees the last key.
    const int last_key = min(key0 + own, rows) - 1;
    int some = last_key + 1, none = rows;  // `some`: queries below see the block or lie in it
    while (some < none) {
        const int middle = (some + none) / 2;
        if (lowest_key(a, middle) <= last_key)
            some = middle + 1;
        else
            none = middle;
    }
    const int blocks = (some - key0 + other - 1) / other, turns = heads * blocks;
    const auto ask = [&](int turn) {
        const int head = kv_head * heads + turn / blocks, query0 = key0 + turn % blocks * other;
        Other::template load<threads>(q_tile(turn), a.q + 2 * head * Dim, query0, a.tokens, q_stride);
        Other::template load<threads>(do_tile(turn), a.d_o + 2 * head * Dim, query0, a.tokens, q_stride);
        const int which = static_cast<int>(threadIdx.x) / other, at = static_cast<int>(threadIdx.x) % other;
        const bool present = query0 + at < rows;
        const int64_t query = present ? query0 + at : query0;
        if (which == 0)
            copy4_or_zero(shared_address(&sum_of[turn & 1][at]), a.log_sums + query * a.q_heads + head, present);
        if (which == 1)
            copy4_or_zero(shared_address(&delta_of[turn & 1][at]), args.deltas + int64_t{head} * a.tokens + query,
                          present);
        if (which == 2) copy4_or_zero(shared_address(&first_of[turn & 1][at]), a.first + query, present);
        tiles_asked_for();
    };
    // The first key that a query of the tile sees; queries behind the end see none.
    const auto lowest_of = [&](int stage, int query) {
        const int window = a.window > 0 && a.window <= query ? query - static_cast<int>(a.window) + 1 : 0;
        return query < rows ? max(first_of[stage][query % other], window) : INT_MAX;
    };
    Own::template load<threads>(k_tile, a.k + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
    Own::template load<threads>(v_tile, a.v + 2 * kv_head * Dim, key0, a.tokens, kv_stride);
    ask(0);
    float dk[Dim / 2], dv[Dim / 2];
    const int first_key = key0 + 64 * group, own_key = first_key + 16 * warp + g;
    for (int turn = 0; turn < turns; ++turn) {
        if (turn + 1 < turns)
            ask(turn + 1);
        else
            tiles_asked_for();
        wait_for_tiles<1>();
        const int query0 = key0 + turn % blocks * other, stage = turn & 1;
        float p[32], dp[32];  // keys by queries
        wgmma_fence();
        queue_scores<Dim, own>(p, k_tile + group * 64 * 128, q_tile(turn));
        wgmma_commit();
        queue_scores<Dim, own>(dp, v_tile + group * 64 * 128, do_tile(turn));
        wgmma_commit();
        const bool whole = first_key + 63 <= query0 && lowest_of(stage, query0 + other - 1) <= first_key;
        wgmma_wait<1>();
        pin(p);
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const float2 sum = *reinterpret_cast<const float2*>(&sum_of[stage][8 * t + 2 * c]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[4 * t + i] = power_of_2(fmaf(p[4 * t + i], args.factor, i % 2 ? -sum.y : -sum.x));
        }
        if (!whole) {
#pragma unroll
            for (int t = 0; t < 8; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int query = query0 + 8 * t + 2 * c + i, from = lowest_of(stage, query);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int key = own_key + 8 * half;
                        if (key > query || key < from) p[4 * t + 2 * half + i] = 0.0f;
                    }
                }
        }
        uint32_t left[16];
        as_operand(p, left);
        wgmma_fence();
        queue_product<Dim>(dv, left, do_tile(turn), turn > 0);
        wgmma_commit();
        wgmma_wait<1>();  // dp is there
        pin(dp);
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const float2 delta = *reinterpret_cast<const float2*>(&delta_of[stage][8 * t + 2 * c]);
#pragma unroll
            for (int i = 0; i < 4; ++i) p[4 * t + i] *= dp[4 * t + i] - (i % 2 ? delta.y : delta.x);
        }
        uint32_t ds[16];
        as_operand(p, ds);
        wgmma_fence();
        queue_product<Dim>(dk, ds, q_tile(turn), turn > 0);
        wgmma_commit();
        wgmma_wait<0>();
        pin(dv);
        pin(dk);
        __syncthreads();
    }
    store_wide<Dim>(a.dk + 2 * kv_head * Dim, first_key + 16 * warp, a.tokens, a.d_stride, dk, a.scale);
    store_wide<Dim>(a.dv + 2 * kv_head * Dim, first_key + 16 * warp, a.tokens, a.d_stride, dv, 1.0f);
}

template <int Dim>
cudaError_t prepare_wide() {
    if (const cudaError_t code = allow_shared_memory(dq_wide_kernel<Dim>, wide_bytes<Dim>)) return code;
    return allow_shared_memory(dkv_wide_kernel<Dim>, wide_bytes<Dim>);
}

template <int Dim>
cudaError_t run_wide(const AttentionBackArgs& args, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(args.a.tokens, own);
    dq_wide_kernel<Dim>
        <<<dim3(blocks, static_cast<unsigned>(args.a.q_heads)), threads, wide_bytes<Dim>, stream>>>(args);
    if (const cudaError_t code = cudaGetLastError()) return code;
    dkv_wide_kernel<Dim>
        <<<dim3(blocks, static_cast<unsigned>(args.a.kv_heads)), threads, wide_bytes<Dim>, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_attention_backward_wide() {
    if (const cudaError_t code = prepare_wide<64>()) return code;
    return prepare_wide<128>();
}

cudaError_t launch_attention_backward_wide(const AttentionBackArgs& args, cudaStream_t stream) {
    return args.a.dim == 64 ? run_wide<64>(args, stream) : run_wide<128>(args, stream);
}

}  // namespace nibble::cuda
