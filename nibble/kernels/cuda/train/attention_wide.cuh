// Tiles and products of the way back through attention on wgmma.
//
// A tile [Rows, Dim] BF16 lies in panels of 64 columns: rows of 128 bytes, chunks of 16 bytes XORed with row % 8. As
// rows of a product it is what swizzled_operand() says; read along its columns (the reduction is over its rows) it is
// the operand that WgmmaTransposed takes.
#pragma once

#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/common/wgmma_shared.cuh"

namespace nibble::cuda {

// d[64, N] (+)= a[64, 16] b[16, N]; b: 16 rows of a tile's panels, `panels` bytes from one panel to the next.
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

// The lower half of its descriptor.
__device__ inline uint32_t transposed_operand(uint32_t address, uint32_t panels) {
    return ((address & 0x3FFFFu) >> 4) | (panels >> 4) << 16;
}

template <int Dim, int Rows>
struct WideTile {
    static constexpr int chunks = Dim / 8, panel = Rows * 128, bytes = Dim / 64 * panel;

    // Rows [row, row + Rows) of [rows, stride] by all `Threads` threads, asynchronously; zeros behind the end.
    template <int Threads>
    __device__ static void load(uint32_t base, const std::byte* from, int64_t row, int64_t rows, int64_t stride) {
        static_assert(Rows * chunks % Threads == 0);
#pragma unroll
        for (int k = 0; k < Rows * chunks / Threads; ++k) {
            const int i = static_cast<int>(threadIdx.x) + k * Threads, r = i / chunks, c = i % chunks;
            const bool present = row + r < rows;
            const uint32_t to = base + (c / 8) * panel + r * 128 + (((c % 8) ^ (r & 7)) << 4);
            copy16_or_zero(to, from + 2 * ((present ? row + r : row) * stride + 8 * c), present);
        }
    }
};

// d[64, 64] = rows of a tile of RowsA (from `a` on: 64 of them) times the 64 rows of `b` transposed. Queued.
template <int Dim, int RowsA>
__device__ __forceinline__ void queue_scores(float (&d)[32], uint32_t a, uint32_t b) {
    const uint32_t left = swizzled_operand(a), right = swizzled_operand(b);
#pragma unroll
    for (int step = 0; step < Dim / 16; ++step)
        WgmmaShared<64>::run(d, left + step / 4 * (WideTile<Dim, RowsA>::panel / 16) + step % 4 * 2,
                             right + step / 4 * (WideTile<Dim, 64>::panel / 16) + step % 4 * 2, step > 0);
}

// sum[64, Dim] (+)= p[64, 64] times the 64 rows of `b`. Queued; p stays as it is until it is done.
template <int Dim>
__device__ __forceinline__ void queue_product(float (&sum)[Dim / 2], const uint32_t (&p)[16], uint32_t b, int more) {
    const uint32_t right = transposed_operand(b, WideTile<Dim, 64>::panel);
#pragma unroll
    for (int k = 0; k < 4; ++k) WgmmaTransposed<Dim>::run(sum, p + 4 * k, right + k * (16 * 128 / 16), more | (k > 0));
}

// Accumulators as the left operand of the next product, rounded to BF16.
__device__ __forceinline__ void as_operand(const float (&s)[32], uint32_t (&p)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = pair_of(s[2 * i], s[2 * i + 1]);
}

__device__ inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four bytes of global memory, asynchronously; zeros where nothing is present.
__device__ inline void copy4_or_zero(uint32_t to, const void* from, bool present) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}

template <int Pending>
__device__ inline void wait_for_tiles() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    loads_done();
    __syncthreads();
}
__device__ inline void tiles_asked_for() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Dim>
__device__ void store_wide(std::byte* to, int64_t row0, int64_t rows, int64_t stride, const float (&sum)[Dim / 2],
                           float factor) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + g + 8 * half;
        if (row >= rows) continue;
#pragma unroll
        for (int t = 0; t < Dim / 8; ++t)
            *reinterpret_cast<uint32_t*>(to + 2 * (row * stride + 8 * t + 2 * c)) =
                pair_of(sum[4 * t + 2 * half] * factor, sum[4 * t + 2 * half + 1] * factor);
    }
}

}  // namespace nibble::cuda
