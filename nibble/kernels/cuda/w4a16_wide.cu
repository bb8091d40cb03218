// W4A16 for nine tokens and more, on wgmma with the weights as the register operand.
//
// A warpgroup takes 64 rows, a tile of tokens and `chunks` consecutive chunks of K. A thread block is RowBlocks x
// KParts warpgroups; `parts` thread blocks share rows and tokens. Every warp fills its own ring of weight records, as
// in the GEMV; x, in the order of columns that wgmma needs (permute_kernel), comes in stages that all row blocks share:
// reading x from L2 is what limits small row counts per block.
//
// Sums: one accumulator per chunk from zero, then neighbours first (tree_sum). A warpgroup's own partial sums wait in
// `scratch`, written and read by the same thread; the sums of several warpgroups meet there too: the last one to finish
// (a counter tells) adds all of them in order. Nobody waits for another thread block.
#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/w4a16_decode.cuh"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int weight_slots = 2;

template <int Tokens, int RowBlocks, int KParts>
struct Wide {
    static constexpr int warps = 4 * RowBlocks * KParts, threads = 32 * warps;
    static constexpr int cols = Tokens > 128          ? 64
                                : Tokens *KParts > 64 ? 128
                                                      : 256,
                         record_stages = w4a16::record_cols / cols;
    static constexpr int stage_bytes = Tokens * cols * 2;  // of one K part
    static constexpr int stages = Tokens > 128 ? 5 : 4;
    static constexpr int x_bytes = KParts * stages * stage_bytes;
    static constexpr int barriers_at = x_bytes + warps * weight_slots * w4a16::record_bytes;
    // One thread block on a multiprocessor: sequential sums have their place by its number.
    static constexpr int used_bytes = barriers_at + 8 * (warps * weight_slots + 2 * KParts * stages) + 16;
    static constexpr int shared_bytes = used_bytes > 120 * 1024 ? used_bytes : 120 * 1024;
    static constexpr int accumulators = Tokens / 2;
    // Two A buffers; with many accumulators they are shorter.
    static constexpr int steps = Tokens > 32 ? 2 : 4;
    // Whether a warp holds a whole record, so that its slot is free at once, or reads it block by block.
    static constexpr bool whole_record = Tokens <= 64;
};

template <int Threads>
__device__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(Threads) : "memory");
}

template <int Registers>
__device__ void store_sums(float* at, const float (&v)[Registers], int thread) {
#pragma unroll
    for (int r = 0; r < Registers; r += 4)
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at + (r * 128 + thread * 4)), "f"(v[r]),
                     "f"(v[r + 1]), "f"(v[r + 2]), "f"(v[r + 3])
                     : "memory");
}
// Others' sums come from L2: this multiprocessor's L1 may hold what lay there before.
__device__ float4 load_sums(const float* at, int r, int thread) {
    return __ldcg(reinterpret_cast<const float4*>(at + (r * 128 + thread * 4)));
}

// Adds the sums of `Units` warpgroups in order; four at a time go to `emit`.
template <int Units, int Registers, class Emit>
__device__ void add_units(const float* first, int64_t pitch, int thread, Emit emit) {
#pragma unroll 2
    for (int r = 0; r < Registers; r += 4) {
        float4 v[Units];
#pragma unroll
        for (int u = 0; u < Units; ++u) v[u] = load_sums(first + u * pitch, r, thread);
        float x[Units], y[Units], z[Units], w[Units];
#pragma unroll
        for (int u = 0; u < Units; ++u) x[u] = v[u].x, y[u] = v[u].y, z[u] = v[u].z, w[u] = v[u].w;
        emit(r, tree_sum(x), tree_sum(y), tree_sum(z), tree_sum(w));
    }
}

template <int Tokens, int RowBlocks, int KParts>
__global__ void __launch_bounds__(128 * RowBlocks * KParts, 1) wide_kernel(const __grid_constant__ WideArgs args) {
    using W = Wide<Tokens, RowBlocks, KParts>;
    extern __shared__ __align__(1024) uint8_t shared[];
    // From a shuffle, so that what depends on the warp alone is kept in uniform registers.
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = warp / 4, thread = static_cast<int>(threadIdx.x) % 128;
    const int row_block_here = group % RowBlocks, k_part = KParts == 1 ? 0 : group / RowBlocks;

    // Thread blocks of one wave share weights and tokens: parts first, then a few tiles of tokens, then rows.
    int64_t block = blockIdx.x;
    const int part = static_cast<int>(block % args.parts);
    block /= args.parts;
    const int64_t band = int64_t{args.band} * args.row_groups;
    const int first_tile = static_cast<int>(block / band) * args.band;
    const int band_tiles = min(args.band, args.token_tiles - first_tile);
    const int in_band = static_cast<int>(block % band);
    const int token_tile = first_tile + in_band % band_tiles, row_group = in_band / band_tiles;

    const int row_block = row_group * RowBlocks + row_block_here;
    const int row_tile = row_block * 4 + warp % 4;
    const int unit = part * KParts + k_part;  // of the warpgroups that share rows and tokens
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

    const uint32_t or_bits = scale_or_bits();
    float acc[W::accumulators];
    uint32_t a[2][4 * W::steps];
    const int64_t unit_pitch = int64_t{args.levels} * W::accumulators * 128;
    const int64_t tile_block = int64_t{token_tile} * args.row_groups * RowBlocks + row_block;
    uint32_t processor;
    asm("mov.u32 %0, %%smid;" : "=r"(processor));
    const int64_t place = args.units == 1 ? int64_t{processor} * RowBlocks + row_block_here : tile_block * args.units;
    float* own = args.scratch + (place + unit) * unit_pitch;

    uint32_t stage = 0;  // of x, counted through
    int record = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < args.chunks; ++chunk) {
        const int begin = record, end = min((chunk + 1) * args.chunk_records, count);
#pragma unroll 1
        for (; record < end; ++record) {
            const uint8_t* slot = shared + (slots - base) + record % weight_slots * w4a16::record_bytes;
            if (rows_exist) barrier_wait(weight_full + 8 * (record % weight_slots), record / weight_slots & 1);
            const auto codes_at = [&](int b) { return *reinterpret_cast<const uint4*>(slot + 512 * b + 16 * lane); };
            const auto next_record = [&] {
                __syncwarp();
                if (lane == 0 && rows_exist && record + weight_slots < count) request_weights(record + weight_slots);
            };
            const uint2 scale_bytes = *reinterpret_cast<const uint2*>(slot + w4a16::record_code_bytes + 8 * lane);
            uint4 codes[w4a16::record_blocks];
            if constexpr (W::whole_record) {
#pragma unroll
                for (int b = 0; b < w4a16::record_blocks; ++b) codes[b] = codes_at(b);
                next_record();
            }

            constexpr int groups = 4 / W::steps;  // of k-steps, in a block
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b) {
                const ScalePairs scales(scale_bytes, b, or_bits);
                if constexpr (!W::whole_record) codes[b] = codes_at(b);
                constexpr int stage_blocks = W::cols / 64;
                if (b % stage_blocks == 0) {
                    const int free = static_cast<int>(stage) - 2;  // every warp is past it or soon will be
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
                    uint32_t(&buffer)[4 * W::steps] = a[(b * groups + g) % 2];
                    wgmma_wait<1>();
                    // Everything before this stage is done once its first group is on its way.
                    if (b % stage_blocks * groups + g == 1) {
                        // No branch here: it would make the assembler serialize the wgmma around it (C7513).
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
            if constexpr (!W::whole_record) next_record();
        }
        wgmma_wait<0>();
        if (begin == end)
#pragma unroll
            for (float& v : acc) v = 0.0f;
        int level = 0;
        for (int c = chunk; c & 1; c >>= 1, ++level) {
            const float* left = own + int64_t{level} * W::accumulators * 128;
#pragma unroll
            for (int r = 0; r < W::accumulators; r += 4) {
                const float4 v = *reinterpret_cast<const float4*>(left + r * 128 + thread * 4);
                acc[r] = v.x + acc[r], acc[r + 1] = v.y + acc[r + 1];
                acc[r + 2] = v.z + acc[r + 2], acc[r + 3] = v.w + acc[r + 3];
            }
        }
        if (chunk + 1 < args.chunks) store_sums(own + int64_t{level} * W::accumulators * 128, acc, thread);
    }

    // Row g and g + 8 of two neighbouring tokens, r a multiple of 4.
    const auto emit = [&](int r, float x, float y, float z, float w) {
        const float tensor_scale = args.tensor_scale ? *args.tensor_scale : 1.0f;
        const int token = token_tile * Tokens + lane % 4 * 2 + r * 2;
        float* at = args.y + int64_t{token} * args.n + row_tile * 16 + lane / 4;
        if (token < args.tokens) {
            at[0] = w4a16_output(x, tensor_scale);
            at[8] = w4a16_output(z, tensor_scale);
        }
        if (token + 1 < args.tokens) {
            at[args.n] = w4a16_output(y, tensor_scale);
            at[args.n + 8] = w4a16_output(w, tensor_scale);
        }
    };
    if (args.units == 1) {
        if (!rows_exist) return;
#pragma unroll
        for (int r = 0; r < W::accumulators; r += 4) emit(r, acc[r], acc[r + 1], acc[r + 2], acc[r + 3]);
        return;
    }
    store_sums(own, acc, thread);
    group_barrier<128>(group);
    uint32_t* last = reinterpret_cast<uint32_t*>(shared + (W::shared_bytes - 16)) + group;
    if (thread == 0) {
        // Releases what the warpgroup stored before the barrier, acquires what the others released.
        uint32_t before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(args.counters + tile_block)
                     : "memory");
        *last = before + 1 == static_cast<uint32_t>(args.units);
        if (*last) args.counters[tile_block] = 0;
    }
    group_barrier<128>(group);
    if (*last == 0 || !rows_exist) return;
    const float* all = args.scratch + tile_block * args.units * unit_pitch;
    if (args.units == 2) add_units<2, W::accumulators>(all, unit_pitch, thread, emit);
    if (args.units == 4) add_units<4, W::accumulators>(all, unit_pitch, thread, emit);
    if (args.units == 8) add_units<8, W::accumulators>(all, unit_pitch, thread, emit);
}

// x [tokens, k] -> [token tile][k / 64][tile][64], the order swizzled_operand() expects: 16-byte chunk q of a token's
// 64 columns holds the pairs q, 8 + q, 16 + q, 24 + q and lies at chunk q ^ token % 8. Tokens past the end are zeros.
template <int Tokens>
__global__ void permute_kernel(const uint32_t* __restrict__ x, uint4* __restrict__ out, int tokens, int blocks,
                               bool overlap) {
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
        const uint32_t* from = x + (int64_t{token} * blocks + block) * 32 + q;
        v = {from[0], from[8], from[16], from[24]};
    }
    out[(at * Tokens + t) * 8 + (q ^ t % 8)] = v;
}

template <int Tokens, int RowBlocks, int KParts>
cudaError_t launch(Wide<Tokens, RowBlocks, KParts> w, const WideArgs& args, cudaStream_t stream) {
    using W = decltype(w);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(int64_t{args.parts} * args.row_groups * args.token_tiles);
    config.blockDim = W::threads;
    config.dynamicSmemBytes = W::shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, wide_kernel<Tokens, RowBlocks, KParts>, args);
}

template <int Tokens, int RowBlocks, int KParts>
cudaError_t prepare(Wide<Tokens, RowBlocks, KParts>) {
    static_assert(Wide<Tokens, RowBlocks, KParts>::shared_bytes <= 227 * 1024);
    return cudaFuncSetAttribute(wide_kernel<Tokens, RowBlocks, KParts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Wide<Tokens, RowBlocks, KParts>::shared_bytes);
}

// Calls visit(Wide<...>{}) for a shape that is compiled.
template <class Visit>
cudaError_t visit_shape(const WideShape& s, Visit visit) {
    const int key = s.tokens * 100 + s.row_blocks * 10 + s.k_parts;
    switch (key) {
        case 1641:
            return visit(Wide<16, 4, 1>{});
        case 1622:
            return visit(Wide<16, 2, 2>{});
        case 1614:
            return visit(Wide<16, 1, 4>{});
        case 3241:
            return visit(Wide<32, 4, 1>{});
        case 3222:
            return visit(Wide<32, 2, 2>{});
        case 6441:
            return visit(Wide<64, 4, 1>{});
        case 6422:
            return visit(Wide<64, 2, 2>{});
        case 12841:
            return visit(Wide<128, 4, 1>{});
        case 25621:
            return visit(Wide<256, 2, 1>{});
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

cudaError_t launch_wide(const WideArgs& args, const WideShape& shape, cudaStream_t stream) {
    return visit_shape(shape, [&](auto w) { return launch(w, args, stream); });
}

cudaError_t prepare_wide(const WideShape& shape) {
    return visit_shape(shape, [](auto w) { return prepare(w); });
}

cudaError_t launch_permute(const PermuteArgs& args, int tile, cudaStream_t stream) {
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
                                  reinterpret_cast<uint4*>(args.out), args.tokens, args.blocks, args.overlap);
    };
    switch (tile) {
        case 16:
            return go(permute_kernel<16>);
        case 32:
            return go(permute_kernel<32>);
        case 64:
            return go(permute_kernel<64>);
        case 128:
            return go(permute_kernel<128>);
        case 256:
            return go(permute_kernel<256>);
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace nibble::cuda
