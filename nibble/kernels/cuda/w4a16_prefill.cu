// W4A16 for more than 64 tokens, on wgmma with the weights as the register operand and sums that stay on the chip.
//
// A thread block has 128 rows and 128 tokens: two warpgroups of 64 rows each, and one that keeps rings of x stages (64
// columns) and of weight records full. The two thread blocks of a cluster have neighbouring rows and the same tokens;
// each brings half of x for both. They go through (tile of tokens, 256 rows, part of K) one after the other, so that
// nothing drains between two of them.
//
// Sums: one accumulator per chunk from zero, then neighbours first (tree_sum). 240 registers hold a second set of sums,
// so that the first level never leaves them; the second waits in shared memory, the third in `parks`. While one
// warpgroup adds, the tensor cores work for the other, which may be a ring of stages ahead.
#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/w4a16_decode.cuh"
#include "kernels/cuda/w4a16_sums.cuh"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int consumers = 2, cluster = 2, prefill_threads = 128 * (consumers + 1);
constexpr int tile = 128, half_tile = tile / cluster, accumulators = tile / 2;
constexpr int sums = accumulators * 128;  // of a warpgroup
constexpr int stages = 7, stage_bytes = tile * 128, half_bytes = half_tile * 128;
constexpr int weight_slots = 2, slot_bytes = 4 * w4a16::record_bytes;  // of a warpgroup
// A operands of one k-step each: the products of three may be on their way while the fourth is decoded.
constexpr int buffers = 4;

constexpr int weights_at = stages * stage_bytes, park_at = weights_at + consumers * weight_slots * slot_bytes;
constexpr int barriers_at = park_at + consumers * sums * 4;
constexpr int told_at = barriers_at + 16 * (stages + consumers * weight_slots), prefill_bytes = told_at + 16;
static_assert(prefill_bytes <= 227 * 1024);

__device__ void bulk_copy_to_both(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(3))
        : "memory");
}

// Whether barrier_wait() would return at once.
__device__ bool barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}

// Here a register array has its value: without it ptxas finds writes of accumulators between products and serializes
// them (C7515).
template <int Count>
__device__ void pin(float (&v)[Count]) {
#pragma unroll
    for (float& x : v) asm volatile("" : "+f"(x)::"memory");
}

// What a cluster works on: neighbouring ones share weights and tokens. Parts first, then a few tiles of tokens, then
// rows.
struct Item {
    int part, token_tile, row_pair, first, count;  // records of K

    __device__ Item(const WideArgs& args, int index) {
        part = index % args.parts;
        index /= args.parts;
        const int band = args.band * args.row_groups, first_tile = index / band * args.band;
        const int band_tiles = min(args.band, args.token_tiles - first_tile), in_band = index % band;
        token_tile = first_tile + in_band % band_tiles, row_pair = in_band / band_tiles;
        const int part_records = args.chunks * args.chunk_records;
        first = min(part * part_records, args.row_records);
        count = min((part + 1) * part_records, args.row_records) - first;
    }
};

__device__ void bring_x(const WideArgs& args, int items, int first_item, int step, uint32_t to, uint32_t full,
                        uint32_t empty, uint32_t rank) {
    const int blocks = args.row_records * w4a16::record_blocks;
    uint32_t slot = 0, parity = 1;
    for (int index = first_item; index < items; index += step) {
        const Item item(args, index);
        const uint8_t* x = args.x +
                           (int64_t{item.token_tile} * blocks + item.first * w4a16::record_blocks) * stage_bytes +
                           rank * half_bytes;
        for (int s = 0; s < w4a16::record_blocks * item.count; ++s, x += stage_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            barrier_expect(full + 8 * slot, stage_bytes);
            bulk_copy_to_both(to + slot * stage_bytes + rank * half_bytes, x, half_bytes, full + 8 * slot);
            if (++slot == stages) slot = 0, parity ^= 1;
        }
    }
}

__device__ void bring_weights(const WideArgs& args, int items, int first_item, int step, int row_block, uint32_t slots,
                              uint32_t full, uint32_t empty) {
    uint32_t slot = 0, parity = 1;
    for (int index = first_item; index < items; index += step) {
        const Item item(args, index);
        const int row_tile = (item.row_pair * cluster * consumers + row_block) * 4;
        const int present = max(0, min(4, args.row_tiles - row_tile));
        const int64_t pitch = int64_t{args.row_records} * w4a16::record_bytes;
        const uint8_t* from = args.records + row_tile * pitch + int64_t{item.first} * w4a16::record_bytes;
        for (int r = 0; r < item.count; ++r, from += w4a16::record_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            barrier_expect(full + 8 * slot, present * w4a16::record_bytes);
            for (int t = 0; t < present; ++t)
                bulk_copy(slots + slot * slot_bytes + t * w4a16::record_bytes, from + t * pitch, w4a16::record_bytes,
                          full + 8 * slot);
            if (++slot == weight_slots) slot = 0, parity ^= 1;
        }
    }
}

__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(prefill_threads, 1)
    prefill_kernel(const __grid_constant__ WideArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, thread = static_cast<int>(threadIdx.x) % 128;
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const uint32_t base = shared_address(shared);
    const uint32_t x_full = base + barriers_at, x_empty = x_full + 8 * stages;
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
    cluster_sync();
    if (args.overlap) overlap_next();
    const int items = args.row_groups * args.token_tiles * args.parts;
    const int first_item = static_cast<int>(blockIdx.x) / cluster, step = static_cast<int>(gridDim.x) / cluster;

    if (group == consumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        const int brings = warp % 4;  // 0: x, 1 and 2: the weights of a warpgroup
        if (lane == 0 && brings == 0) {
            if (args.overlap) wait_for_previous();
            bring_x(args, items, first_item, step, base, x_full, x_empty, rank);
        } else if (lane == 0 && brings <= consumers) {
            const int of = brings - 1;
            bring_weights(args, items, first_item, step, static_cast<int>(rank) * consumers + of,
                          base + weights_at + of * weight_slots * slot_bytes, weights_full + 8 * weight_slots * of,
                          weights_empty + 8 * weight_slots * of);
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (args.overlap) wait_for_previous();
        uint32_t processor;
        asm("mov.u32 %0, %%smid;" : "=r"(processor));
        float* parks = args.parks + (int64_t{processor} * consumers + group) * args.levels * sums;
        const auto park = [&](int level) {  // 1, 2
            return level == 1 ? reinterpret_cast<float*>(shared + park_at) + group * sums : parks + level * sums;
        };
        const uint8_t* records =
            shared + weights_at + group * weight_slots * slot_bytes + warp % 4 * w4a16::record_bytes + 16 * lane;
        const uint32_t full = weights_full + 8 * weight_slots * group, empty = full + 8 * consumers * weight_slots;
        float acc[accumulators];
        float kept[accumulators];  // the first level
        uint32_t a[buffers][4];
        uint32_t stage = 0, x_parity = 0, slot = 0, parity = 0;
        // The stage before this one: read, once all but the products of three k-steps of this one are done.
        const auto release_last = [&](bool condition) {
            const uint32_t at = x_empty + 8 * (stage > 0 ? stage - 1 : stages - 1);
            for (uint32_t r = 0; r < cluster; ++r) barrier_arrive_at(at, r, lane == 0 && condition);
        };
#pragma unroll 1
        for (int index = first_item; index < items; index += step) {
            const int count = Item(args, index).count;
            int record = 0;
#pragma unroll 1
            for (int chunk = 0; chunk < args.chunks; ++chunk) {
                const int begin = record, end = min((chunk + 1) * args.chunk_records, count);
#pragma unroll
                for (float& v : acc) v = 0.0f;
                pin(acc);
#pragma unroll 1
                for (; record < end; ++record) {
                    bool ready = barrier_test(x_full + 8 * stage, x_parity);
                    barrier_wait(full + 8 * slot, parity);
                    const uint8_t* at = records + slot * slot_bytes;
                    const uint2 scale_bytes = *reinterpret_cast<const uint2*>(at + w4a16::record_code_bytes - 8 * lane);
                    uint4 next = *reinterpret_cast<const uint4*>(at);
#pragma unroll
                    for (int b = 0; b < w4a16::record_blocks; ++b) {
                        const uint4 codes = next;
                        if (b + 1 < w4a16::record_blocks) {
                            next = *reinterpret_cast<const uint4*>(at + 512 * (b + 1));
                        } else {
                            __syncwarp();
                            barrier_arrive_if(empty + 8 * slot, lane == 0);
                            if (++slot == weight_slots) slot = 0, parity ^= 1;
                        }
                        const ScalePairs scales(scale_bytes, b, args.scale_bits);
                        if (!ready) barrier_wait(x_full + 8 * stage, x_parity);
                        const uint32_t operand = swizzled_operand(base) + stage * (stage_bytes / 16);
                        const uint32_t next_stage = stage + 1 == stages ? 0 : stage + 1;
                        const uint32_t next_parity = next_stage ? x_parity : x_parity ^ 1;
#pragma unroll
                        for (int k = 0; k < 4; ++k) {
                            wgmma_wait<buffers - 1>();
                            // No branch: it would make the assembler serialize the wgmma around it (C7513).
                            if (k == 3) release_last(b > 0 || record > begin);
                            decode_step(a[k], codes, scales, k);
                            wgmma_fence();
                            Wgmma<tile>::run(acc, a[k], operand + 2 * k, 1);
                            wgmma_commit();
                            // A barrier answers after some 100 clocks: asked long before the answer is needed.
                            if (k == 1 && b + 1 < w4a16::record_blocks)
                                ready = barrier_test(x_full + 8 * next_stage, next_parity);
                        }
                        stage = next_stage, x_parity = next_parity;
                    }
                }
                wgmma_wait<0>();
                release_last(begin < end);
                pin(acc);
                if (chunk & 1) {
#pragma unroll
                    for (int r = 0; r < accumulators; ++r) acc[r] = kept[r] + acc[r];
                    int level = 1;
                    for (int c = chunk >> 1; c & 1; c >>= 1, ++level) add_sums(acc, park(level), thread);
                    if (chunk + 1 < args.chunks) store_sums(park(level), acc, thread);
                } else if (chunk + 1 < args.chunks) {
#pragma unroll
                    for (int r = 0; r < accumulators; ++r) kept[r] = acc[r];
                }
            }

            const Item item(args, index);
            const int row_block = (item.row_pair * cluster + static_cast<int>(rank)) * consumers + group;
            bool last = true;
            if (args.parts > 1) {
                const int row_blocks = args.row_groups * cluster * consumers;
                const int64_t tree = (int64_t{item.token_tile} * row_blocks + row_block) * args.parts;
                last = climb_nodes(acc, args.nodes + tree, args.slots + tree * sums, args.parts, item.part, group,
                                   thread, reinterpret_cast<uint32_t*>(shared + told_at) + group);
            }
            if (!last) continue;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = row_block * 64 + warp % 4 * 16 + lane / 4 + 8 * h;
                if (row >= args.n) continue;
                const OutputFactors& f = args.factors;
                const float scale = f.row_scales ? f.row_scales[row] : f.tensor_scale ? *f.tensor_scale : 1.0f;
                const float bias = f.bias ? f.bias[row] : 0.0f;
                const int token0 = item.token_tile * tile + lane % 4 * 2;
                float* y = args.y + token0 * f.y_stride + row;
#pragma unroll
                for (int i = 0; i < tile / 8; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (token0 + 8 * i + e < args.tokens) {
                            const float v = w4a16_scaled(acc[4 * i + 2 * h + e], scale);
                            y[(8 * i + e) * f.y_stride] = f.bias ? v + bias : v;
                        }
            }
        }
    }
    cluster_sync();  // nobody leaves while the other still arrives at its barriers
}

}  // namespace

cudaError_t launch_prefill(const WideArgs& args, int multiprocessors, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    const int64_t items = int64_t{args.row_groups} * args.token_tiles * args.parts;
    const int64_t clusters = multiprocessors / cluster;
    config.gridDim = static_cast<unsigned>((items < clusters ? items : clusters) * cluster);
    config.blockDim = prefill_threads;
    config.dynamicSmemBytes = prefill_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, prefill_kernel, args);
}

cudaError_t prepare_prefill() {
    return cudaFuncSetAttribute(prefill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, prefill_bytes);
}

}  // namespace nibble::cuda
