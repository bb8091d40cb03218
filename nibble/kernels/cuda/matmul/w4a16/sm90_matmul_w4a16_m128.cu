// W4A16 for more than 32 tokens, with wgmma, the weights as the register operand, and sums that stay on the chip.
//
// A thread block has 128 rows and a tile of 64, 96 or 128 tokens: two warpgroups of 64 rows each, and one that keeps
// ring buffers of x stages and of weight records full. The two thread blocks of a cluster have adjacent rows and the
// same tokens; each loads half of x for both. They process pairs (tile of tokens, 256 rows) one after the other, so
// nothing drains between two of them. Tiles that would leave most clusters idle at the end are split along K between
// adjacent clusters, which exchange sums through L2; each finishes a slice of the tokens (exchange_sums).
//
// Sums: one accumulator per chunk from zero, then pairwise (tree_sum). Two chunks run one after the other into two sets
// of registers, so products drain once for both. With 128 tokens, 52 of 64 sums wait in registers for those of the next
// two chunks; 12, and the sums of four chunks, are in shared memory. At 700 W, which 256 tokens reach, every clock
// without products costs almost its full share: moving sums between registers after each chunk, the third level through
// L2, and scattered stores of y were 13 % of the time.
//
// With 64 tokens the two warpgroups' decoding is the limit (97 clocks per pair of k-steps instead of 64). Four
// warpgroups, two of them with the other half of K, gained 12 % there and lost it in the additional sums.
// warpgroups, two of them with the other half of K, gained 12 % there and lost it in what they have to add up.
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_sums.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

#include <cuda_runtime.h>

#include <type_traits>

namespace nibble::cuda {
namespace {

constexpr int slot_bytes = 4 * w4a16::record_bytes;  // weights of a warpgroup
constexpr int y_pitch = 64 + 4;                      // floats per token: no two lanes of a store share a bank
constexpr int consumers = 2, cluster = 2, prefill_threads = 128 * (consumers + 1);

// Constants that depend on the tokens per tile.
template <int Tokens>
struct Prefill {
    static constexpr int accumulators = Tokens / 2, sums = accumulators * 128;  // per thread, per warpgroup
    // Blocks of 64 columns in a stage of x, 12 or 16 KB.
    static constexpr int stage_blocks = 128 / Tokens, record_stages = w4a16::record_blocks / stage_blocks;
    static constexpr int stage_bytes = stage_blocks * Tokens * 128, half_bytes = stage_bytes / cluster;
    static constexpr int stages = Tokens == 128 ? 7 : Tokens == 96 ? 8 : 6;
    static constexpr int weight_slots = Tokens == 128 ? 2 : Tokens == 96 ? 3 : 4;  // per warpgroup
    // K-steps that are decoded and multiplied together, groups of them per block, and A operands of `buffers` groups:
    // the products of all other groups may be in flight while one is decoded.
    static constexpr int steps = Tokens == 64 ? 2 : 1, groups = 4 / steps;
    static constexpr int buffers = Tokens == 64 ? 2 : 4;
    static_assert(groups * stage_blocks >= buffers && groups * w4a16::record_blocks % buffers == 0);
    // Number of a thread's sums of two chunks kept in registers while the next two are computed; more do not fit into
    // 240 registers.
    static constexpr int held = Tokens == 128 ? 52 : accumulators;

    // Shared memory per warpgroup: sums of four chunks and the part of two that is not in registers; or the output
    // before it is stored.
    static constexpr int rest_at = sums * 4, parked_bytes = rest_at + (accumulators - held) * 512;
    static constexpr int y_bytes = Tokens * y_pitch * 4, park_bytes = parked_bytes > y_bytes ? parked_bytes : y_bytes;

    static constexpr int weights_at = stages * stage_bytes,
                         park_at = weights_at + consumers * weight_slots * slot_bytes;
    static constexpr int barriers_at = park_at + consumers * park_bytes;
    static constexpr int used_bytes = barriers_at + 16 * (stages + consumers * weight_slots);
    static constexpr int shared_bytes = used_bytes > 120 * 1024 ? used_bytes : 120 * 1024;
    static_assert(shared_bytes <= 227 * 1024);
};

__device__ void bulk_copy_to_both(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(3))
        : "memory");
}

// A warpgroup's tile: its first row and token, and the number of tokens from there on.
struct Output {
    const OutputFactors& factors;
    float* y;
    int n, tokens, first_row, first_token;
};

struct RowFactors {
    float scale[2], bias[2];  // for a lane's two rows

    __device__ RowFactors(const Output& out, int thread) {
        const OutputFactors& f = out.factors;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = min(out.first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * h, out.n - 1);
            scale[h] = f.row_scales ? f.row_scales[row] : f.tensor_scale ? *f.tensor_scale : 1.0f;
            bias[h] = f.bias ? f.bias[row] : 0.0f;
        }
    }
    __device__ float operator()(float sum, int h, bool biased) const {
        const float v = w4a16_scaled(sum, scale[h]);
        return biased ? v + bias[h] : v;
    }
};

// Registers [0, Count) of v are registers [first, first + Count) of the accumulators, a multiple of four. Through
// shared memory: a warp's stores from registers would be 32 bytes of four tokens each.
template <int Count>
__device__ void write_output(const float* v, const Output& out, float* staging, int first, int group, int thread) {
    static_assert(Count % 4 == 0);
    constexpr int tile = Count * 2, at_once = tile < 32 ? tile / 8 : 4;
    const OutputFactors& f = out.factors;
    const RowFactors factors(out, thread);
    group_barrier<128>(group);  // all threads have read the stored sums
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float* to = staging + thread % 4 * 2 * y_pitch + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
#pragma unroll
        for (int i = 0; i < tile / 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) to[(8 * i + e) * y_pitch] = factors(v[4 * i + 2 * h + e], h, f.bias);
    }
    const int tokens = min(tile, out.tokens - first * 2), rows = min(64, out.n - out.first_row);
    float* y = out.y + int64_t{out.first_token + first * 2} * f.y_stride + out.first_row;
    group_barrier<128>(group);
    if (!((reinterpret_cast<uintptr_t>(out.y) / 4 | f.y_stride | out.n) & 3)) {
        const int row = thread % 16 * 4, token = thread / 16, end = row < rows ? tokens : 0;
        float* to = y + token * f.y_stride + row;
        const float* from = staging + token * y_pitch + row;
#pragma unroll 1
        for (int t = token; t < tile; t += 8 * at_once, to += 8 * at_once * f.y_stride, from += 8 * at_once * y_pitch) {
            float4 part[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) part[i] = *reinterpret_cast<const float4*>(from + 8 * i * y_pitch);
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                if (t + 8 * i < end) *reinterpret_cast<float4*>(to + 8 * i * f.y_stride) = part[i];
        }
    } else {
#pragma unroll 1
        for (int i = thread; i < tokens * 64; i += 128)
            if (i % 64 < rows) y[i / 64 * f.y_stride + i % 64] = staging[i / 64 * y_pitch + i % 64];
    }
}

// The items of a cluster: first tiles that one cluster computes alone, equally many for each; then tiles whose K is
// split between `parts` adjacent clusters. Item i < args.whole is a tile; after them come `parts` items per tile.
struct TileSchedule {
    int items, step, tail_step;

    __device__ TileSchedule(const WideArgs& args)
        : items(args.whole + (args.row_groups * args.token_tiles - args.whole) * args.parts),
          step(static_cast<int>(gridDim.x) / cluster),
          tail_step(step / args.parts * args.parts) {}
    __device__ int first() const {
        int block;  // read again by each thread: the producers' few registers would spill it
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        return block / cluster;
    }
    __device__ bool has(const WideArgs& args, int i, int first) const {
        return i < args.whole || (i < items && first < tail_step);
    }
    __device__ int after(const WideArgs& args, int i) const { return i + (i < args.whole ? step : tail_step); }
};

// Adjacent clusters share weights and tokens: parts first, then a few tiles of tokens, then rows.
struct Item {
    int part = 0, chunks = matmul_chunks,
        meeting = -1;                        // meeting: index of the exchange between clusters that share the tile
    int token_tile, row_pair, first, count;  // records of K

    __device__ Item(const WideArgs& args, int index) {
        if (index >= args.whole) {
            index -= args.whole;
            part = index % args.parts, meeting = index / args.parts, chunks = args.chunks;
            index = args.whole + meeting;
        }
        const int band = args.band * args.row_groups, first_tile = index / band * args.band;
        const int band_tiles = min(args.band, args.token_tiles - first_tile), in_band = index % band;
        token_tile = first_tile + in_band % band_tiles, row_pair = in_band / band_tiles;
        const int part_records = chunks * args.chunk_records;
        first = min(part * part_records, args.row_records);
        count = min((part + 1) * part_records, args.row_records) - first;
    }
};

template <class P>
__device__ void bring_x(const WideArgs& args, const TileSchedule& schedule, uint32_t to, uint32_t full, uint32_t empty,
                        uint32_t rank) {
    uint32_t slot = 0, parity = 1;
    const int first_item = schedule.first();
    for (int index = first_item; schedule.has(args, index, first_item); index = schedule.after(args, index)) {
        const Item item(args, index);
        const uint8_t* x =
            args.x + (int64_t{item.token_tile} * args.row_records + item.first) * (P::record_stages * P::stage_bytes) +
            rank * P::half_bytes;
        for (int s = 0; s < P::record_stages * item.count; ++s, x += P::stage_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            barrier_expect(full + 8 * slot, P::stage_bytes);
            bulk_copy_to_both(to + slot * P::stage_bytes + rank * P::half_bytes, x, P::half_bytes, full + 8 * slot);
            if (++slot == P::stages) slot = 0, parity ^= 1;
        }
    }
}

template <class P>
__device__ void bring_weights(const WideArgs& args, const TileSchedule& schedule, int row_block, uint32_t slots,
                              uint32_t full, uint32_t empty) {
    uint32_t slot = 0, parity = 1;
    const int first_item = schedule.first();
    for (int index = first_item; schedule.has(args, index, first_item); index = schedule.after(args, index)) {
        const Item item(args, index);
        const int row_tile = (item.row_pair * cluster * consumers + row_block) * 4;
        const int present = max(0, min(4, args.row_tiles - row_tile));
        const int64_t pitch = int64_t{args.row_records} * w4a16::record_bytes;
        const uint8_t* from = args.records + row_tile * pitch + int64_t{item.first} * w4a16::record_bytes;
        for (int r = 0; r < item.count; ++r, from += w4a16::record_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            barrier_expect(full + 8 * slot, present * w4a16::record_bytes);
            for (int t = 0; t < present; ++t)
                bulk_copy_once(slots + slot * slot_bytes + t * w4a16::record_bytes, from + t * pitch,
                               w4a16::record_bytes, full + 8 * slot);
            if (++slot == P::weight_slots) slot = 0, parity ^= 1;
        }
    }
}

template <int Tokens>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(prefill_threads, 1)
    sm90_matmul_w4a16_m128_kernel(const __grid_constant__ WideArgs args) {
    using P = Prefill<Tokens>;
    constexpr int stages = P::stages, stage_bytes = P::stage_bytes, weight_slots = P::weight_slots;
    constexpr int accumulators = P::accumulators, sums = P::sums, held = P::held;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, thread = static_cast<int>(threadIdx.x) % 128;
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const uint32_t base = shared_address(shared);
    const uint32_t x_full = base + P::barriers_at, x_empty = x_full + 8 * stages;
    const uint32_t weights_full = x_empty + 8 * stages, weights_empty = weights_full + 8 * consumers * weight_slots;
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(x_full + 8 * s, 1);
            barrier_init(x_empty + 8 * s, cluster * consumers * 4);
        }
        for (int s = 0; s < consumers * weight_slots; ++s) {
            barrier_init(weights_full + 8 * s, 1);
            barrier_init(weights_empty + 8 * s, 4);
        }
        barrier_init_done();
    }
    // Relaxed: the barriers were fenced, the other block reads nothing else of this one. Weights, which come through
    // this block's barriers alone, do not wait for it.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    __syncthreads();
    const auto meet = [] { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); };
    const bool brings_weights = group == consumers && warp % 4 > 0 && warp % 4 <= consumers;
    if (!brings_weights) meet();
    if (args.overlap) overlap_next();
    const TileSchedule schedule(args);

    if (group == consumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        const int brings = warp % 4;  // 0: loads x, 1 and 2: load the weights of a warpgroup
        if (lane == 0 && brings == 0) {
            if (args.overlap) wait_for_previous();
            bring_x<P>(args, schedule, base, x_full, x_empty, rank);
        } else if (lane == 0 && brings_weights) {
            const int of = brings - 1;
            bring_weights<P>(args, schedule, static_cast<int>(rank) * consumers + of,
                             base + P::weights_at + of * weight_slots * slot_bytes,
                             weights_full + 8 * weight_slots * of, weights_empty + 8 * weight_slots * of);
        }
        __syncwarp();
        if (brings_weights) meet();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (args.overlap) wait_for_previous();
        const int first_item = schedule.first();
        float* parked = reinterpret_cast<float*>(shared + P::park_at + group * P::park_bytes);
        float* rest = parked + P::rest_at / 4;
        const uint8_t* records =
            shared + P::weights_at + group * weight_slots * slot_bytes + warp % 4 * w4a16::record_bytes + 16 * lane;
        const uint32_t full = weights_full + 8 * weight_slots * group, empty = full + 8 * consumers * weight_slots;
        // Sums of a chunk with an even number, of the next one, and of the two before them.
        float even[accumulators], odd[accumulators], two[held];
        uint32_t a[P::buffers][4 * P::steps];
        uint32_t stage = 0, x_parity = 0, slot = 0, parity = 0;
        // The previous stage: read once only the products of three k-steps of this stage are in flight.
        const auto release_last = [&](bool condition) {
            const uint32_t at = x_empty + 8 * (stage > 0 ? stage - 1 : stages - 1);
            for (uint32_t r = 0; r < cluster; ++r) barrier_arrive_at(at, r, lane == 0 && condition);
        };
        const OutputFactors& f = args.factors;
        bool ready = false;  // true if the stage of x is known to have arrived
        uint4 next{};        // codes of the next block
        uint2 scale_bytes{};
        const auto load_record = [&] {
            const uint8_t* at = records + slot * slot_bytes;
            scale_bytes = *reinterpret_cast<const uint2*>(at + w4a16::record_code_bytes - 8 * lane);
            next = *reinterpret_cast<const uint4*>(at);
        };
        // Products of the records [begin, end) of `count`, from zero; `first`: no products of the same sums came
        // before. The record that comes next is loaded by the one before it.
        const auto run_chunk = [&](float(&acc)[accumulators], int first, int begin, int end, int count) {
#pragma unroll 1
            for (int record = begin; record < end; ++record) {
                const uint8_t* at = records + slot * slot_bytes;
                const uint32_t next_slot = slot + 1 == weight_slots ? 0 : slot + 1;
                const uint32_t next_slot_parity = next_slot ? parity : parity ^ 1;
                bool weights_ready = false;
#pragma unroll
                for (int b = 0; b < w4a16::record_blocks; ++b) {
                    const uint4 codes = next;
                    const ScalePairs scales(scale_bytes, b, args.scale_bits);
                    if (b + 1 < w4a16::record_blocks) {
                        next = *reinterpret_cast<const uint4*>(at + 512 * (b + 1));
                    } else {
                        __syncwarp();
                        barrier_arrive_if(empty + 8 * slot, lane == 0);
                        slot = next_slot, parity = next_slot_parity;
                        if (record + 1 < count) {
                            if (!weights_ready) barrier_wait(full + 8 * slot, parity);
                            load_record();
                        }
                    }
                    const bool last_of_stage = b % P::stage_blocks == P::stage_blocks - 1;
                    if (b % P::stage_blocks == 0 && !ready) barrier_wait(x_full + 8 * stage, x_parity);
                    const uint32_t operand =
                        swizzled_operand(base) + (stage * stage_bytes + b % P::stage_blocks * (Tokens * 128)) / 16;
                    const uint32_t next_stage = stage + 1 == stages ? 0 : stage + 1;
                    const uint32_t next_parity = next_stage ? x_parity : x_parity ^ 1;
#pragma unroll
                    for (int g = 0; g < P::groups; ++g) {
                        uint32_t(&buffer)[4 * P::steps] = a[(b * P::groups + g) % P::buffers];
                        wgmma_wait<P::buffers - 1>();
                        // A branch would make the assembler serialize the wgmma around it (C7513).
                        if (b % P::stage_blocks * P::groups + g == P::buffers - 1)
                            release_last(b >= P::stage_blocks || record > first);
#pragma unroll
                        for (int s = 0; s < P::steps; ++s) decode_step(buffer + 4 * s, codes, scales, g * P::steps + s);
                        wgmma_fence();
#pragma unroll
                        for (int s = 0; s < P::steps; ++s)
                            Wgmma<Tokens>::run(acc, buffer + 4 * s, operand + 2 * (g * P::steps + s), 1);
                        wgmma_commit();
                        // A barrier answers after about 100 clocks, so it is queried long before the answer is needed.
                        if (g == (P::groups - 1) / 2) {
                            if (last_of_stage) ready = barrier_test(x_full + 8 * next_stage, next_parity);
                            if (b + 2 == w4a16::record_blocks)
                                weights_ready = barrier_test(full + 8 * next_slot, next_slot_parity);
                        }
                    }
                    if (last_of_stage) stage = next_stage, x_parity = next_parity;
                }
            }
        };
#pragma unroll 1
        for (int index = first_item; schedule.has(args, index, first_item); index = schedule.after(args, index)) {
            const Item item(args, index);
            const int row_block = (item.row_pair * cluster + static_cast<int>(rank)) * consumers + group;
            const int factor_row = min(row_block * 64 + thread % 64, args.n - 1);
            if (f.row_scales || f.tensor_scale) prefetch(f.row_scales ? f.row_scales + factor_row : f.tensor_scale);
            if (f.bias) prefetch(f.bias + factor_row);
            if (item.count > 0) {
                barrier_wait(full + 8 * slot, parity);
                load_record();
            }
#pragma unroll 1
            for (int chunk = 0; chunk < item.chunks; chunk += 2) {
                const int begin = min(chunk * args.chunk_records, item.count);
                const int middle = min(begin + args.chunk_records, item.count);
                const int end = item.chunks > 1 ? min(middle + args.chunk_records, item.count) : middle;
#pragma unroll
                for (int r = 0; r < accumulators; ++r) even[r] = odd[r] = 0.0f;
                pin(even);
                pin(odd);
                run_chunk(even, begin, begin, middle, item.count);
                run_chunk(odd, begin, middle, end, item.count);
                wgmma_wait<0>();
                release_last(begin < end);
                pin(even);
                pin(odd);
#pragma unroll
                for (int r = 0; r < accumulators; ++r) even[r] += odd[r];
                if (chunk & 2) {
#pragma unroll
                    for (int r = 0; r < held; ++r) even[r] = two[r] + even[r];
                    add_parked<held, accumulators>(even, rest, thread);
                    if (chunk & 4)
                        add_parked<0, accumulators>(even, parked, thread);
                    else if (chunk + 2 < item.chunks)
                        park_sums<0, accumulators>(parked, even, thread);
                } else {
                    if (chunk == 0) group_barrier<128>(group);  // all threads have read the last item's output
                    if (chunk + 2 < item.chunks) {
#pragma unroll
                        for (int r = 0; r < held; ++r) two[r] = even[r];
                        park_sums<held, accumulators>(rest, even, thread);
                    }
                }
            }

            const Output out{args.factors,   args.y,
                             args.n,         args.tokens - item.token_tile * Tokens,
                             row_block * 64, item.token_tile * Tokens};
            if (item.meeting >= 0) {
                const int meeting = (item.meeting * cluster + static_cast<int>(rank)) * consumers + group;
                float* slots = args.slots + int64_t{meeting} * args.parts * sums;
                const auto exchange = [&](auto parts) {
                    constexpr int Parts = decltype(parts)::value, slice = accumulators / Parts;
                    exchange_sums<Parts>(even, args.nodes + meeting, slots, item.part, group, thread);
                    write_output<slice>(even, out, parked, item.part * slice, group, thread);
                };
                if (args.parts == 2)
                    exchange(std::integral_constant<int, 2>{});
                else if (args.parts == 4)
                    exchange(std::integral_constant<int, 4>{});
                else if constexpr (accumulators % 32 == 0)
                    exchange(std::integral_constant<int, 8>{});
            } else {
                write_output<accumulators>(even, out, parked, 0, group, thread);
            }
        }
    }
    cluster_sync();  // no thread block ends while the other one still arrives at its barriers
}

// Calls visit(std::integral_constant) for a compiled tile.
template <class Visit>
cudaError_t visit_tile(int tokens, Visit visit) {
    if (tokens == 64) return visit(std::integral_constant<int, 64>{});
    if (tokens == 96) return visit(std::integral_constant<int, 96>{});
    if (tokens == 128) return visit(std::integral_constant<int, 128>{});
    return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_sm90_matmul_w4a16_m128(const WideArgs& args, int tokens, int multiprocessors, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    const int64_t tiles = int64_t{args.row_groups} * args.token_tiles,
                  items = args.whole + (tiles - args.whole) * args.parts;
    const int64_t clusters = multiprocessors / cluster;
    config.gridDim = static_cast<unsigned>((items < clusters ? items : clusters) * cluster);
    config.blockDim = prefill_threads;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return visit_tile(tokens, [&](auto tile) {
        config.dynamicSmemBytes = Prefill<tile.value>::shared_bytes;
        return cudaLaunchKernelEx(&config, sm90_matmul_w4a16_m128_kernel<tile.value>, args);
    });
}

cudaError_t prepare_sm90_matmul_w4a16_m128(int tokens) {
    return visit_tile(tokens, [](auto tile) {
        return cudaFuncSetAttribute(sm90_matmul_w4a16_m128_kernel<tile.value>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, Prefill<tile.value>::shared_bytes);
    });
}

}  // namespace nibble::cuda
