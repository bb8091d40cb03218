// Products of exact operands for few tokens. A warp has 16 rows of W, all of K and up to 64 tokens, and fills its own
// ring buffer of 64-column pieces with cp.async; one more warp loads x in stages of 256 columns. If there are more
// tiles of 16 rows than warps on the GPU, a thread block processes them in rounds, and the ring buffer continues from
// one to the next. There is one chain per output, so K is not split; at 8192 columns a chain takes 7 us, the weights of
// 128 multiprocessors 32.
//
// The copy engine was slower. Requesting a piece of 2 KB takes a thread 170 to 290 clocks, which delayed the chain of
// the warp that requested its own pieces (4096 x 14336, m = 1: 2.4 TB/s); one requesting thread for all warps reached
// 1.7 TB/s.
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int most_warps = 15, all_bytes = 227 * 1024, x_blocks = 4;  // blocks of 64 columns
// A warp's ring buffer: groups of pieces; all but one are in flight.
constexpr int ring_groups = 5, most_pieces = 4, ring_bytes = 160 * 1024;
// Limit for thread blocks with one tile of tokens. Any number is correct; this one fills an H200.
constexpr int one_wave = 132;

template <int Tiles>  // tiles of eight tokens
struct Narrow {
    static constexpr int tokens = 8 * Tiles, x_block_bytes = tokens * 128, x_stage_bytes = x_blocks * x_block_bytes;
    static constexpr int x_stages = Tiles == 1 ? 8 : Tiles == 2 ? 4 : Tiles == 4 ? 3 : 2;
    static constexpr int x_bytes = x_stages * x_stage_bytes;
    static constexpr int x_barriers = 16 * x_stages;
    // Pieces per group.
    static int pieces(int warps) {
        const int fit = ring_bytes / (warps * ring_groups * operand_row_tile_bytes);
        return fit < most_pieces ? fit : most_pieces;
    }
    static int bytes(int warps) {
        return x_bytes + x_barriers + warps * pieces(warps) * ring_groups * operand_row_tile_bytes;
    }
};
static_assert(Narrow<8>::x_bytes + Narrow<8>::x_barriers + ring_bytes <= all_bytes);

template <int Tiles>
__device__ void bring_x(const ProductArgs& args, const TokenTile& tokens, uint32_t x_at, uint32_t full, uint32_t empty,
                        int lane, int rounds) {
    using L = Narrow<Tiles>;
    const int chunk = lane % 8;
    const uint8_t* from[2 * Tiles];
    uint32_t to[2 * Tiles];
#pragma unroll
    for (int j = 0; j < 2 * Tiles; ++j) {
        const int token = lane / 8 + 4 * j, row = tokens.first + token;
        const bool exists = token < tokens.count;
        from[j] = exists ? args.x + (args.rows ? args.rows[row] : row) * args.x_stride + 16 * chunk : nullptr;
        to[j] = token * 128 + (chunk ^ token % 8) * 16;
    }
    uint32_t slot = 0, parity = 1;
    const int stages = (args.k_tiles + x_blocks - 1) / x_blocks;
    for (int stage = 0; stage < rounds * stages; ++stage) {
        const int block = stage % stages * x_blocks;
        barrier_wait(empty + 8 * slot, parity);
        for (int b = 0; b < x_blocks && block + b < args.k_tiles; ++b) {
            const int column = 64 * (block + b) + 8 * chunk;
            const bool inside = column < args.k;
            const uint32_t at = x_at + slot * L::x_stage_bytes + b * L::x_block_bytes;
#pragma unroll
            for (int j = 0; j < 2 * Tiles; ++j) {
                // Slots of absent tokens keep old data: their columns are never stored. (Copying zeros from one address
                // in all thread blocks would serialize there.)
                if (from[j]) copy16_or_zero(at + to[j], inside ? from[j] + 128 * int64_t{block + b} : from[j], inside);
            }
        }
        barrier_arrive_after_copies(full + 8 * slot);
        if (++slot == L::x_stages) slot = 0, parity ^= 1;
    }
}

// Adds the sums of a group of 128 columns to the totals, times its scales, and begins the next group with zeros.
template <int Tiles>
__device__ __forceinline__ void add_group(const ProductArgs& args, const TokenTile& tokens, int row_tile, int block,
                                          int g, int c, float (&acc)[Tiles][4], float (&total)[Tiles][4]) {
    const int across = (args.k + 127) / 128;
    float of_tile[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
        of_tile[h] = args.tile_scales[(int64_t{tokens.expert} * ((args.n + 127) / 128) +
                                       (min(16 * row_tile + g + 8 * h, args.n - 1) >> args.tile_shift)) *
                                          across +
                                      block];
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int token = min(8 * t + 2 * c + e % 2, tokens.count - 1), row = tokens.first + token;
            const float of_group = args.group_scales
                                       ? args.group_scales[int64_t{args.rows ? args.rows[row] : row} * across + block]
                                       : 1.0f;
            total[t][e] = fmaf(acc[t][e], of_group * of_tile[e / 2], total[t][e]);
            acc[t][e] = 0.0f;
        }
}

// Stores a warp's outputs: 16 rows of W from 16 * row_tile on, all tokens of the tile.
template <int Tiles>
__device__ __forceinline__ void store_outputs(const ProductArgs& args, const TokenTile& tokens, int row_tile, int g,
                                              int c, const float (&sums)[Tiles][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = row_tile * 16 + g + 8 * h;
        if (row >= args.n) continue;
        const RowFactors factors(args, tokens.expert, row);
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int token = 8 * t + 2 * c + e, at = tokens.first + token;
                if (token >= tokens.count) continue;
                const float factor = factors.scale * token_factor(args, args.rows ? args.rows[at] : at);
                args.y[at * args.y_stride + row] = product_output(sums[t][2 * h + e], factor, factors.bias);
            }
    }
}

template <int Tiles, bool ByTile>
__global__ void __launch_bounds__(32 * (most_warps + 1), 1)
    matmul_bf16_m64_kernel(const __grid_constant__ ProductArgs args) {
    using L = Narrow<Tiles>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const uint32_t x_at = shared_address(shared), x_full = x_at + L::x_bytes, x_empty = x_full + 8 * L::x_stages;
    const uint32_t group_bytes = args.stages * operand_row_tile_bytes;
    const uint32_t ring = x_full + L::x_barriers + warp * ring_groups * group_bytes;
    if (args.overlap) overlap_next();
    if (args.overlap && args.experts > 0) wait_for_previous();
    const int each = static_cast<int>(gridDim.x) * args.warps;  // row tiles per round
    const int rounds = (args.row_tiles - static_cast<int>(blockIdx.x) * args.warps + each - 1) / each;
    const int first_row_tile = static_cast<int>(blockIdx.x) * args.warps + warp;
    const TokenTile tokens = find_tile(args, static_cast<int>(blockIdx.y), L::tokens);
    if (tokens.count <= 0) return;
    const uint8_t* weights = args.tiles + tokens.expert * args.expert_bytes;
    // The warp's next pieces to load, over its row tiles in order.
    int wanted_tile = warp < args.warps ? first_row_tile : args.row_tiles, wanted_piece = 0;
    const auto request_group = [&](uint32_t group) {
        for (int i = 0; i < args.stages && wanted_tile < args.row_tiles; ++i) {
            const uint8_t* from = weights +
                                  (int64_t{wanted_tile / 4} * args.k_tiles + wanted_piece) * operand_tile_bytes +
                                  wanted_tile % 4 * operand_row_tile_bytes + 16 * lane;
            const uint32_t to = ring + group * group_bytes + i * operand_row_tile_bytes + 16 * lane;
#pragma unroll
            for (int j = 0; j < 4; ++j) copy16(to + 512 * j, from + 512 * j);
            if (++wanted_piece == args.k_tiles) wanted_piece = 0, wanted_tile += each;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    if (warp < args.warps)
        for (int i = 0; i < ring_groups - 1; ++i) request_group(i);
    if (warp == args.warps && lane == 0) {
        for (int s = 0; s < L::x_stages; ++s) {
            barrier_init(x_full + 8 * s, 32);
            barrier_init(x_empty + 8 * s, args.warps);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (warp == args.warps) {
        if (args.overlap && args.experts == 0) wait_for_previous();
        return bring_x<Tiles>(args, tokens, x_at, x_full, x_empty, lane, rounds);
    }

    // ldmatrix: the row and 16-byte chunk that a lane addresses.
    const int a_row = lane % 16, a_half = lane / 16;
    const int b_row = Tiles == 1 ? lane % 8 : lane / 16 * 8 + lane % 8, b_half = Tiles == 1 ? lane / 8 : lane / 8 % 2;
    const uint32_t a_at = a_row * 128, b_at = b_row * 128;
    float acc[Tiles][4] = {}, total[ByTile ? Tiles : 1][4] = {};
    // The previous kernel may have written the scales.
    if (ByTile && args.overlap) wait_for_previous();
    uint32_t group = ring_groups - 1, x_slot = 0, x_parity = 0;
    int in_group = 0;
    const auto next_x = [&](int s) {  // after piece s
        const bool done = s % x_blocks == x_blocks - 1 || s + 1 == args.k_tiles;
        barrier_arrive_if(x_empty + 8 * x_slot, lane == 0 && done);
        if (done && ++x_slot == L::x_stages) x_slot = 0, x_parity ^= 1;
    };
    // Operands of two k-steps.
    struct Half {
        uint32_t a[2][4], b[2][Tiles][2];
    };
    const auto load = [&](Half& f, int s, int j) {
        if (j == 0 && s % x_blocks == 0) barrier_wait(x_full + 8 * x_slot, x_parity);
        if (j == 0 && in_group == 0) {
            // All but the newest groups have arrived, for every lane; the previous slot has been read and is refilled.
            asm volatile("cp.async.wait_group %0;" ::"n"(ring_groups - 2) : "memory");
            __syncwarp();
            request_group(group);
            group = group + 1 == ring_groups ? 0 : group + 1;
        }
        const uint32_t piece = ring + group * group_bytes + in_group * operand_row_tile_bytes;
        const uint32_t x_block = x_at + x_slot * L::x_stage_bytes + s % x_blocks * L::x_block_bytes;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            load_matrices(f.a[i], piece + a_at + ((2 * (j + i) + a_half) ^ a_row % 8) * 16);
            if constexpr (Tiles > 1) {
#pragma unroll
                for (int t = 0; t < Tiles; t += 2) {
                    uint32_t r[4];
                    load_matrices(r, x_block + b_at + t * 1024 + ((2 * (j + i) + b_half) ^ b_row % 8) * 16);
                    f.b[i][t][0] = r[0], f.b[i][t][1] = r[1], f.b[i][t + 1][0] = r[2], f.b[i][t + 1][1] = r[3];
                }
            }
        }
        if constexpr (Tiles == 1) {
            uint32_t r[4];
            load_matrices(r, x_block + b_at + ((2 * j + b_half) ^ b_row) * 16);
            f.b[0][0][0] = r[0], f.b[0][0][1] = r[1], f.b[1][0][0] = r[2], f.b[1][0][1] = r[3];
        }
        if (j == 0) return;
        __syncwarp();
        next_x(s);
        if (++in_group == args.stages) in_group = 0;
    };
    const auto multiply = [&](const Half& f) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int t = 0; t < Tiles; ++t) multiply_add(acc[t], f.a[i], f.b[i][t][0], f.b[i][t][1]);
    };
    // Loads operands half a step ahead of the chain, as far as registers allow.
    constexpr bool ahead = Tiles < 8;
    Half even, odd;
#pragma unroll 1
    for (int row_tile = first_row_tile, round = 0; round < rounds; row_tile += each, ++round) {
        if (row_tile >= args.row_tiles) {  // no work in the last round, but x continues
            for (int s = 0; s < args.k_tiles; ++s) {
                if (s % x_blocks == 0) barrier_wait(x_full + 8 * x_slot, x_parity);
                next_x(s);
            }
            break;
        }
        if (ahead) load(even, 0, 0);
#pragma unroll 1
        for (int s = 0; s < args.k_tiles; ++s) {
            if constexpr (ahead) {
                load(odd, s, 2);
                multiply(even);
                if (s + 1 < args.k_tiles) load(even, s + 1, 0);
                multiply(odd);
            } else {
                load(even, s, 0);
                multiply(even);
                load(even, s, 2);
                multiply(even);
            }
            if constexpr (ByTile)
                if (s % 2 == 1 || s + 1 == args.k_tiles)
                    add_group<Tiles>(args, tokens, row_tile, s / 2, g, c, acc, total);
        }
        if (!ByTile && args.overlap) wait_for_previous();
        if constexpr (ByTile)
            store_outputs<Tiles>(args, tokens, row_tile, g, c, total);
        else
            store_outputs<Tiles>(args, tokens, row_tile, g, c, acc);
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                acc[t][e] = 0.0f;
                if (ByTile) total[ByTile ? t : 0][e] = 0.0f;
            }
    }
}

template <int Tiles, bool ByTile>
cudaError_t launch(ProductArgs args, int token_tiles, cudaStream_t stream) {
    using L = Narrow<Tiles>;
    args.stages = L::pieces(args.warps);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    const int blocks = (args.row_tiles + args.warps - 1) / args.warps;
    config.gridDim = {static_cast<unsigned>(token_tiles == 1 ? std::min(blocks, one_wave) : blocks),
                      static_cast<unsigned>(token_tiles), 1};
    config.blockDim = static_cast<unsigned>(32 * (args.warps + 1));
    config.dynamicSmemBytes = static_cast<size_t>(L::bytes(args.warps));
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, matmul_bf16_m64_kernel<Tiles, ByTile>, args);
}

template <int Tiles>
cudaError_t prepare() {
    if (const cudaError_t code = cudaFuncSetAttribute(matmul_bf16_m64_kernel<Tiles, false>,
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes))
        return code;
    return cudaFuncSetAttribute(matmul_bf16_m64_kernel<Tiles, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                all_bytes);
}

}  // namespace

cudaError_t launch_matmul_bf16_m64(const ProductArgs& args, int token_tiles, int tile_tokens, cudaStream_t stream) {
    const auto go = [&]<int Tiles>() {
        return args.tile_scales ? launch<Tiles, true>(args, token_tiles, stream)
                                : launch<Tiles, false>(args, token_tiles, stream);
    };
    switch (tile_tokens) {
        case 8:
            return go.template operator()<1>();
        case 16:
            return go.template operator()<2>();
        case 32:
            return go.template operator()<4>();
        case 64:
            return go.template operator()<8>();
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_matmul_bf16_m64() {
    for (const auto each : {prepare<1>, prepare<2>, prepare<4>, prepare<8>})
        if (const cudaError_t code = each()) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
