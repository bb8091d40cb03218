// Parts of attention's backward pass with wgmma: tiles of 64 rows, a warpgroup's products with them, and the ring
// buffer in which tiles of the other side arrive.
//
// A tile [64, Dim] BF16 consists of panels of 64 columns: rows of 128 bytes, 16-byte chunks XORed with row % 8, as the
// copy engine writes them. Its rows are an operand for swizzled_operand(); its columns (the reduction is over its rows)
// are the operand of WgmmaTransposed.
#pragma once

#include "kernels/cuda/attention/attention_backward_args.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/tensor_map.cuh"
#include "kernels/cuda/primitives/wgmma_shared.cuh"

namespace nibble::cuda {

struct AttentionBackMaps {
    CUtensorMap q, k, v, d_o;  // boxes of one tile
};
cudaError_t prepare_dq_wide();
cudaError_t prepare_dkv_wide();
cudaError_t launch_dq_wide(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream);
cudaError_t launch_dkv_wide(const AttentionBackArgs& args, const AttentionBackMaps& maps, cudaStream_t stream);

// d[64, N] (+)= a[64, 16] b[16, N]; b: 16 rows of a tile's panels.
template <int N>
struct WgmmaTransposed;
#define NIBBLE_WGMMA_TRANSPOSED(N, names, a0, a1, a2, a3, b, add, ...)                                                 \
    template <>                                                                                                        \
    struct WgmmaTransposed<N> {                                                                                        \
        static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t* a, uint32_t operand, int more) { \
            NIBBLE_WGMMA_ASM("{\n\t.reg .pred p;\n\t.reg .b64 rows;\n\tsetp.ne.b32 p, " add                            \
                             ", 0;\n\t"                                                                                \
                             "mov.b64 rows, {" b ", " NIBBLE_SWIZZLED_UPPER                                            \
                             "};\n\t"                                                                                  \
                             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" names "}, {" a0 ", " a1      \
                             ", " a2 ", " a3 "}, rows, p, 1, 1, 1;\n\t}"                                               \
                             : __VA_ARGS__                                                                             \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(operand), "r"(more));                   \
        }                                                                                                              \
    }
NIBBLE_WGMMA_TRANSPOSED(64, NIBBLE_N32_0, "%32", "%33", "%34", "%35", "%36", "%37", NIBBLE_D32(d, 0));
NIBBLE_WGMMA_TRANSPOSED(128, NIBBLE_N64_0, "%64", "%65", "%66", "%67", "%68", "%69", NIBBLE_D64(d, 0));
#undef NIBBLE_WGMMA_TRANSPOSED

template <int Dim>
struct AttentionBackwardTile {
    static constexpr int rows = 64, panel = rows * 128, bytes = Dim / 64 * panel;

    // Loads rows [row, row + 64) of a head; zeros after the last row.
    __device__ static void load(uint32_t to, const CUtensorMap* map, int row, int head, uint32_t barrier) {
        load_3d(to, map, 0, row, head * (Dim / 64), barrier);
    }
};

// A warpgroup's 64 rows as the left operand of products, in shared memory. (In registers, where these suffice, they
// were no faster: 234 instead of 170 registers.)
template <int Dim>
struct WideRows {
    uint32_t tile;
    __device__ explicit WideRows(uint32_t at) : tile(at) {}

    // Queues d[64, 64] = the rows times those of tile `b` transposed, as a group of its own.
    __device__ __forceinline__ void queue(float (&d)[32], uint32_t b) const {
        const uint32_t left = swizzled_operand(tile), right = swizzled_operand(b);
#pragma unroll
        for (int step = 0; step < Dim / 16; ++step) {
            const uint32_t at = step / 4 * (AttentionBackwardTile<Dim>::panel / 16) + step % 4 * 2;
            WgmmaShared<64>::run(d, left + at, right + at, step > 0);
        }
        wgmma_commit();
    }
};

// Queues sum[64, Dim] (+)= p[64, 64] times tile `b`. p must not change until it is done.
template <int Dim>
__device__ __forceinline__ void queue_product(float (&sum)[Dim / 2], const uint32_t (&p)[16], uint32_t b, int more) {
    const uint32_t right = ((b & 0x3FFFFu) >> 4) | uint32_t{AttentionBackwardTile<Dim>::panel / 16} << 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) WgmmaTransposed<Dim>::run(sum, p + 4 * k, right + k * (16 * 128 / 16), more | (k > 0));
}

// Converts accumulators to the left operand of the next product.
__device__ __forceinline__ void as_operand(const float (&s)[32], uint32_t (&p)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = pair_of(s[2 * i], s[2 * i + 1]);
}

__device__ inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Barriers of the block's own tiles and of a ring buffer of tiles. There is no separate loading warp: a lane of the
// first warp requests the tile that replaces the previous one while the current products run.
template <int Workers, int Stages>
struct WideBarriers {
    static constexpr int bytes = 8 * (1 + 2 * Stages);
    uint32_t own, full, empty;

    __device__ explicit WideBarriers(uint32_t at) : own(at), full(at + 8), empty(at + 8 + 8 * Stages) {}
    // Called by one thread before all others use the barriers.
    __device__ void init() const {
        barrier_init(own, 1);
        for (int s = 0; s < Stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4 * Workers);  // one lane of every warp arrives
        }
        barrier_init_done();
    }
};

// The position of an iteration in the ring buffer.
template <int Stages>
struct WidePlace {
    uint32_t slot = 0, parity = 0;
    __device__ WidePlace next() const {
        return slot + 1 < Stages ? WidePlace{slot + 1, parity} : WidePlace{0, parity ^ 1};
    }
    __device__ WidePlace before() const {
        return slot > 0 ? WidePlace{slot - 1, parity} : WidePlace{Stages - 1, parity ^ 1};
    }
};

// A warpgroup's rows from row0 on; this warp stores its part of them.
template <int Dim>
__device__ void store_wide(std::byte* to, int64_t row0, int64_t rows, int64_t stride, const float (&sum)[Dim / 2],
                           float factor) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + 16 * warp + g + 8 * half;
        if (row >= rows) continue;
#pragma unroll
        for (int t = 0; t < Dim / 8; ++t)
            *reinterpret_cast<uint32_t*>(to + 2 * (row * stride + 8 * t + 2 * c)) =
                pair_of(sum[4 * t + 2 * half] * factor, sum[4 * t + 2 * half + 1] * factor);
    }
}

}  // namespace nibble::cuda
