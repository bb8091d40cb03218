// Attention of up to 16 columns (query token, head) of a KV head at a time. A thread block takes units one after the
// other, in each the groups of 512 positions in order; a warp takes a run of 64 positions of a group: the scores of its
// four tiles of 16, their maximum, then the values. Every warp fills its own ring with halves of tiles, K K K K V V V
// V, and looks ahead over groups and units, so that loads never wait for the sums of a group.
#pragma once

#include "kernels/cuda/attention_order.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nibble::cuda {

inline constexpr int attention_warps = group_runs, run_tiles = run_tokens / kv_tile_tokens;

__device__ inline uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ inline AttentionUnit read_unit(const AttentionArgs& args, int unit) {
    const int4* at = reinterpret_cast<const int4*>(args.work + counts_words + unit * unit_words);
    const int4 a = __ldg(at), b = __ldg(at + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// Positions that some column of a unit sees: [first, last].
struct Seen {
    int first, last, lowest;  // lowest: position of the first column, which sees the least
    __device__ Seen(const AttentionArgs& args, const AttentionUnit& u) {
        const int group = args.q_heads / args.kv_heads;
        lowest = u.position + u.column / group;
        last = u.position + (u.column + u.columns - 1) / group;
        first = args.window ? max(0, lowest - args.window + 1) : 0;
    }
    // Tiles [begin, end) of the run at `position` that hold one of them.
    __device__ int2 tiles(int position) const {
        const int begin = max(0, (first - position) / kv_tile_tokens);
        const int end = min(run_tiles, (last - position + kv_tile_tokens) / kv_tile_tokens);
        return first >= position + run_tokens || last < position ? int2{0, 0} : int2{begin, end};
    }
};

// The halves of tiles that a warp asks for, group after group, unit after unit: where the next one lies. Units and
// pages are read ahead of their use.
template <class Kv, KvDims Dims>
struct TileCursor {
    static constexpr int k_bytes = k_tile_bytes(Kv::type, Dims), v_bytes = v_tile_bytes(Kv::type, Dims);
    struct Run {
        int2 tiles{0, 0};
        int fresh = 0;  // the first position that the kernel before may still write
        int position = 0;
    };
    const AttentionArgs& args;
    int warp, lane, stride, total;
    int item;  // of `unit`: units times KV heads
    AttentionUnit unit{}, ahead{};
    int group = 0;
    Run now{}, next{};
    // Lane t: page and place in it of tile t. The page of the next run is on its way, so nothing is made of it yet.
    const uint8_t* place = nullptr;
    int next_page = 0, next_offset = 0;
    int half = 0;  // of now: K tiles, then V tiles
    bool done = false, last = false;

    __device__ TileCursor(const AttentionArgs& a, int w, int l, int first, int step, int count)
        : args(a), warp(w), lane(l), stride(step), total(count), item(first) {
        if (item < total) unit = read_unit(args, item / args.kv_heads);
        if (item + stride < total) ahead = read_unit(args, (item + stride) / args.kv_heads);
        group = -1;
        find_next();
        go_on();
    }
    // The next run of this warp that has tiles.
    __device__ void find_next() {
        while (true) {
            if (item >= total) {
                last = true;
                return;
            }
            if (++group >= unit.groups) {
                item += stride;
                unit = ahead;
                if (item + stride < total) ahead = read_unit(args, (item + stride) / args.kv_heads);
                group = -1;
                continue;
            }
            const int position = (unit.first_group + group) * group_tokens + warp * run_tokens;
            next = {Seen(args, unit).tiles(position), unit.position, position};
            if (next.tiles.y > next.tiles.x) break;
        }
        if (lane < next.tiles.x || lane >= next.tiles.y) return;
        const int page_tiles = args.page_tokens / kv_tile_tokens, head = item % args.kv_heads;
        const int at = next.position / kv_tile_tokens + lane, in_row = at / page_tiles;
        next_page = __ldg(args.table + unit.table * args.table_pitch + in_row);
        next_offset = (head * page_tiles + at - in_row * page_tiles) * (k_bytes + v_bytes);
    }
    __device__ void go_on() {
        if (last) {
            done = true;
            return;
        }
        now = next;
        place = args.pages + next_page * args.page_stride + next_offset;
        half = 0;
        find_next();
    }
    __device__ int count() const { return now.tiles.y - now.tiles.x; }
    __device__ int tile() const { return now.tiles.x + (half < count() ? half : half - count()); }
    // Whether the kernel before this one may still write the tile.
    __device__ bool fresh() const { return now.position + (tile() + 1) * kv_tile_tokens > now.fresh; }
    // The next half and its size; then goes on. All lanes together.
    __device__ const uint8_t* take(int& bytes) {
        const auto found = __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(place), tile());
        const bool values = half >= count();
        bytes = values ? v_bytes : k_bytes;
        if (++half == 2 * count()) go_on();
        return reinterpret_cast<const uint8_t*>(found) + (values ? k_bytes : 0);
    }
};

template <class Kv, KvDims Dims, int Tiles>
struct AttentionLayout {
    static constexpr int columns = 8 * Tiles;
    static constexpr int half_bytes = k_tile_bytes(Kv::type, Dims) > v_tile_bytes(Kv::type, Dims)
                                          ? k_tile_bytes(Kv::type, Dims)
                                          : v_tile_bytes(Kv::type, Dims);
    static constexpr int slots = half_bytes <= 4096 ? 4 : 2;
    static constexpr int ring_bytes = attention_warps * slots * half_bytes;
    static constexpr int sums_floats = attention_warps * columns * Dims.v;  // of a buffer
    // One buffer where that lets two thread blocks share a multiprocessor.
    static constexpr bool pair = ring_bytes + sums_floats * 4 <= 104 * 1024 && Tiles == 1 && Dims.k <= 128;
    static constexpr int buffers = !pair && ring_bytes + 2 * sums_floats * 4 <= 200 * 1024 ? 2 : 1;
    static constexpr int sums_at = ring_bytes, tops_at = sums_at + buffers * sums_floats * 4;
    static constexpr int totals_at = tops_at + buffers * attention_warps * columns * 8;  // [columns][v] Share
    static constexpr int totals_bytes = columns * Dims.v * 4 + columns * 8;
    static constexpr int barriers_at = totals_at + totals_bytes;
    static constexpr int bytes = barriers_at + attention_warps * slots * 8;
    static constexpr int threads = 32 * attention_warps;
    static constexpr int min_blocks = pair ? 2 : 1;
    static_assert(!pair || bytes <= 113 * 1024);
    static_assert(bytes <= 227 * 1024);
};

// A run of 64 positions for `Tiles` groups of eight columns: a lane has columns 2 c and 2 c + 1 of each.
template <class Kv, KvDims Dims, int Tiles>
struct AttentionRun {
    float t[run_tiles][Tiles][4];  // scores, then exponentials
    float top[Tiles][2], sum[Tiles][2], o[Tiles][Dims.v / 16][4];

    __device__ void clear() {
#pragma unroll
        for (auto& tile : t)
#pragma unroll
            for (auto& four : tile)
#pragma unroll
                for (float& v : four) v = -INFINITY;
#pragma unroll
        for (auto& each : o)
#pragma unroll
            for (auto& four : each)
#pragma unroll
                for (float& v : four) v = 0.0f;
    }
    // limit[tile][h]: position of the column, less that of the tile; window: 0 for all.
    __device__ void score(int i, const uint8_t* tile, const uint32_t (&q)[Tiles][Dims.k / 8], float scale_log2,
                          bool all_see, const int (&limit)[Tiles][2], int window, int lane) {
        float s[Tiles][4] = {};
        Kv::template scores<Dims.k, Tiles>(s, tile, q, lane);
        const int g = lane / 4;
#pragma unroll
        for (int n = 0; n < Tiles; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float v = s[n][e] * scale_log2;
                if (!all_see) {
                    const int token = g / 2 * 4 + g % 2 + e / 2 * 2, behind = limit[n][e % 2] - token;
                    if (behind < 0 || (window && behind >= window)) v = -INFINITY;
                }
                t[i][n][e] = v;
            }
    }
    __device__ void exponentials() {
#pragma unroll
        for (int n = 0; n < Tiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float most = -INFINITY;
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) most = fmaxf(most, fmaxf(t[i][n][h], t[i][n][h + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(all_lanes, most, step));
                top[n][h] = most;
                const float base = most == -INFINITY ? 0.0f : most;
                float all = 0.0f;
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) {
                    t[i][n][h] = exp2_of(t[i][n][h] - base);
                    t[i][n][h + 2] = exp2_of(t[i][n][h + 2] - base);
                    all += t[i][n][h] + t[i][n][h + 2];
                }
#pragma unroll
                for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(all_lanes, all, step);
                sum[n][h] = all;
            }
    }
    // `exist`: tokens of the tile that somebody sees or saw; others may hold anything.
    __device__ void value(int i, const uint8_t* tile, int exist, int lane) {
        uint32_t p[Tiles][2];
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
            p[n][0] = transposed(Kv::pack(t[i][n][0], t[i][n][1]));
            p[n][1] = transposed(Kv::pack(t[i][n][2], t[i][n][3]));
        }
        if (exist >= kv_tile_tokens)
            Kv::template values<Dims.v, Tiles, false>(o, tile, p, lane, 4);
        else
            Kv::template values<Dims.v, Tiles, true>(o, tile, p, lane, exist - lane % 4 * 4);
    }
};

// Numbers, not KvDims: nvcc cannot name a kernel after a structure.
template <class Kv, int KDims, int VDims, int Tiles>
__global__ void __launch_bounds__(AttentionLayout<Kv, KvDims{KDims, VDims}, Tiles>::threads,
                                  AttentionLayout<Kv, KvDims{KDims, VDims}, Tiles>::min_blocks)
    attention_kernel(const __grid_constant__ AttentionArgs args) {
    constexpr KvDims Dims{KDims, VDims};
    using L = AttentionLayout<Kv, Dims, Tiles>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const int group = args.q_heads / args.kv_heads, stride = static_cast<int>(gridDim.x);
    const int total = __ldg(args.work) * args.kv_heads;
    const uint32_t base = shared_address(shared), ring = base + warp * L::slots * L::half_bytes;
    const uint32_t barriers = base + L::barriers_at + warp * L::slots * 8;

    if (lane < L::slots) barrier_init(barriers + 8 * lane, 1);
    barrier_init_done();
    __syncwarp();
    TileCursor<Kv, Dims> cursor(args, warp, lane, static_cast<int>(blockIdx.x), stride, total);
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
    const auto half_tile = [&] {
        const uint32_t slot = taken % L::slots;
        barrier_wait(barriers + 8 * slot, taken / L::slots & 1);
        return shared + (ring - base) + slot * L::half_bytes;
    };
    const auto free_half = [&] {
        ++taken;
        __syncwarp();
        if (!cursor.done) ask();
    };

    AttentionUnit unit{}, next{};
    if (static_cast<int>(blockIdx.x) < total) unit = read_unit(args, static_cast<int>(blockIdx.x) / args.kv_heads);
    uint32_t q[Tiles][Dims.k / 8] = {};
    // Only asked for here, used in the next unit.
    const auto load_q = [&](const AttentionUnit& of, int item) {
        if (item >= total) return;
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
            const int place = 8 * n + g, column = of.column + place;
            const bool exists = place < of.columns;
            const int64_t head =
                (int64_t{of.row} + column / group) * args.q_heads + item % args.kv_heads * group + column % group;
#pragma unroll
            for (int i = 0; i < Dims.k / 32; ++i) {
                const int d = Kv::q_dim(i, c);
                uint4 v{0, 0, 0, 0};
                if (exists && d < args.k_dim) v = *reinterpret_cast<const uint4*>(args.q + (head * args.k_dim + d) * 2);
                q[n][4 * i] = v.x, q[n][4 * i + 1] = v.y, q[n][4 * i + 2] = v.z, q[n][4 * i + 3] = v.w;
            }
        }
    };
    load_q(unit, static_cast<int>(blockIdx.x));
    int buffer = 0;
    float* totals = reinterpret_cast<float*>(shared + L::totals_at);
    float2* total_tops = reinterpret_cast<float2*>(totals + L::columns * Dims.v);
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < total; item += stride) {
        const int head = item % args.kv_heads;
        if (item + stride < total) next = read_unit(args, (item + stride) / args.kv_heads);
#pragma unroll
        for (auto& each : q)
#pragma unroll
            for (uint32_t& pair : each) pair = Kv::operand_of(pair);
        const float scale = args.k_scales ? args.scale_log2 * args.k_scales[head] : args.scale_log2;
        const float v_scale = args.v_scales ? args.v_scales[head] : 1.0f;
        const Seen seen(args, unit);
#pragma unroll 1
        for (int at = 0; at < max(unit.groups, 1); ++at) {
            const int first = (unit.first_group + at) * group_tokens, position = first + warp * run_tokens;
            const int2 tiles = unit.groups ? seen.tiles(position) : int2{0, 0};
            AttentionRun<Kv, Dims, Tiles> run;
            if (tiles.y > tiles.x) {
                run.clear();
                int limit[Tiles][2];
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) {
                    if (i < tiles.x || i >= tiles.y) continue;
                    const int tile_position = position + i * kv_tile_tokens;
                    const bool all_see = tile_position + kv_tile_tokens - 1 <= seen.lowest &&
                                         (!args.window || tile_position > seen.last - args.window);
                    if (!all_see)
#pragma unroll
                        for (int n = 0; n < Tiles; ++n)
#pragma unroll
                            for (int h = 0; h < 2; ++h)
                                limit[n][h] = unit.position + (unit.column + 8 * n + 2 * c + h) / group - tile_position;
                    run.score(i, half_tile(), q, scale, all_see, limit, args.window, lane);
                    free_half();
                }
                run.exponentials();
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) {
                    if (i < tiles.x || i >= tiles.y) continue;
                    run.value(i, half_tile(), seen.last - (position + i * kv_tile_tokens) + 1, lane);
                    free_half();
                }
            }
            if (at + 1 >= unit.groups) load_q(next, item + stride);

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
        if (s.columns == 8) return visit(attention_kernel<Kv, Dims.k, Dims.v, 1>, AttentionLayout<Kv, Dims, 1>{});
        if constexpr (Dims.k < 256)
            if (s.columns == 16) return visit(attention_kernel<Kv, Dims.k, Dims.v, 2>, AttentionLayout<Kv, Dims, 2>{});
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
