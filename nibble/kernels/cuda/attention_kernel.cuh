// Attention of up to 16 columns (query token, head) of a KV head at a time. A thread block takes units one after the
// other, in each the groups of 512 positions in order; a warp takes a run of 64 positions of a group: the scores of its
// four tiles of 16, their maximum, then the values. Every warp fills its own ring with halves of tiles, K K K K V V V
// V, and looks ahead over groups and units, so that loads never wait for the sums of a group.
#pragma once

#include "kernels/cuda/attention_cursor.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nibble::cuda {

template <class Kv, KvDims Dims, int Columns>
struct AttentionLayout {
    static constexpr int columns = Columns;
    static constexpr int half_bytes = k_tile_bytes(Kv::type, Dims) > v_tile_bytes(Kv::type, Dims)
                                          ? k_tile_bytes(Kv::type, Dims)
                                          : v_tile_bytes(Kv::type, Dims);
    static constexpr int most_bytes = 227 * 1024;
    static constexpr int sums_floats = attention_warps * columns * Dims.v;  // of a buffer
    static constexpr int buffer_bytes = sums_floats * 4 + attention_warps * columns * 8;
    static constexpr int totals_bytes = columns * Dims.v * 4 + columns * 8;
    static constexpr int ring_of(int buffers) {
        return (most_bytes - buffers * buffer_bytes - totals_bytes) / (attention_warps * (half_bytes + 8));
    }
    // As much on its way as fits: while groups are summed nothing is asked for. (E4M3 with 4 slots and two thread
    // blocks a multiprocessor instead spills registers: 74 us at 16 x 4096.)
    static constexpr int buffers = ring_of(2) >= 4 ? 2 : 1, slots = ring_of(buffers) < 12 ? ring_of(buffers) : 12;
    static constexpr int ring_bytes = attention_warps * slots * half_bytes;
    static constexpr int sums_at = ring_bytes, tops_at = sums_at + buffers * sums_floats * 4;
    static constexpr int totals_at = tops_at + buffers * attention_warps * columns * 8;  // [columns][v], then Share
    static constexpr int barriers_at = totals_at + totals_bytes;
    static constexpr int bytes = barriers_at + attention_warps * slots * 8;
    static constexpr int threads = 32 * attention_warps;
    static_assert(slots >= 2 && bytes <= most_bytes);
};

// Numbers, not KvDims: nvcc cannot name a kernel after a structure.
template <class Kv, int KDims, int VDims, int Columns>
__global__ void __launch_bounds__(32 * attention_warps, 1)
    attention_kernel(const __grid_constant__ AttentionArgs args) {
    constexpr KvDims Dims{KDims, VDims};
    constexpr int Tiles = Columns > 8 ? Columns / 8 : 1;
    using L = AttentionLayout<Kv, Dims, Columns>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const int group = args.q_heads / args.kv_heads;
    ItemCursor item(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), __ldg(args.work), args.kv_heads);
    const uint32_t base = shared_address(shared), ring = base + warp * L::slots * L::half_bytes;
    const uint32_t barriers = base + L::barriers_at + warp * L::slots * 8;

    if (lane < L::slots) barrier_init(barriers + 8 * lane, 1);
    barrier_init_done();
    __syncwarp();
    TileCursor<Kv, Dims> cursor(args, warp, lane, item);
    uint32_t asked = 0, taken = 0;  // halves of tiles, counted through
    const auto ask = [&] {
        int bytes;
        const uint8_t* from = cursor.take(bytes);
        const uint32_t slot = asked++ % L::slots;
        if (lane == 0) {
            barrier_expect(barriers + 8 * slot, bytes);
            bulk_copy(ring + slot * L::half_bytes, from, bytes, barriers + 8 * slot);
        }
    };
    if (args.overlap) {
        while (asked < L::slots && !cursor.done && !cursor.fresh()) ask();
        overlap_next();
        wait_for_previous();
    }
    while (asked < L::slots && !cursor.done) ask();
    const auto half_tile = [&](uint32_t i) {
        const uint32_t slot = (taken + i) % L::slots;
        barrier_wait(barriers + 8 * slot, (taken + i) / L::slots & 1);
        return shared + (ring - base) + slot * L::half_bytes;
    };
    const auto free_half = [&] {
        ++taken;
        __syncwarp();
        if (!cursor.done) ask();
    };

    AttentionUnit unit = read_unit(args, item);
    uint32_t q[Tiles][Dims.k / 8] = {};
    // Only asked for here, used in the next unit.
    const auto load_q = [&](const AttentionUnit& of, const ItemCursor& at) {
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
            const int place = 8 * n + g, column = of.column + place;
            const bool exists = at.more() && place < of.columns;
            const int64_t head = (int64_t{of.row} + column / group) * args.q_heads + at.head * group + column % group;
            const uint8_t* from = args.q + head * args.k_dim * 2;
#pragma unroll
            for (int i = 0; i < Dims.k / 32; ++i) {
                const int d = Kv::q_dim(i, c);
                uint4 v{0, 0, 0, 0};
                if (exists && d < args.k_dim) v = *reinterpret_cast<const uint4*>(from + 2 * d);
                q[n][4 * i] = v.x, q[n][4 * i + 1] = v.y, q[n][4 * i + 2] = v.z, q[n][4 * i + 3] = v.w;
            }
        }
    };
    load_q(unit, item);
    int buffer = 0;
    float* totals = reinterpret_cast<float*>(shared + L::totals_at);
    float2* total_tops = reinterpret_cast<float2*>(totals + L::columns * Dims.v);
#pragma unroll 1
    while (item.more()) {
        const int head = item.head;
        item = item.next();
        const AttentionUnit next = read_unit(args, item);
#pragma unroll
        for (auto& each : q)
#pragma unroll
            for (uint32_t& pair : each) pair = Kv::operand_of(pair);
        const float scale = args.k_scales ? args.scale_log2 * args.k_scales[head] : args.scale_log2;
        const float v_scale = args.v_scales ? args.v_scales[head] : 1.0f;
#pragma unroll 1
        for (int at = 0; at < unit.groups; ++at) {
            const int first = (unit.first_group + at) * group_tokens, position = first + warp * run_tokens;
            const int2 tiles = seen_tiles(unit.first_seen, unit.last_seen, position);
            AttentionRun<Kv, Dims, Tiles> run;
            if (tiles.y > tiles.x) {
                run.clear();
#pragma unroll
                for (int i = 0; i < run_tiles; i += 2) {
                    // Where one of two is not there, both are the other, and it is hidden.
                    const int count = max(0, min(i + 2, tiles.y) - max(i, tiles.x));
                    if (count > 0) {
                        const uint8_t* one = half_tile(0);
                        run.score(i, {one, count > 1 ? half_tile(1) : one}, q, scale, lane);
                        for (int n = 0; n < count; ++n) free_half();
                    }
                }
                const bool all_see = position + run_tokens - 1 <= unit.lowest &&
                                     (!args.window || position > unit.last_seen - args.window);
                if (!all_see) {
                    int of_query[Tiles][2];
#pragma unroll
                    for (int n = 0; n < Tiles; ++n)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            of_query[n][h] = unit.position + (unit.column + 8 * n + 2 * c + h) / group - position;
                    run.hide(of_query, args.window, lane);
                }
                run.exponentials();
#pragma unroll
                for (int i = 0; i < run_tiles; ++i)
                    if (i >= tiles.x && i < tiles.y) {
                        run.value(i, half_tile(0), unit.last_seen - (position + i * kv_tile_tokens) + 1, lane);
                        free_half();
                    }
            }
            if (at + 1 >= unit.groups) load_q(next, item);

            float* sums = reinterpret_cast<float*>(shared + L::sums_at) + buffer * L::sums_floats;
            float2* tops = reinterpret_cast<float2*>(shared + L::tops_at) + buffer * attention_warps * L::columns;
#pragma unroll
            for (int n = 0; n < Tiles; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int column = 8 * n + 2 * c + h;
                    if (column >= unit.columns) continue;
                    if (g == 0)
                        tops[warp * L::columns + column] =
                            tiles.y > tiles.x ? float2{run.top[n][h], run.sum[n][h]} : float2{-INFINITY, 0.0f};
                    if (tiles.y <= tiles.x) continue;
                    float* to = sums + (warp * L::columns + column) * Dims.v + 2 * g;
#pragma unroll
                    for (int v = 0; v < Dims.v / 16; ++v)
                        *reinterpret_cast<float2*>(to + 16 * v) = {run.o[n][v][h], run.o[n][v][h + 2]};
                }
            // With two buffers one barrier a group: the other buffer is written next, this one only after the next
            // barrier.
            __syncthreads();
            const int d = static_cast<int>(threadIdx.x) % Dims.v;
            const auto top_of = [&](int column) { return [=](int r) { return tops[r * L::columns + column]; }; };
            const bool whole = unit.partial < 0 && unit.groups > 1;
#pragma unroll 1
            for (int column = static_cast<int>(threadIdx.x) / Dims.v; column < unit.columns;
                 column += L::threads / Dims.v) {
                Share share;
                merge_shares<group_runs>(share, top_of(column),
                                         [&](int r) { return sums[(r * L::columns + column) * Dims.v + d]; });
                if (whole) {  // every thread has its own elements of the totals
                    float* own = totals + column * Dims.v + d;
                    Share all;
                    if (at > 0) all = {total_tops[column].x, total_tops[column].y, *own};
                    merge_shares<1>(
                        all,
                        [&](int) {
                            return float2{share.top, share.sum};
                        },
                        [&](int) { return share.value; });
                    *own = all.value;
                    share = all;
                }
                if (unit.partial >= 0) {
                    const int64_t to = (int64_t{unit.partial + at} * args.kv_heads + head) * L::columns + column;
                    args.sums[to * Dims.v + d] = share.value;
                    if (d == 0) args.tops[to] = {share.top, share.sum};
                } else if (at + 1 >= unit.groups && d < args.v_dim) {
                    const int place = unit.column + column;
                    const int64_t to =
                        (int64_t{unit.row} + place / group) * args.q_heads + head * group + place % group;
                    reinterpret_cast<__nv_bfloat16*>(args.out)[to * args.v_dim + d] =
                        __float2bfloat16_rn(share.output(v_scale));
                }
            }
            if (whole || L::buffers == 1) {
                __syncthreads();
                // Maxima and sums of the totals, by one thread a column once nobody reads the old ones.
                if (static_cast<int>(threadIdx.x) < unit.columns && whole) {
                    const int column = static_cast<int>(threadIdx.x);
                    Share all, share;
                    if (at > 0) all.top = total_tops[column].x, all.sum = total_tops[column].y;
                    merge_shares<group_runs>(share, top_of(column), [](int) { return 0.0f; });
                    merge_shares<1>(
                        all,
                        [&](int) {
                            return float2{share.top, share.sum};
                        },
                        [](int) { return 0.0f; });
                    total_tops[column] = {all.top, all.sum};
                }
                if (whole) __syncthreads();
            }
            if (L::buffers == 2) buffer ^= 1;
        }
        unit = next;
    }
}

template <class Kv, class Visit>
cudaError_t visit_attention(const AttentionKernelShape& s, Visit visit) {
    const auto with = [&]<KvDims Dims>() {
        if (s.columns == 8) return visit(attention_kernel<Kv, Dims.k, Dims.v, 8>, AttentionLayout<Kv, Dims, 8>{});
        if constexpr (Dims.k < 256)
            if (s.columns == 16)
                return visit(attention_kernel<Kv, Dims.k, Dims.v, 16>, AttentionLayout<Kv, Dims, 16>{});
        if constexpr (Dims.k <= 128)
            if (s.columns == 4) return visit(attention_kernel<Kv, Dims.k, Dims.v, 4>, AttentionLayout<Kv, Dims, 4>{});
        return cudaErrorInvalidValue;
    };
    if (s.dims == KvDims{64, 64}) return with.template operator()<KvDims{64, 64}>();
    if (s.dims == KvDims{128, 128}) return with.template operator()<KvDims{128, 128}>();
    if (s.dims == KvDims{192, 128}) return with.template operator()<KvDims{192, 128}>();
    if (s.dims == KvDims{256, 256}) return with.template operator()<KvDims{256, 256}>();
    return cudaErrorInvalidValue;
}

template <class Kv>
cudaError_t prepare_attention(const AttentionKernelShape& shape, int* blocks_per_multiprocessor) {
    return visit_attention<Kv>(shape, [&](auto kernel, auto layout) {
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes))
            return code;
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, kernel, layout.threads,
                                                             layout.bytes);
    });
}

template <class Kv>
cudaError_t launch_attention(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                             cudaStream_t stream) {
    return visit_attention<Kv>(shape, [&](auto kernel, auto layout) {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = static_cast<unsigned>(blocks);
        config.blockDim = layout.threads;
        config.dynamicSmemBytes = layout.bytes;
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = args.overlap ? 1 : 0;
        return cudaLaunchKernelEx(&config, kernel, args);
    });
}

}  // namespace nibble::cuda
