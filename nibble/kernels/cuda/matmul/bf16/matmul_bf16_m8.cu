// Products of exact operands for up to eight tokens if a multiprocessor has at most four tiles of 16 rows. A single
// warp computes the chain over K, so every instruction counts. In matmul_bf16_m64_kernel such a warp takes 200 ns per
// 64 columns, mostly for loading weights and waiting at barriers. Here a second warp loads, there is one barrier per
// 256 columns, all of x is in shared memory, and operands are loaded 64 columns ahead of the chain.
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int stage_pieces = 4, stage_bytes = stage_pieces * operand_row_tile_bytes, most_stages = 6;
constexpr int shared_limit = 227 * 1024, one_wave = 132;

struct FewLayout {
    int x_pitch, ring, barriers, bytes;
    __host__ __device__ FewLayout(int k_tiles, int tokens, int warps, int stages)
        : x_pitch((k_tiles + stage_pieces - 1) / stage_pieces * (stage_pieces * 128) + 16),  // rows use different banks
          ring((tokens * x_pitch + 127) / 128 * 128),
          barriers(ring + warps * stages * stage_bytes),
          bytes(barriers + 16 * warps * stages) {}
};

// 64 columns.
struct Piece {
    uint32_t a[4][4], b[2][4];
};

__global__ void __launch_bounds__(256, 1) matmul_bf16_m8_kernel(const __grid_constant__ ProductArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, consumer = warp % args.warps;
    const FewLayout layout(args.k_tiles, args.tokens, args.warps, args.stages);
    const uint32_t x_at = shared_address(shared), ring = x_at + layout.ring + consumer * args.stages * stage_bytes;
    const uint32_t full = x_at + layout.barriers + consumer * args.stages * 16, empty = full + 8 * args.stages;
    const int row_tile = static_cast<int>(blockIdx.x) * args.warps + consumer;
    const bool works = row_tile < args.row_tiles;
    if (warp < args.warps && lane == 0) {
        for (int s = 0; s < args.stages; ++s) {
            barrier_init(full + 8 * s, 32);
            barrier_init(empty + 8 * s, 1);
        }
        barrier_init_done();
    }
    if (args.overlap) overlap_next();
    __syncthreads();
    const int stages = (args.k_tiles + stage_pieces - 1) / stage_pieces;
    if (warp >= args.warps) {
        if (!works) return;
        const uint8_t* from = args.tiles + int64_t{row_tile / 4} * args.k_tiles * operand_tile_bytes +
                              row_tile % 4 * operand_row_tile_bytes + 16 * lane;
        uint32_t slot = 0, parity = 1;
        for (int s = 0; s < stages; ++s, from += stage_pieces * operand_tile_bytes) {
            barrier_wait(empty + 8 * slot, parity);
            const uint32_t to = ring + slot * stage_bytes + 16 * lane;
#pragma unroll
            for (int q = 0; q < stage_pieces; ++q)
                if (stage_pieces * s + q < args.k_tiles)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        copy16(to + q * operand_row_tile_bytes + 512 * j, from + q * operand_tile_bytes + 512 * j);
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + 8 * slot) : "memory");
            if (++slot == static_cast<uint32_t>(args.stages)) slot = 0, parity ^= 1;
        }
        return;
    }

    if (args.overlap) wait_for_previous();
    for (int t = 0; t < args.tokens; ++t) {
        const uint8_t* row = args.x + int64_t{args.rows ? args.rows[t] : t} * args.x_stride;
        for (int i = static_cast<int>(threadIdx.x); i < stages * (stage_pieces * 8); i += 32 * args.warps)
            copy16_or_zero(x_at + t * layout.x_pitch + 16 * i, 8 * i < args.k ? row + 16 * i : row, 8 * i < args.k);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("bar.sync 1, %0;" ::"r"(32 * args.warps) : "memory");
    if (!works) return;

    const int a_row = lane % 16, a_half = lane / 16;
    uint32_t a_at[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) a_at[j] = ring + a_row * 128 + ((2 * j + a_half) ^ a_row % 8) * 16;
    // Absent tokens read a present one: their columns are never stored.
    uint32_t x = x_at + min(lane % 8, args.tokens - 1) * layout.x_pitch + lane / 8 * 16;
    float acc[4] = {};
    const auto load = [&](Piece& f, uint32_t stage, int q) {
#pragma unroll
        for (int j = 0; j < 4; ++j) load_matrices(f.a[j], a_at[j] + stage + q * operand_row_tile_bytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) load_matrices(f.b[i], x + 128 * q + 64 * i);
    };
    const auto multiply = [&](const Piece& f) {
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_add(acc, f.a[j], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
    };
    const int whole = args.k_tiles / stage_pieces;
    uint32_t slot = 0, parity = 0;
    Piece even, odd;
    if (whole > 0) {
        barrier_wait(full, parity);
        load(even, 0, 0);
    }
#pragma unroll 1
    for (int s = 0; s < whole; ++s) {
        const uint32_t stage = slot * stage_bytes, done = empty + 8 * slot;
        load(odd, stage, 1);
        multiply(even);
        load(even, stage, 2);
        multiply(odd);
        load(odd, stage, 3);
        multiply(even);
        __syncwarp();
        barrier_arrive_if(done, lane == 0);
        x += stage_pieces * 128;
        if (++slot == static_cast<uint32_t>(args.stages)) slot = 0, parity ^= 1;
        if (s + 1 < whole) {
            barrier_wait(full + 8 * slot, parity);
            load(even, slot * stage_bytes, 0);
        }
        multiply(odd);
    }
    if (const int rest = args.k_tiles % stage_pieces) {
        barrier_wait(full + 8 * slot, parity);
        for (int q = 0; q < rest; ++q) {
            load(even, slot * stage_bytes, q);
            multiply(even);
        }
    }
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = row_tile * 16 + g + 8 * h;
        if (row >= args.n) continue;
        const RowFactors factors(args, 0, row);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int token = 2 * c + e;
            if (token >= args.tokens) continue;
            const float factor = factors.scale * token_factor(args, args.rows ? args.rows[token] : token);
            args.y[token * args.y_stride + row] = product_output(acc[2 * h + e], factor, factors.bias);
        }
    }
}

// Consumers and stages of a thread block; stages 0: does not fit.
void shape(ProductArgs& args) {
    args.warps = (args.row_tiles + one_wave - 1) / one_wave;
    const int left = shared_limit - FewLayout(args.k_tiles, args.tokens, 0, 0).bytes;
    args.stages = std::min(most_stages, left / (args.warps * (stage_bytes + 16)));
}

}  // namespace

bool fits_matmul_bf16_m8(const ProductArgs& given) {
    ProductArgs args = given;
    if (args.tokens > 8 || args.experts > 0 || args.tile_scales || args.row_tiles > 4 * one_wave) return false;
    shape(args);
    return args.stages >= 3;
}

cudaError_t launch_matmul_bf16_m8(ProductArgs args, cudaStream_t stream) {
    shape(args);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>((args.row_tiles + args.warps - 1) / args.warps);
    config.blockDim = static_cast<unsigned>(64 * args.warps);
    config.dynamicSmemBytes = static_cast<size_t>(FewLayout(args.k_tiles, args.tokens, args.warps, args.stages).bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, matmul_bf16_m8_kernel, args);
}

cudaError_t prepare_matmul_bf16_m8() {
    return cudaFuncSetAttribute(matmul_bf16_m8_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
}

}  // namespace nibble::cuda
