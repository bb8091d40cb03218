// Products of exact operands for few tokens. A warp has 16 rows of W, all of K and up to 64 tokens, and fills its own
// ring of 64-column pieces through the copy engine; one more warp brings x in stages of 256 columns with cp.async. One
// thread that asks for the pieces of all warps is what limits otherwise (about 170 clocks a piece: 1.7 instead of 4
// TB/s). One chain per output, so K is not divided; at 8192 columns a chain takes 7 us, the weights of 128
// multiprocessors 32.
#include "kernels/cuda/product_epilogue.cuh"
#include "kernels/cuda/ptx.cuh"

namespace nibble::cuda {
namespace {

constexpr int most_warps = 16, all_bytes = 216 * 1024, most_stages = 24, x_blocks = 4;  // blocks of 64 columns

__device__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes, or zeros.
__device__ void copy16_or_zero(uint32_t to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
}
// Arrives when the thread's copies so far are done; the arrival is one of those the barrier counts.
__device__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <int Tiles>  // of eight tokens
struct Narrow {
    static constexpr int tokens = 8 * Tiles, x_block_bytes = tokens * 128, x_stage_bytes = x_blocks * x_block_bytes;
    static constexpr int x_stages = Tiles == 1 ? 8 : Tiles == 2 ? 4 : Tiles == 4 ? 3 : 2;
    static constexpr int x_bytes = x_stages * x_stage_bytes;
    static constexpr int x_barriers = 16 * x_stages;
    // Pieces of a warp's ring.
    static int stages(int warps, int k_tiles) {
        const int fit = (all_bytes - x_bytes - x_barriers) / (warps * (operand_row_tile_bytes + 8));
        const int most = fit < most_stages ? fit : most_stages;
        return most < k_tiles ? most : k_tiles;
    }
    static int bytes(int warps, int stages) {
        return x_bytes + x_barriers + warps * stages * (operand_row_tile_bytes + 8);
    }
};

template <int Tiles>
__device__ void bring_x(const ProductArgs& args, const TokenTile& tokens, uint32_t x_at, uint32_t full, uint32_t empty,
                        int lane) {
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
    for (int block = 0; block < args.k_tiles; block += x_blocks) {
        barrier_wait(empty + 8 * slot, parity);
        for (int b = 0; b < x_blocks && block + b < args.k_tiles; ++b) {
            const int column = 64 * (block + b) + 8 * chunk;
            const bool inside = column < args.k;
            const uint32_t at = x_at + slot * L::x_stage_bytes + b * L::x_block_bytes;
#pragma unroll
            for (int j = 0; j < 2 * Tiles; ++j) {
                // Absent tokens stay what they were: their columns are never stored. (Zeros by copies of no bytes from
                // one address of all thread blocks: they queue for it.)
                if (from[j]) copy16_or_zero(at + to[j], inside ? from[j] + 128 * int64_t{block + b} : from[j], inside);
            }
        }
        barrier_arrive_after_copies(full + 8 * slot);
        if (++slot == L::x_stages) slot = 0, parity ^= 1;
    }
}

template <int Tiles, bool ByTile>
__global__ void __launch_bounds__(32 * (most_warps + 1), 1) narrow_kernel(const __grid_constant__ ProductArgs args) {
    using L = Narrow<Tiles>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const uint32_t x_at = shared_address(shared), x_full = x_at + L::x_bytes, x_empty = x_full + 8 * L::x_stages;
    const uint32_t rings = x_full + L::x_barriers, ring = rings + warp * args.stages * operand_row_tile_bytes;
    const uint32_t barriers = rings + args.warps * args.stages * operand_row_tile_bytes + warp * args.stages * 8;
    if (args.overlap) overlap_next();
    if (args.overlap && args.experts > 0) wait_for_previous();
    const int row_tile = static_cast<int>(blockIdx.x) * args.warps + warp;
    const TokenTile tokens = find_tile(args, static_cast<int>(blockIdx.y), L::tokens);
    if (tokens.count <= 0) return;
    const bool works = warp < args.warps && row_tile < args.row_tiles;
    const uint8_t* records = args.tiles + tokens.expert * args.expert_bytes +
                             int64_t{row_tile / 4} * args.k_tiles * operand_tile_bytes +
                             row_tile % 4 * operand_row_tile_bytes;
    const auto request = [&](int s, uint32_t slot) {
        barrier_expect(barriers + 8 * slot, operand_row_tile_bytes);
        bulk_copy(ring + slot * operand_row_tile_bytes, records + int64_t{s} * operand_tile_bytes,
                  operand_row_tile_bytes, barriers + 8 * slot);
    };
    if (works && lane == 0) {
        for (int s = 0; s < args.stages; ++s) barrier_init(barriers + 8 * s, 1);
        barrier_init_done();
        for (int s = 0; s < args.stages; ++s) request(s, s);
    }
    if (warp == args.warps && lane == 0) {
        const int present = min(args.warps, args.row_tiles - static_cast<int>(blockIdx.x) * args.warps);
        for (int s = 0; s < L::x_stages; ++s) {
            barrier_init(x_full + 8 * s, 32);
            barrier_init(x_empty + 8 * s, present);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (warp == args.warps) {
        if (args.overlap && args.experts == 0) wait_for_previous();
        return bring_x<Tiles>(args, tokens, x_at, x_full, x_empty, lane);
    }
    if (!works) return;

    // ldmatrix: the row and the 16-byte chunk that a lane points at.
    const int a_row = lane % 16, a_half = lane / 16;
    const int b_row = Tiles == 1 ? lane % 8 : lane / 16 * 8 + lane % 8, b_half = Tiles == 1 ? lane / 8 : lane / 8 % 2;
    const uint32_t a_at = a_row * 128, b_at = b_row * 128;
    float acc[Tiles][4] = {}, total[ByTile ? Tiles : 1][4] = {};
    // Scales may be what the kernel before wrote.
    if (ByTile && args.overlap) wait_for_previous();
    uint32_t slot = 0, parity = 0, x_slot = 0, x_parity = 0;
    // Two k-steps' operands.
    struct Half {
        uint32_t a[2][4], b[2][Tiles][2];
    };
    const auto load = [&](Half& f, int s, int j) {
        if (j == 0 && s % x_blocks == 0) barrier_wait(x_full + 8 * x_slot, x_parity);
        if (j == 0) barrier_wait(barriers + 8 * slot, parity);
        const uint32_t piece = ring + slot * operand_row_tile_bytes;
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
        const bool x_done = s % x_blocks == x_blocks - 1;
        if (lane == 0 && s + args.stages < args.k_tiles) request(s + args.stages, slot);
        barrier_arrive_if(x_empty + 8 * x_slot, lane == 0 && x_done);
        if (++slot == static_cast<uint32_t>(args.stages)) slot = 0, parity ^= 1;
        if (x_done && ++x_slot == L::x_stages) x_slot = 0, x_parity ^= 1;
    };
    const auto multiply = [&](const Half& f) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int t = 0; t < Tiles; ++t) multiply_add(acc[t], f.a[i], f.b[i][t][0], f.b[i][t][1]);
    };
    // Operands one half ahead of the chain, as far as registers go.
    constexpr bool ahead = Tiles < 8;
    Half even, odd;
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
        if constexpr (ByTile) {
            if (s % 2 == 1 || s + 1 == args.k_tiles) {
                const int across = (args.k + 127) / 128, block = s / 2;
                const float of_tile =
                    args.tile_scales[(int64_t{tokens.expert} * ((args.n + 127) / 128) + row_tile / 8) * across + block];
#pragma unroll
                for (int t = 0; t < Tiles; ++t)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int token = min(8 * t + 2 * c + e % 2, tokens.count - 1), row = tokens.first + token;
                        const float of_group =
                            args.group_scales
                                ? args.group_scales[int64_t{args.rows ? args.rows[row] : row} * across + block]
                                : 1.0f;
                        total[t][e] = fmaf(acc[t][e], of_group * of_tile, total[t][e]);
                        acc[t][e] = 0.0f;
                    }
            }
        }
    }
    if (!ByTile && args.overlap) wait_for_previous();
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
                const float sum = ByTile ? total[ByTile ? t : 0][2 * h + e] : acc[t][2 * h + e];
                const float factor = factors.scale * token_factor(args, args.rows ? args.rows[at] : at);
                args.y[at * args.y_stride + row] = product_output(sum, factor, factors.bias);
            }
    }
}

template <int Tiles, bool ByTile>
cudaError_t launch(ProductArgs args, int token_tiles, cudaStream_t stream) {
    using L = Narrow<Tiles>;
    args.stages = L::stages(args.warps, args.k_tiles);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>((args.row_tiles + args.warps - 1) / args.warps),
                      static_cast<unsigned>(token_tiles), 1};
    config.blockDim = static_cast<unsigned>(32 * (args.warps + 1));
    config.dynamicSmemBytes = static_cast<size_t>(L::bytes(args.warps, args.stages));
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, narrow_kernel<Tiles, ByTile>, args);
}

template <int Tiles>
cudaError_t prepare() {
    if (const cudaError_t code =
            cudaFuncSetAttribute(narrow_kernel<Tiles, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes))
        return code;
    return cudaFuncSetAttribute(narrow_kernel<Tiles, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes);
}

}  // namespace

cudaError_t launch_narrow(const ProductArgs& args, int token_tiles, int tile_tokens, cudaStream_t stream) {
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

cudaError_t prepare_narrow() {
    for (const auto each : {prepare<1>, prepare<2>, prepare<4>, prepare<8>})
        if (const cudaError_t code = each()) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
