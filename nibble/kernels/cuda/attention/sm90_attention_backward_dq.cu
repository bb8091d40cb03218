// dQ with wgmma: a thread block has 64 queries of a head per warpgroup and iterates over their keys.
//
// In an iteration, the scores of the next tile of keys, dQ from the current dS, and dO V^T of the next tile are queued
// together; the next exponentials are computed while the last two run.
#include "kernels/cuda/attention/sm90_attention_backward.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

template <int Dim>
struct Dq {
    using Tile = AttentionBackwardTile<Dim>;
    static constexpr int workers = Dim == 64 ? 1 : 2, blocks = Dim == 64 ? 3 : 1;  // blocks: per multiprocessor
    static constexpr int stages = Dim == 64 ? 3 : 4, own_rows = 64 * workers, threads = 128 * workers;
    static constexpr int ring_at = 2 * workers * Tile::bytes, slot_bytes = 2 * Tile::bytes;  // K, V
    static constexpr int barriers_at = ring_at + stages * slot_bytes;
    static constexpr int bytes = barriers_at + WideBarriers<workers, stages>::bytes + 1024;
};

template <int Dim>
__global__ void __launch_bounds__(Dq<Dim>::threads, Dq<Dim>::blocks)
    sm90_attention_backward_dq_kernel(const __grid_constant__ AttentionBackArgs args,
                                      const __grid_constant__ AttentionBackMaps maps) {
    using S = Dq<Dim>;
    using Tile = AttentionBackwardTile<Dim>;
    using Place = WidePlace<S::stages>;
    extern __shared__ __align__(128) uint8_t wide_memory[];
    const AttentionBackward& a = args.a;
    const uint32_t base = (shared_address(wide_memory) + 1023u) & ~1023u;
    const WideBarriers<S::workers, S::stages> barriers(base + S::barriers_at);
    // The last queries see most keys and run first.
    const int query0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * S::own_rows, rows = static_cast<int>(a.tokens);
    const int head = static_cast<int>(blockIdx.x), kv_head = head / (a.q_heads / a.kv_heads);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, c = lane % 4;
    const int group = S::workers == 1 ? 0 : __shfl_sync(0xFFFFFFFFu, warp / 4, 0);
    const int begin = lowest_key(a, query0) / 64 * 64;
    const int turns = (min(query0 + S::own_rows, rows) - begin + 63) / 64;
    const bool asks = threadIdx.x == 0;
    const auto k_tile = [&](const Place& at) { return base + S::ring_at + at.slot * S::slot_bytes; };
    const auto v_tile = [&](const Place& at) { return k_tile(at) + Tile::bytes; };
    const auto ask = [&](int turn, const Place& at) {
        const uint32_t full = barriers.full + 8 * at.slot;
        barrier_expect(full, S::slot_bytes);
        Tile::load(k_tile(at), &maps.k, begin + 64 * turn, kv_head, full);
        Tile::load(v_tile(at), &maps.v, begin + 64 * turn, kv_head, full);
    };
    if (asks) {
        barriers.init();
        barrier_expect(barriers.own, 2 * S::workers * Tile::bytes);
        for (int w = 0; w < S::workers; ++w) {
            Tile::load(base + w * Tile::bytes, &maps.q, query0 + 64 * w, head, barriers.own);
            Tile::load(base + (S::workers + w) * Tile::bytes, &maps.d_o, query0 + 64 * w, head, barriers.own);
        }
        for (int turn = 0; turn < min(S::stages, turns); ++turn) ask(turn, {static_cast<uint32_t>(turn), 0});
    }
    __syncthreads();
    const QueryRows<Dim> own(args, query0 + 16 * warp, head);
    const int first_query = query0 + 64 * group;
    const int all_see_from = first_query < rows ? lowest_key(a, min(first_query + 63, rows - 1)) : INT_MAX;
    barrier_wait(barriers.own, 0);
    const WideRows<Dim> q(base + group * Tile::bytes), d_o(base + (S::workers + group) * Tile::bytes);
    float s[32], dp[32], dq[Dim / 2];
    uint32_t ds[16];
    const auto exponentials = [&](int turn) {
        const int key0 = begin + 64 * turn;
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = power_of_2(fmaf(s[i], args.factor, -own.sum[i / 2 % 2]));
        if (key0 >= all_see_from && key0 + 63 <= first_query) return;
#pragma unroll
        for (int i = 0; i < 32; ++i)
            if (!own.sees(key0 + i / 4 * 8 + 2 * c + i % 2, i / 2 % 2)) s[i] = 0.0f;
    };
    const auto slopes = [&] {
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] *= dp[i] - own.delta[i / 2 % 2];
        as_operand(s, ds);
    };
    Place now;
    barrier_wait(barriers.full, 0);
    wgmma_fence();
    q.queue(s, k_tile(now));
    d_o.queue(dp, v_tile(now));
    wgmma_wait<1>();
    pin(s);
    exponentials(0);
    wgmma_wait<0>();
    pin(dp);
    slopes();
#pragma unroll 1
    for (int turn = 0; turn + 1 < turns; ++turn) {
        const Place next = now.next();
        barrier_wait(barriers.full + 8 * next.slot, next.parity);
        wgmma_fence();
        q.queue(s, k_tile(next));
        queue_product<Dim>(dq, ds, k_tile(now), turn > 0);
        wgmma_commit();
        d_o.queue(dp, v_tile(next));
        if (asks && turn > 0 && turn - 1 + S::stages < turns) {
            const Place free = now.before();
            barrier_wait(barriers.empty + 8 * free.slot, free.parity);
            ask(turn - 1 + S::stages, free);
        }
        __syncwarp();
        wgmma_wait<2>();
        pin(s);
        exponentials(turn + 1);
        wgmma_wait<1>();
        pin(dq);
        barrier_arrive_if(barriers.empty + 8 * now.slot, lane == 0);
        wgmma_wait<0>();
        pin(dp);
        slopes();
        now = next;
    }
    wgmma_fence();
    queue_product<Dim>(dq, ds, k_tile(now), turns > 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dq);
    store_wide<Dim>(a.dq + 2 * head * Dim, first_query, a.tokens, a.d_stride, dq, a.scale);
}

template <int Dim>
cudaError_t run(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream) {
    using S = Dq<Dim>;
    const dim3 grid(static_cast<unsigned>(args.a.q_heads), ceil_blocks(args.a.tokens, S::own_rows));
    sm90_attention_backward_dq_kernel<Dim><<<grid, S::threads, S::bytes, stream>>>(args, maps);
    return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_dq_wide() {
    if (const cudaError_t code = allow_shared_memory(sm90_attention_backward_dq_kernel<64>, Dq<64>::bytes)) return code;
    return allow_shared_memory(sm90_attention_backward_dq_kernel<128>, Dq<128>::bytes);
}

cudaError_t launch_dq_wide(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream) {
    return args.a.dim == 64 ? run<64>(args, maps, stream) : run<128>(args, maps, stream);
}

}  // namespace nibble::cuda
