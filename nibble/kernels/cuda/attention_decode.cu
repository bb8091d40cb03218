// One query token per sequence over the paged cache. A thread block takes units (512 positions of a sequence, one KV
// head) one after the other; a warp takes a run of 64 positions of each, as four tiles of 16. Every warp fills its own
// ring of tiles and looks ahead over units, so that loads never wait for the sums of a unit.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace nibble::cuda {
namespace {

constexpr int slots = 2, warps = group_runs, run_tiles = run_tokens / kv_tile_tokens;
constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ uint4 shared_load(const uint8_t* at) { return *reinterpret_cast<const uint4*>(at); }

// Bytes of the tokens 4 c + i, i < count, of a word pair or of a word.
__device__ uint32_t bytes_below(int count, int bytes) {
    const int bits = 8 * bytes * count;
    return bits >= 32 ? 0xFFFFFFFFu : bits <= 0 ? 0u : (1u << bits) - 1u;
}

// The two kinds of cache: what a lane holds of q, the products of a tile with it and with the probabilities.
struct Bf16Kv {
    static constexpr KvType type = KvType::bf16;
    static constexpr int min_blocks = 1;

    static __device__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    // In bytes of q, of a lane's load i = 0 ... 3.
    static __device__ int q_offset(int i, int c) { return 64 * i + 16 * c; }
    static __device__ void convert_q(uint32_t (&)[16]) {}
    static __device__ void scores(float (&s)[2][4], const uint8_t* tile, const uint32_t (&q)[16], int lane) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const uint4 upper = shared_load(tile + 1024 * p + 16 * lane);
            const uint4 lower = shared_load(tile + 1024 * p + 512 + 16 * lane);
            multiply_add(s[p % 2], upper.x, lower.x, upper.y, lower.y, q[4 * p], q[4 * p + 1]);
            multiply_add(s[p % 2], upper.z, lower.z, upper.w, lower.w, q[4 * p + 2], q[4 * p + 3]);
        }
    }
    static __device__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    // `valid`: of the lane's four tokens, those that exist.
    template <bool Tail>
    static __device__ void values(float (&o)[8][4], const uint8_t* tile, uint32_t b0, uint32_t b1, int lane,
                                  int valid) {
#pragma unroll
        for (int v = 0; v < 8; ++v) {
            uint4 w = shared_load(tile + kv_half_tile_bytes(type) + 512 * v + 16 * lane);
            if (Tail) {
                const uint32_t first = bytes_below(valid, 2), second = bytes_below(valid - 2, 2);
                w.x &= first, w.z &= first, w.y &= second, w.w &= second;
            }
            multiply_add(o[v], w.x, w.z, w.y, w.w, b0, b1);
        }
    }
};

struct E4m3Kv {
    static constexpr KvType type = KvType::e4m3;
    static constexpr int min_blocks = 2;

    static __device__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    static __device__ uint32_t pack(float low, float high) {
        const __half2 v = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ uint32_t halves_of(uint32_t two_bf16) {
        constexpr float most = 65504.0f;
        const float low = __uint_as_float(two_bf16 << 16), high = __uint_as_float(two_bf16 & 0xFFFF0000u);
        return pack(fminf(fmaxf(low, -most), most), fminf(fmaxf(high, -most), most));
    }
    static __device__ int q_offset(int i, int c) { return 128 * (i / 2) + 32 * c + 16 * (i % 2); }
    static __device__ void convert_q(uint32_t (&q)[16]) {
#pragma unroll
        for (uint32_t& pair : q) pair = halves_of(pair);
    }
    static __device__ uint32_t two(uint32_t word, bool upper) {
        uint32_t y;
        const auto x = static_cast<uint16_t>(upper ? word >> 16 : word);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
        return y;
    }
    static __device__ void scores(float (&s)[2][4], const uint8_t* tile, const uint32_t (&q)[16], int lane) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const uint4 upper = shared_load(tile + 1024 * p + 16 * lane);
            const uint4 lower = shared_load(tile + 1024 * p + 512 + 16 * lane);
            const uint32_t u[4] = {upper.x, upper.y, upper.z, upper.w}, l[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
            for (int k = 0; k < 4; ++k)
                multiply_add(s[p], two(u[k], false), two(l[k], false), two(u[k], true), two(l[k], true),
                             q[8 * p + 2 * k], q[8 * p + 2 * k + 1]);
        }
    }
    template <bool Tail>
    static __device__ void values(float (&o)[8][4], const uint8_t* tile, uint32_t b0, uint32_t b1, int lane,
                                  int valid) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            uint4 w = shared_load(tile + kv_half_tile_bytes(type) + 512 * v + 16 * lane);
            if (Tail) {
                const uint32_t mask = bytes_below(valid, 1);
                w.x &= mask, w.y &= mask, w.z &= mask, w.w &= mask;
            }
            multiply_add(o[2 * v], two(w.x, false), two(w.y, false), two(w.x, true), two(w.y, true), b0, b1);
            multiply_add(o[2 * v + 1], two(w.z, false), two(w.w, false), two(w.z, true), two(w.w, true), b0, b1);
        }
    }
};

// A run of up to 64 positions: maximum so far, sum of exponentials, values. A lane has two heads: 2 c and 2 c + 1.
struct Run {
    float top[2], sum[2], o[8][4];

    __device__ void clear() {
#pragma unroll
        for (int h = 0; h < 2; ++h) top[h] = -INFINITY, sum[h] = 0.0f;
#pragma unroll
        for (auto& row : o)
#pragma unroll
            for (float& v : row) v = 0.0f;
    }

    // `tokens` of the tile exist, at least one.
    template <class Kv, bool Tail>
    __device__ void add(const uint8_t* tile, const uint32_t (&q)[16], float scale_log2, int tokens, int lane) {
        const int g = lane / 4, c = lane % 4;
        float s[2][4] = {};
        Kv::scores(s, tile, q, lane);
        float t[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            t[i] = (s[0][i] + s[1][i]) * scale_log2;
            if (Tail && g / 2 * 4 + g % 2 + i / 2 * 2 >= tokens) t[i] = -INFINITY;
        }
        float now[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            now[h] = fmaxf(t[h], t[h + 2]);
#pragma unroll
            for (int step = 4; step < 32; step *= 2) now[h] = fmaxf(now[h], __shfl_xor_sync(all_lanes, now[h], step));
            now[h] = fmaxf(now[h], top[h]);
        }
        if (__any_sync(all_lanes, now[0] != top[0] || now[1] != top[1])) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float shrink = exp2_of(top[h] - now[h]);
                top[h] = now[h];
                sum[h] *= shrink;
#pragma unroll
                for (auto& row : o) row[h] *= shrink, row[h + 2] *= shrink;
            }
        }
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = exp2_of(t[i] - top[i % 2]);
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[h] += p[h] + p[h + 2];
        const uint32_t b0 = transposed(Kv::pack(p[0], p[1])), b1 = transposed(Kv::pack(p[2], p[3]));
        Kv::template values<Tail>(o, tile, b0, b1, lane, tokens - 4 * c);
    }
};

// The tiles of a warp, unit after unit: where the next one lies. Units and pages are read ahead of their use.
template <class Kv>
struct Cursor {
    const AttentionArgs& args;
    int warp, lane, stride, total, unit;
    int tile = 0, tiles = 0;
    AttentionUnit now{}, next{}, later{};
    // Lane t: page and place in it of tile t. The page of the next unit is on its way, so nothing is made of it yet.
    const uint8_t* place = nullptr;
    int next_page = 0, next_offset = 0;

    __device__ Cursor(const AttentionArgs& a, int w, int l, int first, int step, int count)
        : args(a), warp(w), lane(l), stride(step), total(count), unit(first) {
        next = read(unit);
        later = read(unit + stride);
        read_page(unit);
        unit -= stride;
        skip();
    }
    __device__ AttentionUnit read(int u) const {
        if (u >= total) return {};
        const int4 v = __ldg(reinterpret_cast<const int4*>(args.units + u / args.kv_heads));
        return {v.x, v.y, v.z, v.w};
    }
    __device__ int tiles_of(const AttentionUnit& u) const {
        return max(0, min(run_tiles, (u.tokens - warp * run_tokens + kv_tile_tokens - 1) / kv_tile_tokens));
    }
    // Of `next`, which is unit `u`.
    __device__ void read_page(int u) {
        if (lane >= tiles_of(next)) return;
        const int page_tiles = args.page_tokens / kv_tile_tokens;
        const int at = (next.first + warp * run_tokens) / kv_tile_tokens + lane, in_row = at / page_tiles;
        next_page = __ldg(args.table + next.sequence * args.table_pitch + in_row);
        next_offset = (u % args.kv_heads * page_tiles + at - in_row * page_tiles) * kv_tile_bytes(Kv::type);
    }
    __device__ void skip() {
        while (tile == tiles && unit < total) {
            unit += stride;
            now = next, next = later;
            place = args.pages + next_page * args.page_bytes + next_offset;
            read_page(unit + stride);
            later = read(unit + 2 * stride);
            tile = 0, tiles = tiles_of(now);
        }
    }
    __device__ bool more() const { return unit < total; }
    // Whether the kernel before this one may still write the tile.
    __device__ bool newest() const {
        return now.newest && warp * run_tokens + (tile + 1) * kv_tile_tokens >= now.tokens;
    }
    // The address of the tile; then goes on. All lanes together.
    __device__ const uint8_t* take() {
        const auto found = __shfl_sync(all_lanes, reinterpret_cast<unsigned long long>(place), tile);
        ++tile;
        skip();
        return reinterpret_cast<const uint8_t*>(found);
    }
};

template <class Kv, int Heads>
struct Layout {
    static constexpr int tile_bytes = kv_tile_bytes(Kv::type);
    static constexpr int sums_at = warps * slots * tile_bytes;
    static constexpr int sums_floats = warps * Heads * kv_head_dim;  // one of two buffers
    static constexpr int tops_at = sums_at + 2 * sums_floats * 4;
    static constexpr int barriers_at = tops_at + 2 * warps * Heads * 8;
    static constexpr int bytes = barriers_at + warps * slots * 8;
    static constexpr int min_blocks = Heads == 4 ? Kv::min_blocks : 1;
};

template <class Kv, int Heads>
__global__ void __launch_bounds__(32 * warps, Layout<Kv, Heads>::min_blocks)
    decode_kernel(const __grid_constant__ AttentionArgs args) {
    using L = Layout<Kv, Heads>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, c = lane % 4;
    const int group = args.q_heads / args.kv_heads;
    const int total = __ldg(args.first_unit + args.sequences) * args.kv_heads, stride = static_cast<int>(gridDim.x);
    const uint32_t base = shared_address(shared);
    const uint32_t ring = base + warp * slots * L::tile_bytes, barriers = base + L::barriers_at + warp * slots * 8;

    if (lane < slots) barrier_init(barriers + 8 * lane, 1);
    barrier_init_done();
    __syncwarp();
    Cursor<Kv> cursor(args, warp, lane, static_cast<int>(blockIdx.x), stride, total);
    uint32_t asked = 0, taken = 0;  // tiles, counted through
    const auto ask = [&] {
        const uint8_t* from = cursor.take();
        const uint32_t slot = asked++ % slots;
        if (lane == 0) {
            barrier_expect(barriers + 8 * slot, L::tile_bytes);
            bulk_copy(ring + slot * L::tile_bytes, from, L::tile_bytes, barriers + 8 * slot);
        }
    };
    if (args.overlap) {
        while (asked < slots && cursor.more() && !cursor.newest()) ask();
        overlap_next();
        wait_for_previous();
    }
    while (asked < slots && cursor.more()) ask();

    AttentionUnit unit = cursor.read(static_cast<int>(blockIdx.x)), next = cursor.read(blockIdx.x + stride);
    uint32_t q[16] = {};
    // Only asked for here, used in the next unit.
    const auto load_q = [&](const AttentionUnit& of, int u) {
        if (g >= group || u >= total) return;
        const uint8_t* head =
            args.q + ((int64_t{of.sequence} * args.q_heads) + u % args.kv_heads * group + g) * (2 * kv_head_dim);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 v = *reinterpret_cast<const uint4*>(head + Kv::q_offset(i, c));
            q[4 * i] = v.x, q[4 * i + 1] = v.y, q[4 * i + 2] = v.z, q[4 * i + 3] = v.w;
        }
    };
    load_q(unit, static_cast<int>(blockIdx.x));
    int buffer = 0;
#pragma unroll 1
    for (int u = static_cast<int>(blockIdx.x); u < total; u += stride, buffer ^= 1) {
        const int entry = u / args.kv_heads, head = u - entry * args.kv_heads;
        Kv::convert_q(q);
        const float scale = args.k_scales ? args.scale_log2 * args.k_scales[head] : args.scale_log2;
        const int tokens = unit.tokens - warp * run_tokens;
        Run run;
        run.clear();
#pragma unroll 1
        for (int first = 0; first < min(tokens, run_tokens); first += kv_tile_tokens, ++taken) {
            const uint32_t slot = taken % slots;
            const uint8_t* tile = shared + (ring - base) + slot * L::tile_bytes;
            barrier_wait(barriers + 8 * slot, taken / slots & 1);
            if (tokens - first >= kv_tile_tokens)
                run.add<Kv, false>(tile, q, scale, kv_tile_tokens, lane);
            else
                run.add<Kv, true>(tile, q, scale, tokens - first, lane);
            __syncwarp();
            if (cursor.more()) ask();
        }
        load_q(next, u + stride);

        float* sums = reinterpret_cast<float*>(shared + L::sums_at) + buffer * L::sums_floats;
        float2* tops = reinterpret_cast<float2*>(shared + L::tops_at) + buffer * warps * Heads;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int step = 4; step < 32; step *= 2) run.sum[h] += __shfl_xor_sync(all_lanes, run.sum[h], step);
        if (2 * c < Heads && tokens > 0) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float* at = sums + (warp * Heads + 2 * c + h) * kv_head_dim + 2 * g;
#pragma unroll
                for (int v = 0; v < 8; ++v) *reinterpret_cast<float2*>(at + 16 * v) = {run.o[v][h], run.o[v][h + 2]};
                if (g == 0) tops[warp * Heads + 2 * c + h] = {run.top[h], run.sum[h]};
            }
        }
        // One barrier a unit: the other buffer is written next, this one only after the next barrier.
        __syncthreads();
        const int runs = (unit.tokens + run_tokens - 1) / run_tokens;
        const int d = static_cast<int>(threadIdx.x) % kv_head_dim;
#pragma unroll
        for (int h = static_cast<int>(threadIdx.x) / kv_head_dim; h < Heads; h += 32 * warps / kv_head_dim) {
            float top = -INFINITY;
#pragma unroll
            for (int r = 0; r < group_runs; ++r)
                if (r < runs) top = fmaxf(top, tops[r * Heads + h].x);
            float sum = 0.0f, o = 0.0f;
#pragma unroll
            for (int r = 0; r < group_runs; ++r)
                if (r < runs) {
                    const float2 run_top = tops[r * Heads + h];
                    const float weight = exp2_of(run_top.x - top);
                    sum = fmaf(weight, run_top.y, sum);
                    o = fmaf(weight, sums[(r * Heads + h) * kv_head_dim + d], o);
                }
            if (h < group) {
                const int64_t at = int64_t{entry} * args.q_heads + head * group + h;
                args.sums[at * kv_head_dim + d] = o;
                if (d == 0) args.tops[at] = {top, sum};
            }
        }
        unit = next;
        next = cursor.read(u + 2 * stride);
    }
}

__device__ void write_head(const AttentionArgs& args, const float4& sum, float all, int lane) {
    const int kv_head = static_cast<int>(blockIdx.x) % args.q_heads / (args.q_heads / args.kv_heads);
    const float scale = all == 0.0f ? 0.0f : (args.v_scales ? args.v_scales[kv_head] : 1.0f) / all;
    uint2 packed;
    packed.x = Bf16Kv::pack(sum.x * scale, sum.y * scale);
    packed.y = Bf16Kv::pack(sum.z * scale, sum.w * scale);
    *reinterpret_cast<uint2*>(args.out + int64_t{blockIdx.x} * kv_head_dim * 2 + 8 * lane) = packed;
}

// A thread block per sequence and query head; a warp per chain of 16 groups, 4 dimensions a lane.
__global__ void merge_kernel(const __grid_constant__ AttentionArgs args) {
    extern __shared__ __align__(16) uint8_t shared[];
    float4* chain_sums = reinterpret_cast<float4*>(shared);  // [chain][32]
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int count = static_cast<int>(blockDim.x) / 32;
    const int sequence = static_cast<int>(blockIdx.x) / args.q_heads,
              head = static_cast<int>(blockIdx.x) % args.q_heads;
    const int first = __ldg(args.first_unit + sequence), groups = __ldg(args.first_unit + sequence + 1) - first;
    const int chains = (groups + chain_groups - 1) / chain_groups;
    float2* chain_tops = reinterpret_cast<float2*>(chain_sums + chains * 32);
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    for (int chain = warp; chain < chains; chain += count) {
        const int begin = chain * chain_groups, here = min(chain_groups, groups - begin);
        const int64_t at = int64_t{first + begin} * args.q_heads + head;
        float4 o[chain_groups];
#pragma unroll
        for (int i = 0; i < chain_groups; ++i)
            if (i < here)
                o[i] = *reinterpret_cast<const float4*>(args.sums + (at + i * args.q_heads) * kv_head_dim + 4 * lane);
        const float2 own = lane < here ? args.tops[at + lane * args.q_heads] : float2{-INFINITY, 0.0f};
        float top = own.x;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(all_lanes, top, step));
        const float weight = exp2_of(own.x - top);
        float4 sum{0, 0, 0, 0};
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < chain_groups; ++i) {
            const float w = __shfl_sync(all_lanes, weight, i), s = __shfl_sync(all_lanes, own.y, i);
            if (i < here) {
                all = fmaf(w, s, all);
                sum.x = fmaf(w, o[i].x, sum.x), sum.y = fmaf(w, o[i].y, sum.y);
                sum.z = fmaf(w, o[i].z, sum.z), sum.w = fmaf(w, o[i].w, sum.w);
            }
        }
        if (chains == 1) return write_head(args, sum, all, lane);
        chain_sums[chain * 32 + lane] = sum;
        if (lane == 0) chain_tops[chain] = {top, all};
    }
    if (chains == 1) return;
    __syncthreads();
    if (warp > 0) return;
    float top = -INFINITY;
    for (int chain = 0; chain < chains; ++chain) top = fmaxf(top, chain_tops[chain].x);
    float4 sum{0, 0, 0, 0};
    float all = 0.0f;
    for (int chain = 0; chain < chains; ++chain) {
        const float2 t = chain_tops[chain];
        const float4 o = chain_sums[chain * 32 + lane];
        const float w = exp2_of(t.x - top);
        all = fmaf(w, t.y, all);
        sum.x = fmaf(w, o.x, sum.x), sum.y = fmaf(w, o.y, sum.y);
        sum.z = fmaf(w, o.z, sum.z), sum.w = fmaf(w, o.w, sum.w);
    }
    write_head(args, sum, all, lane);
}

// A warp per token and KV head, four dimensions a lane.
template <KvType Type>
__global__ void append_kernel(const __grid_constant__ AppendArgs args) {
    const int64_t item = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
    if (item >= args.tokens * args.kv_heads) return;
    const int64_t token = item / args.kv_heads, slot = args.slots[token];
    const int head = static_cast<int>(item % args.kv_heads), lane = static_cast<int>(threadIdx.x) % 32;
    if (slot < 0) return;
    const int t = static_cast<int>(slot % args.page_tokens) % kv_tile_tokens;
    uint8_t* tile = tile_of_slot<Type>(args.pages, args.page_bytes, args.page_tokens, head, slot);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int d = 4 * lane + i;
        store_element<Type>(tile + k_offset(Type, t, d), args.k[item * kv_head_dim + d], args.k_scales, head);
        store_element<Type>(tile + v_offset(Type, t, d), args.v[item * kv_head_dim + d], args.v_scales, head);
    }
}

template <class Kernel>
cudaError_t launch(Kernel kernel, int blocks, int threads, int64_t shared_bytes, const AttentionArgs& args,
                   cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(blocks);
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args);
}

template <class Visit>
cudaError_t visit_shape(const AttentionShape& s, Visit visit) {
    if (s.type == KvType::bf16)
        return s.heads == 4 ? visit(decode_kernel<Bf16Kv, 4>, Layout<Bf16Kv, 4>{})
                            : visit(decode_kernel<Bf16Kv, 8>, Layout<Bf16Kv, 8>{});
    return s.heads == 4 ? visit(decode_kernel<E4m3Kv, 4>, Layout<E4m3Kv, 4>{})
                        : visit(decode_kernel<E4m3Kv, 8>, Layout<E4m3Kv, 8>{});
}

}  // namespace

cudaError_t prepare_attention(const AttentionShape& shape, int* blocks_per_multiprocessor) {
    return visit_shape(shape, [&](auto kernel, auto layout) {
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes))
            return code;
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, kernel, 32 * warps,
                                                             layout.bytes);
    });
}

cudaError_t launch_attention(const AttentionArgs& args, const AttentionShape& shape, int blocks, cudaStream_t stream) {
    return visit_shape(shape, [&](auto kernel, auto layout) {
        return launch(kernel, blocks, 32 * warps, layout.bytes, args, stream);
    });
}

cudaError_t launch_merge(const AttentionArgs& args, int merge_warps, int64_t most_chains, cudaStream_t stream) {
    return launch(merge_kernel, args.sequences * args.q_heads, 32 * merge_warps, most_chains * (32 * 16 + 8), args,
                  stream);
}

cudaError_t launch_append(const AppendArgs& args, KvType type, cudaStream_t stream) {
    constexpr int block_warps = 8;
    const auto blocks = static_cast<unsigned>((args.tokens * args.kv_heads + block_warps - 1) / block_warps);
    if (blocks == 0) return cudaSuccess;
    if (type == KvType::bf16)
        append_kernel<KvType::bf16><<<blocks, 32 * block_warps, 0, stream>>>(args);
    else
        append_kernel<KvType::e4m3><<<blocks, 32 * block_warps, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
