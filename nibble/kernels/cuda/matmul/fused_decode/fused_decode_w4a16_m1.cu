// Products of one token in W4A16 with one thread block per multiprocessor for all of them
// (kernels/fused_decode_cuda.h). The arithmetic and bits are those of matmul_w4a16_m8.cu.
//
// A warp fills a ring buffer of slots with W, product after product. A slot has, for a tile of 16 rows, one record of
// each of the eight chunks of K. Eight warps share one or two tiles, one warp per chunk; groups of eight warps
// alternate over the thread block's tiles. Tiles share nothing: the chunks' sums of all tiles of a product are in
// shared memory, and its outputs are computed together after the last one.
#include "kernels/cuda/matmul/fused_decode/decode_steps.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

static_assert(record_slot_bytes == matmul_chunks * w4a16::record_bytes);
constexpr int all_bytes = 227 * 1024, most_slots = 12, args_bytes = 1024, tile_sums = matmul_chunks * 16;
// Groups of eight warps, and tiles per group at once. Three groups of one tile (72 registers per thread) took 48.4 us
// per layer, two took 46.7; 3, 6 and 10 slots in flight are equal within 1 %.
constexpr int groups = 2, most_tiles = 2, most_asked = 4;
static_assert(sizeof(FusedDecodeArgs) % 8 == 0 && sizeof(FusedDecodeArgs) + 16 * most_slots <= args_bytes);

// The number of units and of tiles that this thread block processes in step s, and the index of its j-th tile.
__device__ inline int units_of(const ProductStep& s) { return s.units + (static_cast<int>(blockIdx.x) < s.more); }
__device__ inline int tiles_of(const ProductStep& s) { return units_of(s) << (s.span > 0); }
__device__ inline int tile_of(const ProductStep& s, int j) {
    const int block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
    if (s.span == 0) return block + j * grid;
    const int unit = block + j / 2 * grid;
    const int pair = s.span == 1 ? unit : static_cast<int>(__umulhi(static_cast<uint32_t>(unit), s.span_magic));
    return unit + (pair + j % 2) * s.span;
}

// The warp that requests records, in the order of their use.
template <int Round>
__device__ void feed(const FusedDecodeArgs& args, fused::Ring ring) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    fused::Ring landed = ring;
    int asked = 0;
    for (int i = 0; i < args.steps; ++i) {
        const ProductStep& s = args.step[i];
        const int tiles = tiles_of(s), records = s.chunk_records;
        for (int first = 0; first < tiles; first += Round)
            for (int r = 0; r < records; ++r)
                for (int j = first; j < min(first + Round, tiles); ++j) {
                    const int record = lane * records + r;
                    const bool present = lane < matmul_chunks && record < s.row_records;
                    const int count = __popc(__ballot_sync(0xFFFFFFFFu, present));
                    const uint8_t* from =
                        s.tiles + (int64_t{tile_of(s, j)} * s.row_records + record) * w4a16::record_bytes;
                    if (asked++ >= args.asked) {
                        barrier_wait(ring.full + 8 * landed.slot, landed.parity);
                        landed.next();
                    }
                    const uint32_t full = ring.full + 8 * ring.slot;
                    barrier_wait(ring.empty + 8 * ring.slot, ring.parity ^ 1);
                    if (lane == 0) barrier_expect(full, static_cast<uint32_t>(count) * w4a16::record_bytes);
                    __syncwarp();
                    if (present)
                        bulk_copy(ring.base + ring.slot * record_slot_bytes + lane * w4a16::record_bytes, from,
                                  w4a16::record_bytes, full);
                    ring.next();
                }
    }
}

// Computes a chunk of Count tiles with one warp. Their records are in adjacent slots; the next records are `apart`
// slots further.
template <int Count>
__device__ __forceinline__ void multiply_chunk(fused::Ring own, int apart, int records, int present, uint32_t column,
                                               ScaleBits bits, float* sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = static_cast<int>(threadIdx.x) / 32 % matmul_chunks;
    float acc[Count][4] = {};
#pragma unroll 1
    for (int r = 0; r < records; ++r) {
        uint32_t slot[Count];
        fused::Ring at = own;
#pragma unroll
        for (int n = 0; n < Count; ++n) {
            slot[n] = at.slot;
            barrier_wait(at.full + 8 * at.slot, at.parity);
            at.next();
        }
        if (r < present) {
            const uint32_t columns = column + r * (2 * w4a16::record_cols);
            uint32_t from[Count];
            uint2 scales[Count];
            uint4 codes[2][Count], x[2][2];
            // Loads a block of 64 columns from shared memory while the previous one is multiplied.
            const auto load = [&](int b) {
#pragma unroll
                for (int n = 0; n < Count; ++n) codes[b % 2][n] = load_shared16(from[n] + 512 * b);
                x[b % 2][0] = load_shared16(columns + 128 * b), x[b % 2][1] = load_shared16(columns + 128 * b + 16);
            };
#pragma unroll
            for (int n = 0; n < Count; ++n) {
                from[n] = own.base + slot[n] * record_slot_bytes + chunk * w4a16::record_bytes;
                scales[n] = load_shared8(from[n] + w4a16::record_code_bytes + 8 * lane);
                from[n] += 16 * lane;
            }
            load(0);
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b) {
                if (b + 1 < w4a16::record_blocks) load(b + 1);
                const uint4 &low = x[b % 2][0], &high = x[b % 2][1];
                const uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int n = 0; n < Count; ++n) {
                        uint32_t a[4];
                        decode_step(a, codes[b % 2][n], ScalePairs(scales[n], b, bits), j);
                        multiply_add(acc[n], a, pairs[2 * j], pairs[2 * j + 1]);
                    }
            }
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < Count; ++n) barrier_arrive_if(own.empty + 8 * slot[n], lane == 0);
        own.next(apart);
    }
    if (lane % 4 == 0) {
#pragma unroll
        for (int n = 0; n < Count; ++n) {
            float* to = sums + n * tile_sums + 16 * chunk + lane / 4;
            to[0] = acc[n][0], to[8] = acc[n][2];
        }
    }
}

// Computes a warp's chunks of the thread block's tiles, Groups * Most tiles at a time. `ring` is the step's first slot
// and is moved past its last one.
template <int Groups, int Most>
__device__ void multiply(const ProductStep& s, fused::Ring& ring, const uint8_t* x, ScaleBits bits, float* sums) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = warp / matmul_chunks, chunk = warp % matmul_chunks;
    const int tiles = tiles_of(s), records = s.chunk_records;
    const int present = min(max(s.row_records - chunk * records, 0), records);
    const uint32_t column = shared_address(x) + chunk * records * (2 * w4a16::record_cols) + lane % 4 * 32;
#pragma unroll 1
    for (int first = 0; first < tiles; first += Groups * Most) {
        const int active = min(Groups * Most, tiles - first), more = active % Groups;
        const int count = active / Groups + (group < more), own = group * (active / Groups) + min(group, more);
        fused::Ring at = ring;
        at.next(own);
        float* to = sums + (first + own) * tile_sums;
        if (Most == 2 && count == 2)
            multiply_chunk<2>(at, active, records, present, column, bits, to);
        else if (count == 1)
            multiply_chunk<1>(at, active, records, present, column, bits, to);
        ring.next(active * records);
    }
}

// Destinations of the halves of a head's pair, and its angle.
struct Rotation {
    uint8_t* to[2];  // null: no destination
    float cos, sin, scale;
    KvType type;
    bool rotates;

    __device__ void prepare(const RopeArgs& rope, int row) {
        const CacheArgs& cache = rope.cache;
        const int dim = cache.dims.k, half = dim / 2, of = row / dim, d = row % dim;
        rotates = of < rope.q_heads + cache.kv_heads;
        cos = sin = 0.0f, scale = 1.0f;
        if (rotates) {
            const int64_t angle = int64_t{rope.rotary.positions[0]} * half + d;
            cos = __ldg(rope.rotary.cos + angle), sin = __ldg(rope.rotary.sin + angle);
        }
        type = KvType::bf16;
        if (of < rope.q_heads) {
            to[0] = reinterpret_cast<uint8_t*>(rope.q + row), to[1] = reinterpret_cast<uint8_t*>(rope.q + row + half);
            return;
        }
        const int64_t slot = rope.slots[0];
        to[0] = to[1] = nullptr;
        if (slot < 0) return;
        type = cache.type;
        const int head = of - rope.q_heads - (rotates ? 0 : cache.kv_heads);
        if (const float* scales = rotates ? cache.k_scales : cache.v_scales) scale = scales[head];
        uint8_t* tile = tile_of_slot(cache, head, slot) + (rotates ? 0 : k_tile_bytes(type, cache.padded));
        const int t = static_cast<int>(slot % cache.page_tokens) % kv_tile_tokens;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            to[i] = tile + (rotates ? k_offset(type, t, d + i * half) : v_offset(type, t, d + i * half));
    }
    // The same as rotated() in rope.cuh.
    __device__ void store(float first, float second) const {
        if (!to[0]) return;
        uint16_t low = bf16_from_float(first), high = bf16_from_float(second);
        if (rotates) {
            const float a = bf16_to_float(low), b = bf16_to_float(high);
            low = bf16_from_float(fmaf(a, cos, -(b * sin))), high = bf16_from_float(fmaf(b, cos, a * sin));
        }
        store_element(type, to[0], low, &scale, 0);
        store_element(type, to[1], high, &scale, 0);
    }
};

// A thread's output, from one row or from two rows.
struct Output {
    const ProductStep& s;
    int tile, row, apart;  // the block's tile; row of W, distance of the second row
    bool present;

    __device__ explicit Output(const ProductStep& step) : s(step) {
        const int own = static_cast<int>(threadIdx.x) / 16;
        present = own < units_of(s);
        tile = s.span ? 2 * own : own;
        row = 16 * tile_of(s, tile) + static_cast<int>(threadIdx.x) % 16, apart = 16 * s.span;
    }
    // Loads scale and bias of both rows to shared memory before the sums are complete; only this thread reads them.
    __device__ void load(float4* factors) const {
        if (!present) return;
        const float all = s.tensor_scale ? __ldg(s.tensor_scale) : 1.0f;
        float4 f{all, all, 0.0f, 0.0f};
        if (s.row_scales) f.x = __ldg(s.row_scales + row), f.y = __ldg(s.row_scales + row + apart);
        if (s.bias) f.z = __ldg(s.bias + row), f.w = __ldg(s.bias + row + apart);
        factors[threadIdx.x] = f;
    }
    __device__ float value(const float* sums, int i, float scale, float bias) const {
        float v[matmul_chunks];
#pragma unroll
        for (int c = 0; c < matmul_chunks; ++c) v[c] = sums[(tile + i) * tile_sums + 16 * c + threadIdx.x % 16];
        const float y = w4a16_scaled(tree_sum(v), scale);
        return s.bias ? y + bias : y;
    }
    __device__ void store(const FusedDecodeArgs& args, const float* sums, const float4* factors,
                          const Rotation* rotation) const {
        if (!present) return;
        const float4 f = factors[threadIdx.x];
        uint16_t* mid = reinterpret_cast<uint16_t*>(s.handed);
        const float v = value(sums, 0, f.x, f.z);
        if (s.span) {
            const float second = value(sums, 1, f.y, f.w);
            if (!s.gated) return rotation[threadIdx.x].store(v, second);
            hand(mid + row / 32 * 16 + row % 16, bf16_from_float(act(args.activation, rounded(v)) * rounded(second)));
        } else if (s.activated) {
            hand(mid + row, bf16_from_float(act(args.activation, rounded(v))));
        } else {
            if (s.y) s.y[row] = v;
            if (s.handed) hand(reinterpret_cast<float*>(s.handed) + row, v);
        }
    }
};

// Loads data for the last step's outputs, with threads other than those that wait for other thread blocks.
__device__ inline void prepare_rotations(const FusedDecodeArgs& args, Rotation* rotation) {
    const ProductStep& last = args.step[args.steps - 1];
    const int output = static_cast<int>(threadIdx.x) - 32;
    if (output < 0 || output / 16 >= units_of(last)) return;
    rotation[output].prepare(args.rope, 16 * tile_of(last, 2 * (output / 16)) + output % 16);
}

template <int Groups, int Most, int Pairs>
__global__ void __launch_bounds__(32 * matmul_chunks * Groups + 32, 1)
    fused_decode_w4a16_m1_kernel(const __grid_constant__ FusedDecodeArgs given) {
    constexpr int threads = 32 * matmul_chunks * Groups;
    extern __shared__ __align__(128) uint8_t shared[];
    const FusedDecodeArgs& args = fused::shared_arguments(shared, given);
    const uint32_t base = shared_address(shared), full = base + sizeof(FusedDecodeArgs), empty = full + 8 * most_slots;
    uint8_t* const x = shared + args_bytes;
    float* const sums = reinterpret_cast<float*>(x + given.x_bytes);
    auto* const rotation = reinterpret_cast<Rotation*>(reinterpret_cast<uint8_t*>(sums) + given.row_bytes);
    auto* const factors = reinterpret_cast<float4*>(reinterpret_cast<uint8_t*>(rotation) + given.rotation_bytes);
    auto* const kept = reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(factors) + given.factor_bytes);
    uint8_t* const slots = shared + all_bytes - given.slots * record_slot_bytes;
    fused::Ring ring{shared_address(slots), full, empty, given.slots};
    if (threadIdx.x == 0) {
        for (int s = 0; s < given.slots; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, matmul_chunks);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (args.overlap) overlap_next();
    if (threadIdx.x >= threads) return feed<Groups * Most>(args, ring);
    fused::Meeting<threads> meeting{args.meet};
    const float* update = args.update;
    bool summed = false;
    for (int i = 0; i < args.steps; ++i) {
        const ProductStep& step = args.step[i];
        // Loads the inputs of this step that do not depend on other thread blocks while these are still in the previous
        // step.
        Output(step).load(factors);
        fused::Stream<Pairs, threads, true> stream{.row = reinterpret_cast<float*>(x), .kept = kept, .summed = summed};
        if (step.norm) stream.load_weight(args, step.norm);
        if (i == 0) {
            if (args.overlap) wait_for_previous();
            if (args.ropes && !args.ropes_inside) meeting.begin();
        }
        if (args.ropes_inside && i == min(1, args.steps - 1)) prepare_rotations(args, rotation);
        if (step.rows) {
            fused::take_words<0, threads>(reinterpret_cast<const uint8_t*>(step.rows), step.k / 8, x);
        } else if (step.norm) {
            stream.norm(args, step, update, i > 0,
                        [&](int pair, uint32_t bf16) { reinterpret_cast<uint32_t*>(x)[pair] = bf16; });
            summed = true;
        } else {
            fused::take_words<16, threads>(args.step[i - 1].handed, step.k / 8, x);
        }
        if (i == 0) fused::set_back<threads>(args);
        update = reinterpret_cast<const float*>(step.handed);
        meet_warps<threads>();
        multiply<Groups, Most>(step, ring, x, args.scale_bits, sums);
        meet_warps<threads>();
        Output(step).store(args, sums, factors, rotation);
    }
    if (args.ropes && !args.ropes_inside) fused::rope_rows(args.rope, meeting);
}

}  // namespace

bool shape_record_decode(FusedDecodeArgs& args, int multiprocessors) {
    if (args.width > most_fused_width) return false;
    int x_bytes = args.width ? norm_shared_bytes(args.width) + 16 : 0, tiles = 0, rotations = 0, outputs = 0;
    for (int i = 0; i < args.steps; ++i) {
        ProductStep& s = args.step[i];
        const int all = s.n / (s.span ? 32 : 16);
        s.units = all / multiprocessors, s.more = all % multiprocessors;
        if (s.span > 1) s.span_magic = static_cast<uint32_t>((uint64_t{1} << 32) / s.span + 1);
        const int units = s.units + (s.more > 0);
        tiles = std::max(tiles, units * (s.span ? 2 : 1));
        if (16 * units + 32 > 32 * matmul_chunks * groups) return false;
        if (s.span && !s.gated) rotations = 16 * units;
        outputs = std::max(outputs, 16 * units);
        x_bytes = std::max(x_bytes, 2 * s.k);
    }
    args.x_bytes = (x_bytes + 15) / 16 * 16;
    args.row_bytes = tiles * tile_sums * 4;
    args.rotation_bytes = rotations * int{sizeof(Rotation)}, args.factor_bytes = outputs * int{sizeof(float4)};
    const int rest = all_bytes - args_bytes - args.x_bytes - args.row_bytes - args.rotation_bytes - args.factor_bytes -
                     2 * args.width;
    args.slots = std::min(rest / record_slot_bytes, most_slots);
    args.asked = std::min(most_asked, args.slots);
    return args.slots >= 4;
}

cudaError_t launch_fused_decode_w4a16_m1(const FusedDecodeArgs& args, int multiprocessors, cudaStream_t stream) {
    constexpr int threads = 32 * matmul_chunks * groups;
    const auto kernel =
        args.width <= most_fused_width / 2
            ? fused_decode_w4a16_m1_kernel<groups, most_tiles, (most_fused_width / 4 + threads - 1) / threads>
            : fused_decode_w4a16_m1_kernel<groups, most_tiles, (most_fused_width / 2 + threads - 1) / threads>;
    return fused::launch(kernel, threads, all_bytes, args.overlap, multiprocessors, stream, args);
}

}  // namespace nibble::cuda
