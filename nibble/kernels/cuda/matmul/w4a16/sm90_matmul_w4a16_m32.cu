// W4A16 for 9 to 32 tokens on wgmma, with the decoded weights as the register operand (A) and x in shared memory (B).
// sm90_matmul_w4a16_m128.cu takes more tokens, matmul_w4a16_m8.cu fewer.
//
// Work of a warpgroup: 64 rows of W, one tile of tokens, `chunks` consecutive chunks of K (w4a16_matmul_cuda.h defines
// chunks). A thread block has RowBlocks x KParts warpgroups. Split-K: `parts` thread blocks share rows and tokens, and
// Cluster (1 or 2) of them form a cluster.
//
// Data flow:
//   W   each warp fills its own ring buffer of weight records with the copy engine, as in matmul_w4a16_m8.cu
//   x   comes in stages that all row blocks of a thread block share, in the column order that w4a16_permute_kernel
//   writes;
//       reading x from the L2 is the limit when a thread block has few rows
//
// Sums: one accumulator per chunk from zero, then a binary tree over the chunks, neighbours first (tree_sum). The tree
// has three levels:
//   1. A thread keeps its own partial sums in shared memory, or in `parks` (global memory) where that is full.
//   2. The sums of a cluster meet in shared memory, where each warpgroup adds one slice of the tokens.
//   3. The sums of several clusters meet in `slots` (global memory) in pairs: the first of a pair leaves its sums and
//      ends, the second adds them to its own. The second waits at most for stores of a thread block that already runs.
// The traffic through the L2 is the price of the fixed order of sums. With all sums in the L2 it was half of the time
// at 128 tokens (36 us, of which 17 did not depend on K).
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_sums.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

// Records per ring buffer. With four (16 tokens) or three (32 tokens) x waits for weights: 16.3 us instead of 14.0.
constexpr int weight_slots = 2;

template <int Tokens, int RowBlocks, int KParts, int Cluster>
struct Wide {
    static constexpr int warps = 4 * RowBlocks * KParts, threads = 32 * warps;
    static constexpr int cols = Tokens * KParts >= 64 ? 128 : 256, record_stages = w4a16::record_cols / cols;
    static constexpr int stage_bytes = Tokens * cols * 2;  // x of one part of K
    static constexpr int stages = 4;
    static constexpr int x_bytes = KParts * stages * stage_bytes;
    static constexpr int accumulators = Tokens / 2;
    // True if the first level of a thread's own tree lies in shared memory.
    static constexpr bool park_here = Tokens * KParts <= 64;
    static constexpr int parks_at = x_bytes + warps * weight_slots * w4a16::record_bytes;
    static constexpr int park_bytes = park_here ? warps / 4 * accumulators * 512 : 0;
    static constexpr int barriers_at = parks_at + park_bytes;
    // More than half of the shared memory, so that one thread block runs per multiprocessor: `parks` are indexed by the
    // number of the multiprocessor.
    static constexpr int used_bytes = barriers_at + 8 * (warps * weight_slots + 2 * KParts * stages) + 16;
    static constexpr int shared_bytes = used_bytes > 120 * 1024 ? used_bytes : 120 * 1024;
    // Warpgroups of a cluster that share rows, and the accumulators (tokens) that each of them finishes.
    static constexpr int units = KParts * Cluster, slice = accumulators / units;
    static_assert(warps / 4 * accumulators * 512 <= x_bytes);  // sums meet in the memory of x
    // k-steps per buffer of decoded weights, and buffers. Four buffers are 2 % slower.
    static constexpr int steps = 4, buffers = 2;
    static_assert(cols / 16 / steps >= buffers);
};

__device__ float2 cluster_pair(uint32_t at, uint32_t rank) {
    float2 v;
    asm volatile(
        "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %2, %3;\n\t"
        "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n\t}"
        : "=f"(v.x), "=f"(v.y)
        : "r"(at), "r"(rank)
        : "memory");
    return v;
}

template <int Tokens, int RowBlocks, int KParts, int Cluster>
__global__ void __launch_bounds__(128 * RowBlocks * KParts, 1)
    sm90_matmul_w4a16_m32_kernel(const __grid_constant__ WideArgs args) {
    using W = Wide<Tokens, RowBlocks, KParts, Cluster>;
    extern __shared__ __align__(1024) uint8_t shared[];
    // The shuffle tells the compiler that the value is the same in a warp, which keeps it in uniform registers.
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = warp / 4, thread = static_cast<int>(threadIdx.x) % 128;
    const int row_block_here = group % RowBlocks, k_part = KParts == 1 ? 0 : group / RowBlocks;

    // Order of thread blocks: parts of K first, then a band of token tiles, then rows. Thread blocks of one wave then
    // share weights and tokens in the L2.
    int64_t block = blockIdx.x;
    const int part_index = static_cast<int>(block % args.parts);
    block /= args.parts;
    const int64_t band = int64_t{args.band} * args.row_groups;
    const int first_tile = static_cast<int>(block / band) * args.band;
    const int band_tiles = min(args.band, args.token_tiles - first_tile);
    const int in_band = static_cast<int>(block % band);
    const int token_tile = first_tile + in_band % band_tiles, row_group = in_band / band_tiles;

    const int row_block = row_group * RowBlocks + row_block_here;
    const int row_tile = row_block * 4 + warp % 4;
    const int unit =
        part_index * KParts + k_part;  // number of this warpgroup among those with the same rows and tokens
    const int chunk0 = unit * args.chunks;
    const int first = min(chunk0 * args.chunk_records, args.row_records);
    const int count = min((chunk0 + args.chunks) * args.chunk_records, args.row_records) - first;
    const bool rows_exist = row_tile < args.row_tiles;

    const uint32_t base = shared_address(shared);
    const uint32_t slots = base + W::x_bytes + warp * weight_slots * w4a16::record_bytes;
    const uint32_t barriers = base + W::barriers_at;
    const uint32_t weight_full = barriers + warp * weight_slots * 8;
    const uint32_t x_full = barriers + (W::warps * weight_slots + k_part * 2 * W::stages) * 8;
    const uint32_t x_empty = x_full + W::stages * 8;
    const uint32_t stages = base + k_part * W::stages * W::stage_bytes;
    const uint8_t* records = args.records + (int64_t{row_tile} * args.row_records + first) * w4a16::record_bytes;
    const auto request_weights = [&](int i) {
        const uint32_t slot = i % weight_slots;
        barrier_expect(weight_full + 8 * slot, w4a16::record_bytes);
        bulk_copy(slots + slot * w4a16::record_bytes, records + int64_t{i} * w4a16::record_bytes, w4a16::record_bytes,
                  weight_full + 8 * slot);
    };
    const bool leads = row_block_here == 0 && warp % 4 == 0 && lane == 0;
    const int x_stages = count * W::record_stages;
    const uint8_t* x =
        args.x + (int64_t{token_tile} * args.row_records + first) * (W::record_stages * int64_t{W::stage_bytes});
    const auto request_x = [&](int i) {
        const uint32_t stage = i % W::stages;
        barrier_expect(x_full + 8 * stage, W::stage_bytes);
        bulk_copy(stages + stage * W::stage_bytes, x + int64_t{i} * W::stage_bytes, W::stage_bytes, x_full + 8 * stage);
    };

    if (lane == 0)
        for (int s = 0; s < weight_slots; ++s) barrier_init(weight_full + 8 * s, 1);
    if (leads)
        for (int s = 0; s < W::stages; ++s) {
            barrier_init(x_full + 8 * s, 1);
            barrier_init(x_empty + 8 * s, 4 * RowBlocks);
        }
    if (lane == 0) {
        barrier_init_done();
        if (rows_exist)
            for (int i = 0; i < min(weight_slots, count); ++i) request_weights(i);
    }
    __syncthreads();
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    if (leads)
        for (int i = 0; i < min(W::stages, x_stages); ++i) request_x(i);

    float acc[W::accumulators];
    uint32_t a[W::buffers][4 * W::steps];
    uint32_t processor;
    asm("mov.u32 %0, %%smid;" : "=r"(processor));
    constexpr int sums = W::accumulators * 128;  // floats per warpgroup
    float* shared_park = reinterpret_cast<float*>(shared + W::parks_at) + group * sums;
    float* parks = args.parks + (int64_t{processor} * (W::warps / 4) + group) * args.levels * sums;
    const auto park = [&](int level) {
        return W::park_here && level == 0 ? shared_park : parks + int64_t{level} * sums;
    };

    uint32_t stage = 0;  // stages of x waited for so far
    int record = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < args.chunks; ++chunk) {
        const int begin = record, end = min((chunk + 1) * args.chunk_records, count);
#pragma unroll 1
        for (; record < end; ++record) {
            const uint8_t* slot = shared + (slots - base) + record % weight_slots * w4a16::record_bytes;
            if (rows_exist) barrier_wait(weight_full + 8 * (record % weight_slots), record / weight_slots & 1);
            const uint2 scale_bytes = *reinterpret_cast<const uint2*>(slot + w4a16::record_code_bytes + 8 * lane);
            // The whole record goes to registers, so that its slot can be refilled at once.
            uint4 codes[w4a16::record_blocks];
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b)
                codes[b] = *reinterpret_cast<const uint4*>(slot + 512 * b + 16 * lane);
            loads_done();  // before the slot is refilled (ptx.cuh); zero_after() is not faster here
            __syncwarp();
            if (lane == 0 && rows_exist && record + weight_slots < count) request_weights(record + weight_slots);

            constexpr int groups = 4 / W::steps;  // buffers of k-steps per block of 64 columns
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b) {
                const ScalePairs scales(scale_bytes, b, args.scale_bits);
                constexpr int stage_blocks = W::cols / 64;
                if (b % stage_blocks == 0) {
                    const int free = static_cast<int>(stage) - 2;  // the stage that all warps leave next
                    if (leads && free >= 0 && free + W::stages < x_stages) {
                        barrier_wait(x_empty + 8 * (free % W::stages), free / W::stages & 1);
                        request_x(free + W::stages);
                    }
                    __syncwarp();
                    barrier_wait(x_full + 8 * (stage % W::stages), stage / W::stages & 1);
                    ++stage;
                }
                const uint32_t operand =
                    swizzled_operand(stages) +
                    ((stage - 1) % W::stages * W::stage_bytes + b % stage_blocks * (Tokens * 128)) / 16;
#pragma unroll
                for (int g = 0; g < groups; ++g) {
                    uint32_t(&buffer)[4 * W::steps] = a[(b * groups + g) % W::buffers];
                    wgmma_wait<W::buffers - 1>();
                    // With buffers - 1 groups of this stage committed, all groups of earlier stages are complete.
                    if (b % stage_blocks * groups + g == W::buffers - 1) {
                        // Predicated, not a branch: a branch makes ptxas serialize the wgmma around it (C7513).
                        barrier_arrive_if(x_empty + 8 * ((stage - 2) % W::stages), lane == 0 && stage >= 2);
                    }
#pragma unroll
                    for (int s = 0; s < W::steps; ++s) decode_step(buffer + 4 * s, codes[b], scales, g * W::steps + s);
                    wgmma_fence();
#pragma unroll
                    for (int s = 0; s < W::steps; ++s) {
                        const int step = g * W::steps + s;
                        Wgmma<Tokens>::run(acc, buffer + 4 * s, operand + 2 * step, b + step > 0 || record > begin);
                    }
                    wgmma_commit();
                }
            }
        }
        wgmma_wait<0>();
        if (begin == end)
#pragma unroll
            for (float& v : acc) v = 0.0f;
        int level = 0;
        for (int c = chunk; c & 1; c >>= 1, ++level) add_sums(acc, park(level), thread);
        if (chunk + 1 < args.chunks) store_sums(park(level), acc, thread);
    }

    float part[W::slice];
    int first_register = 0;
    if constexpr (W::units == 1) {
#pragma unroll
        for (int r = 0; r < W::slice; ++r) part[r] = acc[r];
    } else {
        uint32_t rank = 0;
        if (Cluster > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        const int mine = static_cast<int>(rank) * KParts + k_part;
        first_register = mine * W::slice;
        // [warpgroup][registers / 2][thread][2]
        __syncthreads();
        float2* own = reinterpret_cast<float2*>(shared) + group * (sums / 2) + thread;
#pragma unroll
        for (int r = 0; r < W::accumulators; r += 2) own[r / 2 * 128] = {acc[r], acc[r + 1]};
        if constexpr (Cluster > 1) {
            cluster_sync();
        } else {
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < W::slice; r += 2) {
            float x[W::units], y[W::units];
#pragma unroll
            for (int u = 0; u < W::units; ++u) {
                const uint32_t at = base + static_cast<uint32_t>((u % KParts * RowBlocks + row_block_here) * sums * 4 +
                                                                 ((first_register + r) / 2 * 128 + thread) * 8);
                const float2 v =
                    Cluster > 1 ? cluster_pair(at, u / KParts) : *reinterpret_cast<const float2*>(shared + (at - base));
                x[u] = v.x, y[u] = v.y;
            }
            part[r] = tree_sum(x), part[r + 1] = tree_sum(y);
        }
        if (Cluster > 1) cluster_arrive();  // with cluster_wait() below: no thread block ends while its sums are read
    }
    // Third level: clusters are the leaves of a binary tree whose node n has the children 2 n and 2 n + 1.
    const int clusters = args.parts / Cluster;
    bool last = true;
    if (clusters > 1) {
        const int64_t tree =
            ((int64_t{token_tile} * args.row_groups * RowBlocks + row_block) * W::units + first_register / W::slice) *
            clusters;
        last =
            climb_nodes(part, args.nodes + tree, args.slots + tree * (W::slice * 128), clusters, part_index / Cluster,
                        group, thread, reinterpret_cast<uint32_t*>(shared + (W::used_bytes - 16)) + group);
    }
    if (last && rows_exist) {
#pragma unroll
        for (int r = 0; r < W::slice; r += 2) {
            const int at = first_register + r, token = token_tile * Tokens + lane % 4 * 2 + at / 4 * 8;
            const int row = row_tile * 16 + lane / 4 + at / 2 % 2 * 8;
            float* y = args.y + token * args.factors.y_stride + row;
            if (row >= args.n) continue;
            if (token < args.tokens) y[0] = w4a16_output(part[r], args.factors, row);
            if (token + 1 < args.tokens) y[args.factors.y_stride] = w4a16_output(part[r + 1], args.factors, row);
        }
    }
    if (Cluster > 1) cluster_wait();
}

// x [tokens, k] to [token tile][k / 64][token of the tile][64 columns], the layout that swizzled_operand() describes.
// The 64 columns of a token are eight pieces of 16 bytes: piece q holds the column pairs q, 8 + q, 16 + q and 24 + q,
// and lies at position q ^ token % 8. Tokens and columns past the end are zeros.
template <int Tokens>
__global__ void w4a16_permute_kernel(const uint32_t* __restrict__ x, uint4* __restrict__ out, int tokens, int blocks,
                                     int cols, bool overlap) {
    if (overlap) {
        overlap_next();
        wait_for_previous();
    }
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const int q = static_cast<int>(i % 8), t = static_cast<int>(i / 8 % Tokens);
    const int64_t at = i / (8 * Tokens);
    const int block = static_cast<int>(at % blocks), token = static_cast<int>(at / blocks) * Tokens + t;
    if (token - t >= tokens) return;
    uint4 v{0, 0, 0, 0};
    if (token < tokens) {
        const int pair = block * 32 + q;
        const uint32_t* from = x + int64_t{token} * (cols / 2) + pair;
        const auto load = [&](int i) { return 2 * (pair + i) < cols ? from[i] : 0u; };
        v = {load(0), load(8), load(16), load(24)};
    }
    out[(at * Tokens + t) * 8 + (q ^ t % 8)] = v;
}

template <int Tokens, int RowBlocks, int KParts, int Cluster>
cudaError_t launch(Wide<Tokens, RowBlocks, KParts, Cluster> w, const WideArgs& args, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Cluster, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(int64_t{args.parts} * args.row_groups * args.token_tiles);
    config.blockDim = w.threads;
    config.dynamicSmemBytes = w.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = args.overlap ? 2 : 1;
    return cudaLaunchKernelEx(&config, sm90_matmul_w4a16_m32_kernel<Tokens, RowBlocks, KParts, Cluster>, args);
}

template <int Tokens, int RowBlocks, int KParts, int Cluster>
cudaError_t prepare(Wide<Tokens, RowBlocks, KParts, Cluster> w) {
    static_assert(w.shared_bytes <= 227 * 1024);
    return cudaFuncSetAttribute(sm90_matmul_w4a16_m32_kernel<Tokens, RowBlocks, KParts, Cluster>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, w.shared_bytes);
}

template <int Tokens, int RowBlocks, int KParts, class Visit>
cudaError_t visit_cluster(const WideShape& s, Visit visit) {
    if (s.cluster == 1) return visit(Wide<Tokens, RowBlocks, KParts, 1>{});
    if (s.cluster == 2) return visit(Wide<Tokens, RowBlocks, KParts, 2>{});
    return cudaErrorInvalidValue;
}

// Calls visit(Wide<...>{}) for a compiled shape; any other shape is cudaErrorInvalidValue.
template <class Visit>
cudaError_t visit_shape(const WideShape& s, Visit visit) {
    switch (s.tokens * 100 + s.row_blocks * 10 + s.k_parts) {
        case 1641:
            return visit_cluster<16, 4, 1>(s, visit);
        case 1622:
            return visit_cluster<16, 2, 2>(s, visit);
        case 3241:
            return visit_cluster<32, 4, 1>(s, visit);
        case 3222:
            return visit_cluster<32, 2, 2>(s, visit);
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

cudaError_t launch_sm90_matmul_w4a16_m32(const WideArgs& args, const WideShape& shape, cudaStream_t stream) {
    return visit_shape(shape, [&](auto w) { return launch(w, args, stream); });
}

cudaError_t prepare_sm90_matmul_w4a16_m32(const WideShape& shape) {
    return visit_shape(shape, [](auto w) { return prepare(w); });
}

cudaError_t launch_w4a16_permute(const PermuteArgs& args, int tile, cudaStream_t stream) {
    const int64_t tiles = (args.tokens + tile - 1) / tile, count = tiles * args.blocks * tile * 8;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>((count + 255) / 256);
    config.blockDim = 256;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    const auto go = [&](auto kernel) {
        return cudaLaunchKernelEx(&config, kernel, reinterpret_cast<const uint32_t*>(args.x),
                                  reinterpret_cast<uint4*>(args.out), args.tokens, args.blocks, args.cols,
                                  args.overlap);
    };
    switch (tile) {
        case 16:
            return go(w4a16_permute_kernel<16>);
        case 32:
            return go(w4a16_permute_kernel<32>);
        case 64:
            return go(w4a16_permute_kernel<64>);
        case 96:
            return go(w4a16_permute_kernel<96>);
        case 128:
            return go(w4a16_permute_kernel<128>);
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace nibble::cuda
