// W4A16 for more than 64 tokens, on wgmma with the weights as the register operand and sums that stay on the chip.
//
// A thread block has 128 rows and 128 tokens: two warpgroups of 64 rows each, and one that keeps rings of x stages (64
// columns) and of weight records full. The two thread blocks of a cluster have neighbouring rows and the same tokens;
// each brings half of x for both. They go through (tile of tokens, 256 rows, part of K) one after the other, so that
// nothing drains between two of them.
//
// Sums: one accumulator per chunk from zero, then neighbours first (tree_sum). Two chunks run one after the other into
// two sets of registers, so that products drain once for both; 52 of their 64 sums wait in registers for those of the
// next two, 12 and the sums of four chunks in shared memory. At 700 W, which 256 tokens reach, every clock without
// products costs almost its share: sums that moved between registers after each chunk, the third level through L2 and
// scattered stores of y were 13 % of the time.
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
// Of the 64 sums of two chunks a thread keeps as many while the next two are made; more do not fit into 240 registers.
constexpr int held = 52;

// Of a warpgroup: sums of four chunks, and of two what is not held; or the output on its way.
constexpr int parked_bytes = sums * 4, rest_bytes = (accumulators - held) * 512, park_bytes = parked_bytes + rest_bytes;
constexpr int y_pitch = 64 + 4;  // floats from token to token: no two lanes of a store share a bank
static_assert(tile * y_pitch * 4 <= park_bytes);

constexpr int weights_at = stages * stage_bytes, park_at = weights_at + consumers * weight_slots * slot_bytes;
constexpr int barriers_at = park_at + consumers * park_bytes;
constexpr int told_at = barriers_at + 16 * (stages + consumers * weight_slots);
constexpr int prefill_bytes = told_at + 16;
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

// Registers [First, Count) of sums in shared memory: [registers / 4][thread][4].
template <int First, int Count>
__device__ void park_sums(float* at, const float (&v)[Count], int thread) {
#pragma unroll
    for (int r = First; r < Count; r += 4)
        *reinterpret_cast<float4*>(at + (r - First) * 128 + thread * 4) = {v[r], v[r + 1], v[r + 2], v[r + 3]};
}
template <int First, int Count>
__device__ void add_parked(float (&v)[Count], const float* at, int thread) {
#pragma unroll
    for (int r = First; r < Count; r += 4) {
        const float4 left = *reinterpret_cast<const float4*>(at + (r - First) * 128 + thread * 4);
        v[r] = left.x + v[r], v[r + 1] = left.y + v[r + 1], v[r + 2] = left.z + v[r + 2], v[r + 3] = left.w + v[r + 3];
    }
}

__device__ void prefetch(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p) : "memory"); }

// What a cluster works on: neighbouring ones share weights and tokens. Parts first, then a few tiles of tokens, then
// rows.
struct Item {
    int part, token_tile, row_pair, first, count;  // records of K

    __device__ Item(const WideArgs& args, int index) {
        part = 0;
        if (args.parts > 1) part = index % args.parts, index /= args.parts;
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
    // Relaxed: the barriers were fenced, the other block reads nothing else of this one. Weights, which come through
    // this block's barriers alone, do not wait for it.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    __syncthreads();
    const auto meet = [] { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); };
    const bool brings_weights = group == consumers && warp % 4 > 0 && warp % 4 <= consumers;
    if (!brings_weights) meet();
    if (args.overlap) overlap_next();
    const int items = args.row_groups * args.token_tiles * args.parts;
    const int first_item = static_cast<int>(blockIdx.x) / cluster, step = static_cast<int>(gridDim.x) / cluster;

    if (group == consumers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        const int brings = warp % 4;  // 0: x, 1 and 2: the weights of a warpgroup
        if (lane == 0 && brings == 0) {
            if (args.overlap) wait_for_previous();
            bring_x(args, items, first_item, step, base, x_full, x_empty, rank);
        } else if (lane == 0 && brings_weights) {
            const int of = brings - 1;
            bring_weights(args, items, first_item, step, static_cast<int>(rank) * consumers + of,
                          base + weights_at + of * weight_slots * slot_bytes, weights_full + 8 * weight_slots * of,
                          weights_empty + 8 * weight_slots * of);
        }
        __syncwarp();
        if (brings_weights) meet();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (args.overlap) wait_for_previous();
        // first_item again: the one above is spilled for the producers' few registers, and its reload would wait
        // behind the stores of y.
        int own_first;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(own_first));
        own_first /= cluster;
        float* parked = reinterpret_cast<float*>(shared + park_at + group * park_bytes);
        float* rest = parked + sums;
        const uint8_t* records =
            shared + weights_at + group * weight_slots * slot_bytes + warp % 4 * w4a16::record_bytes + 16 * lane;
        const uint32_t full = weights_full + 8 * weight_slots * group, empty = full + 8 * consumers * weight_slots;
        // Sums of a chunk with an even number, of the one after it; of the two before them.
        float even[accumulators], odd[accumulators], two[held];
        uint32_t a[buffers][4];
        uint32_t stage = 0, x_parity = 0, slot = 0, parity = 0;
        // The stage before this one: read, once all but the products of three k-steps of this one are done.
        const auto release_last = [&](bool condition) {
            const uint32_t at = x_empty + 8 * (stage > 0 ? stage - 1 : stages - 1);
            for (uint32_t r = 0; r < cluster; ++r) barrier_arrive_at(at, r, lane == 0 && condition);
        };
        const OutputFactors& f = args.factors;
        bool ready = false;  // the stage of x is there, as far as is known
        uint4 next{};        // codes of the block to come
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
                    if (!ready) barrier_wait(x_full + 8 * stage, x_parity);
                    const uint32_t operand = swizzled_operand(base) + stage * (stage_bytes / 16);
                    const uint32_t next_stage = stage + 1 == stages ? 0 : stage + 1;
                    const uint32_t next_parity = next_stage ? x_parity : x_parity ^ 1;
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        wgmma_wait<buffers - 1>();
                        // No branch: it would make the assembler serialize the wgmma around it (C7513).
                        if (k == 3) release_last(b > 0 || record > first);
                        decode_step(a[k], codes, scales, k);
                        wgmma_fence();
                        Wgmma<tile>::run(acc, a[k], operand + 2 * k, 1);
                        wgmma_commit();
                        // A barrier answers after some 100 clocks: asked long before the answer is needed.
                        if (k == 1) ready = barrier_test(x_full + 8 * next_stage, next_parity);
                        if (k == 1 && b + 2 == w4a16::record_blocks)
                            weights_ready = barrier_test(full + 8 * next_slot, next_slot_parity);
                    }
                    stage = next_stage, x_parity = next_parity;
                }
            }
        };
#pragma unroll 1
        for (int index = own_first; index < items; index += step) {
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
            for (int chunk = 0; chunk < args.chunks; chunk += 2) {
                const int begin = min(chunk * args.chunk_records, item.count);
                const int middle = min(begin + args.chunk_records, item.count);
                const int end = args.chunks > 1 ? min(middle + args.chunk_records, item.count) : middle;
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
                    else if (chunk + 2 < args.chunks)
                        park_sums<0, accumulators>(parked, even, thread);
                } else {
                    if (chunk == 0) group_barrier<128>(group);  // all have read the last item's output
                    if (chunk + 2 < args.chunks) {
#pragma unroll
                        for (int r = 0; r < held; ++r) two[r] = even[r];
                        park_sums<held, accumulators>(rest, even, thread);
                    }
                }
            }

            bool last = true;
            if (args.parts > 1) {
                const int row_blocks = args.row_groups * cluster * consumers;
                const int64_t tree = (int64_t{item.token_tile} * row_blocks + row_block) * args.parts;
                last = climb_nodes(even, args.nodes + tree, args.slots + tree * sums, args.parts, item.part, group,
                                   thread, reinterpret_cast<uint32_t*>(shared + told_at) + group);
            }
            if (!last) continue;
            group_barrier<128>(group);  // all have read what was parked
            // Through shared memory: a warp's stores from registers would be 32 bytes of four tokens each.
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = warp % 4 * 16 + lane / 4 + 8 * h, of = min(row_block * 64 + row, args.n - 1);
                const float scale = f.row_scales ? f.row_scales[of] : f.tensor_scale ? *f.tensor_scale : 1.0f;
                const float bias = f.bias ? f.bias[of] : 0.0f;
                float* to = parked + lane % 4 * 2 * y_pitch + row;
#pragma unroll
                for (int i = 0; i < tile / 8; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float v = w4a16_scaled(even[4 * i + 2 * h + e], scale);
                        to[(8 * i + e) * y_pitch] = f.bias ? v + bias : v;
                    }
            }
            const int tokens = min(tile, args.tokens - item.token_tile * tile), rows = min(64, args.n - row_block * 64);
            float* y = args.y + int64_t{item.token_tile} * tile * f.y_stride + row_block * 64;
            group_barrier<128>(group);
            if (!((reinterpret_cast<uintptr_t>(args.y) / 4 | f.y_stride | args.n) & 3)) {
                const int row = thread % 16 * 4, token = thread / 16, end = row < rows ? tokens : 0;
                float* to = y + token * f.y_stride + row;
                const float* from = parked + token * y_pitch + row;
#pragma unroll 1
                for (int t = token; t < tile; t += 32, to += 32 * f.y_stride, from += 32 * y_pitch) {
                    float4 v[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[i] = *reinterpret_cast<const float4*>(from + 8 * i * y_pitch);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (t + 8 * i < end) *reinterpret_cast<float4*>(to + 8 * i * f.y_stride) = v[i];
                }
            } else {
#pragma unroll 1
                for (int i = thread; i < tokens * 64; i += 128)
                    if (i % 64 < rows) y[i / 64 * f.y_stride + i % 64] = parked[i / 64 * y_pitch + i % 64];
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
