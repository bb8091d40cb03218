// dK and dV with wgmma: a thread block has 64 keys of a KV head per warpgroup and iterates over the queries that see
// them, head after head. Scores are computed transposed, so that P and dS are already the register operands of the next
// product.
//
// In an iteration, the scores of the next tile of queries, dV and dK from the current P and dS, and V dO^T of the next
// tile are queued together; the next exponentials are computed while the last three run.
#include "kernels/cuda/attention/sm90_attention_backward.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

template <int Dim>
struct Dkv {
    using Tile = AttentionBackwardTile<Dim>;
    static constexpr int workers = Dim == 64 ? 1 : 2, blocks = Dim == 64 ? 2 : 1;  // blocks: per multiprocessor
    static constexpr int stages = Dim == 64 ? 3 : 4, own_rows = 64 * workers, threads = 128 * workers;
    // Ring buffer of Q and dO, and of their queries' sums, deltas and lowest keys.
    static constexpr int ring_at = 2 * workers * Tile::bytes, slot_bytes = 2 * Tile::bytes;
    static constexpr int terms_at = ring_at + stages * slot_bytes, term_bytes = 4 * 64, terms_bytes = 3 * term_bytes;
    static constexpr int barriers_at = terms_at + stages * terms_bytes;
    static constexpr int bytes = barriers_at + WideBarriers<workers, stages>::bytes + 1024;
};

// Returns the query after the last one that sees a key at or below `key`; all earlier ones see one too. Called by a
// warp, 32 queries at a time.
__device__ int end_of_queries(const AttentionBackward& a, int key) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int see = key + 1, end = static_cast<int>(a.tokens);  // queries below `see` see one, those from `end` on do not
    while (see < end) {
        const int step = (end - see + 31) / 32, probe = see + lane * step;
        const unsigned yes = __ballot_sync(0xFFFFFFFFu, probe < end && lowest_key(a, probe) <= key);
        const int count = __popc(yes);
        end = min(end, see + count * step);
        if (count > 0) see += (count - 1) * step + 1;
    }
    return see;
}

template <int Dim>
__global__ void __launch_bounds__(Dkv<Dim>::threads, Dkv<Dim>::blocks)
    sm90_attention_backward_dkv_kernel(const __grid_constant__ AttentionBackArgs args,
                                       const __grid_constant__ AttentionBackMaps maps) {
    using S = Dkv<Dim>;
    using Tile = AttentionBackwardTile<Dim>;
    using Place = WidePlace<S::stages>;
    extern __shared__ __align__(128) uint8_t wide_memory[];
    const AttentionBackward& a = args.a;
    const uint32_t unaligned = shared_address(wide_memory), base = (unaligned + 1023u) & ~1023u;
    const uint8_t* all_terms = wide_memory + (base - unaligned) + S::terms_at;
    const WideBarriers<S::workers, S::stages> barriers(base + S::barriers_at);
    const int key0 = static_cast<int>(blockIdx.y) * S::own_rows, rows = static_cast<int>(a.tokens);
    const int kv_head = static_cast<int>(blockIdx.x), heads = a.q_heads / a.kv_heads;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = S::workers == 1 ? 0 : __shfl_sync(0xFFFFFFFFu, warp / 4, 0), g = lane / 4, c = lane % 4;
    const bool asks = threadIdx.x == 0;
    if (asks) {
        barriers.init();
        barrier_expect(barriers.own, 2 * S::workers * Tile::bytes);
        for (int w = 0; w < S::workers; ++w) {
            Tile::load(base + w * Tile::bytes, &maps.k, key0 + 64 * w, kv_head, barriers.own);
            Tile::load(base + (S::workers + w) * Tile::bytes, &maps.v, key0 + 64 * w, kv_head, barriers.own);
        }
    }
    const int tiles = (end_of_queries(a, min(key0 + S::own_rows, rows) - 1) - key0 + 63) / 64, turns = heads * tiles;
    const auto q_tile = [&](const Place& at) { return base + S::ring_at + at.slot * S::slot_bytes; };
    const auto do_tile = [&](const Place& at) { return q_tile(at) + Tile::bytes; };
    int asked_tile = 0, asked_head = kv_head * heads;
    const auto ask = [&](const Place& at) {
        const uint32_t full = barriers.full + 8 * at.slot, terms = base + S::terms_at + at.slot * S::terms_bytes;
        const int query0 = key0 + 64 * asked_tile;
        const int64_t of_head = asked_head * args.padded + query0;
        barrier_expect(full, S::slot_bytes + S::terms_bytes);
        Tile::load(q_tile(at), &maps.q, query0, asked_head, full);
        Tile::load(do_tile(at), &maps.d_o, query0, asked_head, full);
        bulk_copy(terms, args.sums + of_head, S::term_bytes, full);
        bulk_copy(terms + S::term_bytes, args.deltas + of_head, S::term_bytes, full);
        bulk_copy(terms + 2 * S::term_bytes, args.lowest + query0, S::term_bytes, full);
        if (++asked_tile == tiles) asked_tile = 0, ++asked_head;
    };
    if (asks)
        for (int turn = 0; turn < min(S::stages, turns); ++turn) ask({static_cast<uint32_t>(turn), 0});
    __syncthreads();
    const int first_key = key0 + 64 * group, own_key = key0 + 16 * warp + g;
    barrier_wait(barriers.own, 0);
    const WideRows<Dim> k(base + group * Tile::bytes), v(base + (S::workers + group) * Tile::bytes);
    float p[32], dp[32], dk[Dim / 2], dv[Dim / 2];  // p, dp: [keys][queries]
    uint32_t left[16], ds[16];
    int tile = 0;  // tile of exponentials()
    // Terms of queries 8 t + 2 c and 8 t + 2 c + 1.
    const auto term = [&]<class Two>(const Place& at, int which, int t, Two) {
        return *reinterpret_cast<const Two*>(all_terms + at.slot * S::terms_bytes + which * S::term_bytes +
                                             4 * (8 * t + 2 * c));
    };
    const auto exponentials = [&](const Place& at) {
        const int query0 = key0 + 64 * tile;
        if (++tile == tiles) tile = 0;
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const float2 sum = term(at, 0, t, float2{});
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[4 * t + i] = power_of_2(fmaf(p[4 * t + i], args.factor, i % 2 ? -sum.y : -sum.x));
        }
        const int* lowest = reinterpret_cast<const int*>(all_terms + at.slot * S::terms_bytes + 2 * S::term_bytes);
        if (first_key + 63 <= query0 && lowest[63] <= first_key) return;
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const int2 from = term(at, 2, t, int2{});
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int query = query0 + 8 * t + 2 * c + i % 2, key = own_key + 8 * (i / 2);
                if (key > query || key < (i % 2 ? from.y : from.x)) p[4 * t + i] = 0.0f;
            }
        }
    };
    const auto slopes = [&](const Place& at) {
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const float2 delta = term(at, 1, t, float2{});
#pragma unroll
            for (int i = 0; i < 4; ++i) p[4 * t + i] *= dp[4 * t + i] - (i % 2 ? delta.y : delta.x);
        }
        as_operand(p, ds);
    };
    Place now;
    barrier_wait(barriers.full, 0);
    wgmma_fence();
    k.queue(p, q_tile(now));
    v.queue(dp, do_tile(now));
    wgmma_wait<1>();
    pin(p);
    exponentials(now);
    as_operand(p, left);
    wgmma_wait<0>();
    pin(dp);
    slopes(now);
#pragma unroll 1
    for (int turn = 0; turn + 1 < turns; ++turn) {
        const Place next = now.next();
        barrier_wait(barriers.full + 8 * next.slot, next.parity);
        wgmma_fence();
        k.queue(p, q_tile(next));
        queue_product<Dim>(dv, left, do_tile(now), turn > 0);
        queue_product<Dim>(dk, ds, q_tile(now), turn > 0);
        wgmma_commit();
        v.queue(dp, do_tile(next));
        if (asks && turn > 0 && turn - 1 + S::stages < turns) {
            const Place free = now.before();
            barrier_wait(barriers.empty + 8 * free.slot, free.parity);
            ask(free);
        }
        __syncwarp();
        wgmma_wait<2>();
        pin(p);
        exponentials(next);
        wgmma_wait<1>();
        pin(dk);
        pin(dv);
        barrier_arrive_if(barriers.empty + 8 * now.slot, lane == 0);
        as_operand(p, left);
        wgmma_wait<0>();
        pin(dp);
        slopes(next);
        now = next;
    }
    wgmma_fence();
    queue_product<Dim>(dv, left, do_tile(now), turns > 1);
    queue_product<Dim>(dk, ds, q_tile(now), turns > 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    store_wide<Dim>(a.dk + 2 * kv_head * Dim, first_key, a.tokens, a.d_stride, dk, a.scale);
    store_wide<Dim>(a.dv + 2 * kv_head * Dim, first_key, a.tokens, a.d_stride, dv, 1.0f);
}

template <int Dim>
cudaError_t run(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream) {
    using S = Dkv<Dim>;
    const dim3 grid(static_cast<unsigned>(args.a.kv_heads), ceil_blocks(args.a.tokens, S::own_rows));
    sm90_attention_backward_dkv_kernel<Dim><<<grid, S::threads, S::bytes, stream>>>(args, maps);
    return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_dkv_wide() {
    if (const cudaError_t code = allow_shared_memory(sm90_attention_backward_dkv_kernel<64>, Dkv<64>::bytes))
        return code;
    return allow_shared_memory(sm90_attention_backward_dkv_kernel<128>, Dkv<128>::bytes);
}

cudaError_t launch_dkv_wide(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream) {
    return args.a.dim == 64 ? run<64>(args, maps, stream) : run<128>(args, maps, stream);
}

}  // namespace nibble::cuda
