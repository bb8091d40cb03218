// W4A16 for experts with more than a few tokens each, on wgmma with the weights as the register operand: one launch for
// all experts hit.
//
// An item is 192 rows (256 with the smallest tiles) of one expert and a tile of its tokens; the tiles of an expert have
// equal sizes. A thread block per multiprocessor has an equal share of all items, processed in order. Three or four
// warpgroups of 64 rows each multiply. In one more warpgroup, one warp keeps a ring buffer of weight records full and
// the three others one of x stages (128 columns), so nothing drains between items or experts. wgmma needs the columns
// of a stage in another order than x: rows are gathered in words of 4 bytes, 64 columns of a row per copy, and every
// word is written to its position (32 lanes, 32 banks). (With all tile widths in one kernel, chosen per item, the
// assembler ran out of registers and serialized the products.)
//
// Sums: as in matmul(), one accumulator per chunk from zero, then pairwise. Two chunks run one after the other into two
// sets of registers; waiting sums are in registers or, for wide tiles, in shared memory.
#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_sums.cuh"

#include <algorithm>
#include <type_traits>

namespace nibble::cuda {
namespace {

using namespace experts;

constexpr int copiers = 3;
constexpr int stage_blocks = 2;  // blocks of 64 columns per stage
// A operands of a block each: products of one may be in flight while the next is decoded. Four buffers with one k-step
// each wait for the tensor cores four times as often and took 3 to 4 % longer.
constexpr int buffers = 2;
static_assert(stage_blocks >= buffers);
constexpr int y_pitch = 64 + 4;  // floats per token: no two lanes of a store share a bank

template <int Tokens, int Consumers>  // tokens per tile; warpgroups of 64 rows
struct Many {
    static constexpr int tokens = Tokens, consumers = Consumers;
    static constexpr int threads = 128 * (Consumers + 1);
    static constexpr int item_tiles = 4 * Consumers;  // tiles of 16 rows
    static constexpr int slot_bytes = item_tiles * w4a16::record_bytes;
    // Registers per thread of consumers and producers: those of the launch, redistributed.
    static constexpr int registers = Consumers == 4 ? 112 : 152, producer_registers = Consumers == 4 ? 32 : 56;
    static constexpr int block_bytes = Tokens * 128, stage_bytes = stage_blocks * block_bytes, stages = 4;
    static constexpr int slots = Consumers == 4 ? 3 : 4;
    static constexpr int accumulators = Tokens / 2;
    // Number of a thread's sums of two chunks that stay in registers while the next two are computed.
    static constexpr int held = std::min(accumulators, 16);
    // Shared memory per warpgroup: sums of four chunks and the part of two that is not in registers; or the output
    // before it is stored.
    static constexpr int four_floats = accumulators * 128, rest_floats = (accumulators - held) * 128;
    static constexpr int park_floats = std::max(four_floats + rest_floats, Tokens* y_pitch);
    static constexpr int weights_at = stages * stage_bytes, parks_at = weights_at + slots * slot_bytes;
    static constexpr int barriers_at = parks_at + Consumers * park_floats * 4;
    static constexpr int tables_at = barriers_at + 16 * (stages + slots);
    static constexpr int bytes(int experts) { return tables_at + 8 * (experts + 1); }
    static_assert(bytes(most_experts) <= 227 * 1024 && bytes(1) > 114 * 1024);
};

// The items of a thread block.
struct Items {
    const Tables& tables;
    int item_tiles, row_groups, left, tile, row_group, expert = 0, first = 0, present = 0;

    __device__ Items(const Tables& t, int row_tiles, int row_tiles_of_item)
        : tables(t), item_tiles(row_tiles_of_item), row_groups((row_tiles + item_tiles - 1) / item_tiles) {
        const int64_t all = int64_t{t.before[t.experts]} * row_groups;
        // From a shuffle, so that values which depend only on them stay in uniform registers.
        const int begin = __shfl_sync(0xFFFFFFFFu, static_cast<int>(all * blockIdx.x / gridDim.x), 0);
        left = __shfl_sync(0xFFFFFFFFu, static_cast<int>(all * (blockIdx.x + 1) / gridDim.x), 0) - begin;
        tile = begin / row_groups, row_group = begin % row_groups;
        if (more()) expert = t.expert_of(tile);
        place();
    }
    __device__ bool more() const { return left > 0; }
    __device__ void next() {
        --left;
        if (++row_group < row_groups) return;
        row_group = 0, ++tile;
        while (more() && tile >= tables.before[expert + 1]) ++expert;
        place();
    }

private:
    __device__ void place() {
        if (!more()) return;
        const int begin = tables.begin[expert], count = tables.begin[expert + 1] - begin;
        const int tiles = tables.before[expert + 1] - tables.before[expert], each = (count + tiles - 1) / tiles;
        const int at = (tile - tables.before[expert]) * each;
        first = begin + at, present = min(each, count - at);
    }
};

__device__ void copy4_or_zero(uint32_t to, const void* from, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}

// A copier has three of eight adjacent rows of x (the last one two). Word w of a row's 64 columns is a pair in 16-byte
// chunk w % 8, XORed as in swizzled_operand().
template <class M>
__device__ void bring_x(const ExpertsArgs& args, Items item, uint32_t x_at, uint32_t full, uint32_t empty, int copier,
                        int lane) {
    constexpr int own = (8 + copiers - 1) / copiers, groups = M::tokens / 8;
    const uint32_t pitch = static_cast<uint32_t>(args.x_stride / 16);
    uint32_t to[own];
#pragma unroll
    for (int r = 0; r < own; ++r) {
        const int row = copier * own + r;
        to[r] = x_at + row * 128 + ((lane % 8) ^ row) * 16 + lane / 8 * 4;
    }
    const bool last_exists = copier * own + own <= 8;
    uint32_t from[groups][own] = {};  // rows of x, in units of 16 bytes
    uint32_t stage = 0, parity = 1;
    int tile = -1;
#pragma unroll 1
    for (; item.more(); item.next()) {
        if (item.tile != tile) {
            tile = item.tile;
            uint32_t source[2];  // for tokens lane and lane + 32; absent ones repeat the last
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int slot = item.first + min(lane + 32 * h, item.present - 1);
                source[h] = static_cast<uint32_t>(args.rows ? args.rows[slot] : slot) * pitch;
            }
#pragma unroll
            for (int g = 0; g < groups; ++g)
#pragma unroll
                for (int r = 0; r < own; ++r)
                    from[g][r] = __shfl_sync(0xFFFFFFFFu, source[g / 4], (8 * g + copier * own + r) % 32);
        }
        const int steps = args.row_records * (w4a16::record_blocks / stage_blocks);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int column = 64 * stage_blocks * step + 2 * lane;
            const bool inside[stage_blocks] = {column < args.k, column + 64 < args.k};
            const uint8_t* x = args.x + (inside[0] ? 2 * column : 0);
            asm volatile("" : "+l"(x));  // one operation per row: x + 16 from
            const uint32_t at = stage * M::stage_bytes;
            barrier_wait(empty + 8 * stage, parity);
#pragma unroll
            for (int g = 0; g < groups; ++g) {
                if (8 * g >= item.present) break;
#pragma unroll
                for (int r = 0; r < own; ++r) {
                    if (r + 1 == own && !last_exists) break;
                    const uint8_t* row = x + uint64_t{from[g][r]} * 16;
#pragma unroll
                    for (int b = 0; b < stage_blocks; ++b)
                        copy4_or_zero(to[r] + at + g * 1024 + b * M::block_bytes, row + 128 * b, inside[b]);
                }
            }
            barrier_arrive_after_copies(full + 8 * stage);
            if (++stage == M::stages) stage = 0, parity ^= 1;
        }
    }
}

template <class M>
__device__ void bring_weights(const ExpertsArgs& args, Items item, uint32_t weights, uint32_t full, uint32_t empty,
                              int lane) {
    const int64_t pitch = int64_t{args.row_records} * w4a16::record_bytes;
    uint32_t slot = 0, parity = 1;
#pragma unroll 1
    for (; item.more(); item.next()) {
        const int row_tile = item.row_group * M::item_tiles, present = min(M::item_tiles, args.row_tiles - row_tile);
        const uint8_t* from = args.records + item.expert * args.expert_bytes + (row_tile + lane) * pitch;
#pragma unroll 1
        for (int r = 0; r < args.row_records; ++r, from += w4a16::record_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            if (lane == 0) barrier_expect(full + 8 * slot, present * w4a16::record_bytes);
            __syncwarp();
            if (lane < present)
                bulk_copy(weights + slot * M::slot_bytes + lane * w4a16::record_bytes, from, w4a16::record_bytes,
                          full + 8 * slot);
            if (++slot == M::slots) slot = 0, parity ^= 1;
        }
    }
}

// Converts sums [tokens][y_pitch] of rows [first_row, first_row + 64) to outputs.
__device__ void store_outputs(const ExpertsArgs& args, const Items& item, int first_row, const float* sums,
                              int thread) {
    const int64_t of_expert = int64_t{item.expert} * args.n;
    const auto factor = [&](const float* of, int row) {
        return of && row < args.n ? __ldg(of + of_expert + row) : 0.0f;
    };
    const auto value = [&](float sum, float scale, float bias) {
        const float y = w4a16_scaled(sum, scale);
        return args.bias ? y + bias : y;
    };
    if (args.out && args.gated) {
        const int lane = thread % 32, gate = lane / 8 * 16 + lane % 8, row = first_row + gate;
        const float scales[2] = {factor(args.row_scales, row), factor(args.row_scales, row + 8)};
        const float biases[2] = {factor(args.bias, row), factor(args.bias, row + 8)};
        uint16_t* to = args.out + item.first * args.y_stride + first_row / 2 + lane;
        if (row >= args.n) return;
#pragma unroll 2
        for (int t = thread / 32; t < item.present; t += 4) {
            const float* from = sums + t * y_pitch + gate;
            const float g = value(from[0], scales[0], biases[0]), up = value(from[8], scales[1], biases[1]);
            to[t * args.y_stride] = bf16_from_float(act(args.activation, rounded(g)) * rounded(up));
        }
        return;
    }
    const int row = first_row + thread % 64;
    const float scale = factor(args.row_scales, row), bias = factor(args.bias, row);
    const float* from = sums + thread % 64;
    if (row >= args.n) return;
    if (args.out) {
        uint16_t* to = args.out + item.first * args.y_stride + row;
#pragma unroll 2
        for (int t = thread / 64; t < item.present; t += 2)
            to[t * args.y_stride] =
                bf16_from_float(act(args.activation, rounded(value(from[t * y_pitch], scale, bias))));
    } else {
        float* to = args.y + item.first * args.y_stride + row;
#pragma unroll 4
        for (int t = thread / 64; t < item.present; t += 2)
            to[t * args.y_stride] = value(from[t * y_pitch], scale, bias);
    }
}

template <class M>
__global__ void __launch_bounds__(M::threads, 1) sm90_experts_w4a16_kernel(const __grid_constant__ ExpertsArgs args) {
    constexpr int consumers = M::consumers;
    constexpr int stages = M::stages, slots = M::slots, accumulators = M::accumulators, held = M::held;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, thread = static_cast<int>(threadIdx.x) % 128;
    const uint32_t base = shared_address(shared), x_full = base + M::barriers_at, x_empty = x_full + 8 * stages;
    const uint32_t full = x_empty + 8 * stages, empty = full + 8 * slots;  // barriers of weights
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(x_full + 8 * s, 32 * copiers);
            barrier_init(x_empty + 8 * s, 4 * consumers);
        }
        for (int s = 0; s < slots; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * consumers);
        }
        barrier_init_done();
    }
    // The next kernel starts only after this wait, so data it reads early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }
    const Tables tables = make_tables(args, reinterpret_cast<int*>(shared + M::tables_at), M::tokens);

    if (group == consumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(M::producer_registers));
        const Items items(tables, args.row_tiles, M::item_tiles);
        if (warp % 4 == copiers) {
            bring_weights<M>(args, items, base + M::weights_at, full, empty, lane);
        } else {
            if (args.overlap && args.early) wait_for_previous();
            bring_x<M>(args, items, base, x_full, x_empty, warp % 4, lane);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(M::registers));
        float* const four = reinterpret_cast<float*>(shared + M::parks_at) + group * M::park_floats;
        float* const rest = four + M::four_floats;
        const uint8_t* const records =
            shared + M::weights_at + (group * 4 + warp % 4) * w4a16::record_bytes + 16 * lane;
        uint32_t stage = 0, x_parity = 0, slot = 0, parity = 0;
        bool ready = false;  // true if the stage of x is known to have arrived
        // The previous stage: read once only the products of this stage's first block are in flight.
        const auto release_last = [&](bool condition) {
            barrier_arrive_if(x_empty + 8 * (stage > 0 ? stage - 1 : stages - 1), lane == 0 && condition);
        };
        const int count = args.row_records;
        const int pairs =
            ((count + args.chunk_records - 1) / args.chunk_records + 1) / 2;  // pairs of chunks with columns
        Items item(tables, args.row_tiles, M::item_tiles);

        const auto multiply = [&] {
            // Sums of a chunk with an even number, of the next one, and of the two before them.
            float even[accumulators], odd[accumulators], two[held];
            uint32_t a[buffers][16];
            // Computes products of the records [begin, end) from zero; `first`: no products of the same sums came
            // before.
            const auto run_chunk = [&](float(&acc)[accumulators], int first, int begin, int end) {
#pragma unroll 1
                for (int record = begin; record < end; ++record) {
                    const uint8_t* at = records + slot * M::slot_bytes;
                    barrier_wait(full + 8 * slot, parity);
                    const uint2 scale_bytes = *reinterpret_cast<const uint2*>(at + w4a16::record_code_bytes - 8 * lane);
                    // A warp holds a whole record, so its slot is free at once.
                    uint4 codes[w4a16::record_blocks];
#pragma unroll
                    for (int b = 0; b < w4a16::record_blocks; ++b)
                        codes[b] = *reinterpret_cast<const uint4*>(at + 512 * b);
                    loads_done();
                    __syncwarp();
                    barrier_arrive_if(empty + 8 * slot, lane == 0);
                    if (++slot == slots) slot = 0, parity ^= 1;
#pragma unroll
                    for (int b = 0; b < w4a16::record_blocks; ++b) {
                        const ScalePairs scales(scale_bytes, b, args.scale_bits);
                        const int half = b % stage_blocks;
                        if (half == 0) {
                            if (!ready) barrier_wait(x_full + 8 * stage, x_parity);
                            // The copy engine did not write the rows of x, but wgmma reads through the same proxy.
                            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                        }
                        const uint32_t operand =
                            swizzled_operand(base) + (stage * M::stage_bytes + half * M::block_bytes) / 16;
                        const uint32_t next_stage = stage + 1 == stages ? 0 : stage + 1;
                        const uint32_t next_parity = next_stage ? x_parity : x_parity ^ 1;
                        // A barrier answers after about 100 clocks, so it is queried before the answer is needed.
                        if (half + 1 == stage_blocks) ready = barrier_test(x_full + 8 * next_stage, next_parity);
                        uint32_t(&buffer)[16] = a[b % buffers];
                        wgmma_wait<buffers - 1>();
                        // A branch would make the assembler serialize the wgmma around it (C7513).
                        if (half == buffers - 1) release_last(b >= stage_blocks || record > first);
#pragma unroll
                        for (int k = 0; k < 4; ++k) decode_step(buffer + 4 * k, codes[b], scales, k);
                        wgmma_fence();
#pragma unroll
                        for (int k = 0; k < 4; ++k) Wgmma<M::tokens>::run(acc, buffer + 4 * k, operand + 2 * k, 1);
                        wgmma_commit();
                        if (half + 1 == stage_blocks) stage = next_stage, x_parity = next_parity;
                    }
                }
            };
#pragma unroll 1
            for (int pair = 0; pair < pairs; ++pair) {
                const int begin = 2 * pair * args.chunk_records;
                const int middle = min(begin + args.chunk_records, count),
                          end = min(middle + args.chunk_records, count);
#pragma unroll
                for (int r = 0; r < accumulators; ++r) even[r] = odd[r] = 0.0f;
                pin(even);
                pin(odd);
                run_chunk(even, begin, begin, middle);
                run_chunk(odd, begin, middle, end);
                wgmma_wait<0>();
                release_last(true);
                pin(even);
                pin(odd);
#pragma unroll
                for (int r = 0; r < accumulators; ++r) even[r] += odd[r];
                // Chunks without columns are zero and are skipped.
                if (pair & 1) {
#pragma unroll
                    for (int r = 0; r < held; ++r) even[r] = two[r] + even[r];
                    add_parked<held, accumulators>(even, rest, thread);
                } else {
                    if (pair == 0) group_barrier<128>(group);  // all threads have read the last item's output
                    if (pair + 1 < pairs) {
#pragma unroll
                        for (int r = 0; r < held; ++r) two[r] = even[r];
                        park_sums<held, accumulators>(rest, even, thread);
                    }
                }
                if (pair == 1 && pairs > 2) park_sums<0, accumulators>(four, even, thread);
                if (pair >= 2 && pair + 1 == pairs) add_parked<0, accumulators>(even, four, thread);
            }
            group_barrier<128>(group);  // all threads have read the stored sums
            float* to = four + lane % 4 * 2 * y_pitch + warp % 4 * 16 + lane / 4;
#pragma unroll
            for (int i = 0; i < M::tokens / 8; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e)
#pragma unroll
                    for (int h = 0; h < 2; ++h) to[(8 * i + e) * y_pitch + 8 * h] = even[4 * i + 2 * h + e];
            group_barrier<128>(group);
        };
        // As many records and stages as multiply() can use.
        const auto skip = [&] {
            for (int record = 0; record < count; ++record) {
                barrier_wait(full + 8 * slot, parity);
                barrier_arrive_if(empty + 8 * slot, lane == 0);
                if (++slot == slots) slot = 0, parity ^= 1;
                for (int b = 0; b < w4a16::record_blocks; b += stage_blocks) {
                    barrier_wait(x_full + 8 * stage, x_parity);
                    barrier_arrive_if(x_empty + 8 * stage, lane == 0);
                    if (++stage == stages) stage = 0, x_parity ^= 1;
                }
            }
            ready = false;
        };
#pragma unroll 1
        for (; item.more(); item.next()) {
            const int row_tile = item.row_group * M::item_tiles + 4 * group;
            if (row_tile >= args.row_tiles) {
                skip();
                continue;
            }
            multiply();
            store_outputs(args, item, row_tile * w4a16::record_rows, four, thread);
        }
    }
}

template <class M>
struct Type {
    using type = M;
};
template <class Visit>
cudaError_t visit_tokens(int tokens, Visit visit) {
    switch (tokens) {
        case 16:
            return visit(Type<Many<16, 4>>());
        case 32:
            return visit(Type<Many<32, 3>>());
        case 48:
            return visit(Type<Many<48, 3>>());
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

cudaError_t launch_sm90_experts_w4a16(const ExpertsArgs& args, int tokens, int blocks, cudaStream_t stream) {
    return visit_tokens(tokens, [&]<class M>(Type<M>) {
        return launch_kernel(sm90_experts_w4a16_kernel<M>, dim3(static_cast<unsigned>(blocks)), M::threads,
                             M::bytes(args.experts), args, stream);
    });
}

cudaError_t prepare_sm90_experts_w4a16() {
    for (const int tokens : {16, 32, 48})
        if (const cudaError_t code = visit_tokens(tokens, []<class M>(Type<M>) {
                return cudaFuncSetAttribute(sm90_experts_w4a16_kernel<M>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            M::bytes(most_experts));
            }))
            return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
