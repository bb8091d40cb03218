// 8-bit codes along columns and along rows. A thread block holds 128 x 128 of the source in registers, eight adjacent
// numbers of eight rows per thread, so the source is read once for all kinds of scales.
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/quantize/cast_launch.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int code_side = 128, code_threads = 256, code_loads = 8, code_row_step = code_threads / 16;
static_assert(code_loads * code_row_step == code_side && code_side == fp8_group);

// One scale per tensor; per 128 numbers in a row, in a column, or both; per tile.
enum class CodeBlocks : uint8_t { tensor, rows, columns, both, square };

__device__ float number_at(const uint4& w, int e) {
    const uint32_t word = e < 4 ? (e < 2 ? w.x : w.y) : (e < 6 ? w.z : w.w);
    return __uint_as_float(e % 2 ? word & 0xFFFF0000u : word << 16);
}
__device__ float largest_of(const uint4& w) {
    float m = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) m = fmaxf(m, fabsf(number_at(w, e)));
    return m;
}
__device__ float largest_of(const uint4 (&w)[code_loads]) {
    float m = 0.0f;
#pragma unroll
    for (const uint4& v : w) m = fmaxf(m, largest_of(v));
    return m;
}
__device__ uint32_t pack_e4m3(const float* z) { return e4m3_pack4(z[0], z[1], z[2], z[3]); }
__device__ uint32_t pack_e5m2(const float* z) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2({z[0], z[1]}, __NV_SATFINITE, __NV_E5M2);
    const uint32_t high = __nv_cvt_float2_to_fp8x2({z[2], z[3]}, __NV_SATFINITE, __NV_E5M2);
    return low | high << 16;
}

// The factor (up > 0) or divisor of numbers, equal to BlockScale::code() bit for bit. It avoids a branch with a call
// for unsafe divisors: a small divisor is scaled up by a power of two together with the numbers. A large one is safe
// here: it would lose only signs, which are restored.
struct CodeScale {
    float down, up, lift;
    Divisor by;

    __device__ explicit CodeScale(const BlockScale& s)
        : down(s.down),
          up(s.up),
          lift(s.down < safe_divisor_min ? 0x1p100f
               : s.down < INFINITY       ? 1.0f
                                         : 0.0f),
          by(lift > 0.0f ? s.down * lift : 1.0f) {}
    __device__ float quotient(float x) const { return copysignf(by.quotient(fabsf(x) * lift), x); }
};

// Calls cast(scaled), where scaled(scale, x) is the number to encode, with one branch for all numbers of a thread.
template <class Cast>
__device__ void cast_with(bool multiplied, Cast cast) {
    if (multiplied)
        cast([](const CodeScale& s, float x) { return x * s.up; });
    else
        cast([](const CodeScale& s, float x) { return s.quotient(x); });
}

__device__ float code_block_max(float m) {
    __shared__ float of_warp[code_threads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
    for (const float w : of_warp) m = fmaxf(m, w);
    return m;
}

// Magnitudes order like their bits; a maximum does not depend on the order of updates. NaN is ignored.
__device__ void raise_code_amax(float* amax, float m) {
    m = code_block_max(m);
    if (threadIdx.x == 0 && m > 0.0f) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(m));
}
// Runs backwards: the end of the previous kernel's output is still in the L2, and the code kernel starts where this one
// ends.
__global__ void __launch_bounds__(code_threads) cast_codes_amax_kernel(const uint4* x, int64_t count, float* amax) {
    float m = 0.0f;
    const int64_t step = int64_t{gridDim.x} * code_threads;
#pragma unroll 4
    for (int64_t i = int64_t{blockIdx.x} * code_threads + threadIdx.x; i < count; i += step)
        m = fmaxf(m, largest_of(x[count - 1 - i]));
    raise_code_amax(amax, m);
}

// Shared memory of a tile of codes for transposed output: [128 rows][32 words]. The words of each 16 rows are rotated
// by four more than the previous ones, so neither rows nor the groups of 16 rows below conflict in a bank.
__device__ int code_word(int row, int word) { return row * 32 + (word + row / 16 * 4) % 32; }

// Each thread stores sixteen rows of four columns.
__device__ void store_code_columns(const CodesArgs& a, const uint32_t* tile, int64_t row0, int64_t col0) {
    const int rows = static_cast<int>(threadIdx.x) % 8, quad = static_cast<int>(threadIdx.x) / 8;
    uint32_t out[4][4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        uint32_t w[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) w[r] = tile[code_word(16 * rows + 4 * q + r, quad)];
        const uint32_t ab = __byte_perm(w[0], w[1], 0x5140), cd = __byte_perm(w[2], w[3], 0x5140);
        const uint32_t ef = __byte_perm(w[0], w[1], 0x7362), gh = __byte_perm(w[2], w[3], 0x7362);
        out[0][q] = __byte_perm(ab, cd, 0x5410), out[1][q] = __byte_perm(ab, cd, 0x7632);
        out[2][q] = __byte_perm(ef, gh, 0x5410), out[3][q] = __byte_perm(ef, gh, 0x7632);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (const int64_t column = col0 + 4 * quad + j; column < a.cols)
            *reinterpret_cast<uint4*>(a.to_columns + column * a.column_pitch + row0 + 16 * rows) = {
                out[j][0], out[j][1], out[j][2], out[j][3]};
}

template <CodeBlocks By>
__global__ void __launch_bounds__(code_threads, 3) cast_fp8_codes_kernel(const __grid_constant__ CodesArgs a) {
    constexpr bool by_row = By == CodeBlocks::rows || By == CodeBlocks::both;
    constexpr bool by_column = By == CodeBlocks::columns || By == CodeBlocks::both;
    __shared__ uint32_t tile[code_side * 32];
    [[maybe_unused]] __shared__ float most[by_column ? code_row_step : 1][code_side];
    const int64_t across = a.row_pitch / code_side, number = blockIdx.x;
    const int64_t down_tile = number / across, across_tile = number % across;
    const int64_t row0 = down_tile * code_side, col0 = across_tile * code_side;
    const int thread = static_cast<int>(threadIdx.x), piece = thread % 16, first = thread / 16;
    const auto row_of = [&](int i) { return first + code_row_step * i; };
    uint4 w[code_loads];
#pragma unroll
    for (int i = 0; i < code_loads; ++i) {
        w[i] = {};
        if (row0 + row_of(i) < a.rows && col0 + 8 * piece < a.cols)
            w[i] = *reinterpret_cast<const uint4*>(a.x + (row0 + row_of(i)) * a.cols + col0 + 8 * piece);
    }

    // One scale for the tensor, the tile or a row.
    const bool e5m2 = By == CodeBlocks::tensor && a.rule.format == CastFormat::fp8_e5m2;
    CodeScale one(BlockScale{1.0f, 1.0f});
    if constexpr (By == CodeBlocks::tensor) {
        one.up = a.given ? *a.given : fp8_current_scale(*a.amax, e5m2 ? e5m2_max : e4m3_max);
        if (blockIdx.x == 0 && thread == 0) *a.scale = 1 / one.up;
        if (a.seen && !a.given && blockIdx.x == 0 && thread == 0) *a.seen = fmaxf(*a.seen, *a.amax);
        if (const int64_t row = row0 + thread;
            a.product.other && across_tile == 0 && thread < code_side && row < a.product.count)
            a.product.out[row] = 1 / one.up * a.product.other[0] * a.product.constant;
        if (a.seen && a.given) raise_code_amax(a.seen, largest_of(w));
    }
    if constexpr (By == CodeBlocks::square) {
        one = CodeScale(fp8_block_scale(code_block_max(largest_of(w)), a.rule));
        if (thread == 0) {
            if (a.row_scales.at)
                a.row_scales.at[down_tile * a.row_scales.outer + across_tile * a.row_scales.group] = one.down;
            if (a.column_scales.at)
                a.column_scales.at[across_tile * a.column_scales.outer + down_tile * a.column_scales.group] = one.down;
        }
    }
#pragma unroll
    for (int i = 0; i < code_loads; ++i) {
        const int row = row_of(i);
        if constexpr (by_row) {
            float m = largest_of(w[i]);
#pragma unroll
            for (int step = 8; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
            one = CodeScale(fp8_block_scale(m, a.rule));
            if (piece == 0 && row0 + row < a.rows)
                a.row_scales.at[(row0 + row) * a.row_scales.outer + across_tile * a.row_scales.group] = one.down;
        }
        if constexpr (By != CodeBlocks::columns) {
            float z[8];
            const auto scale = [&](auto scaled) {
#pragma unroll
                for (int e = 0; e < 8; ++e) z[e] = scaled(one, number_at(w[i], e));
            };
            if constexpr (By == CodeBlocks::tensor)
                scale([](const CodeScale& s, float x) { return x * s.up; });
            else
                cast_with(one.up > 0, scale);
            const uint2 codes = e5m2 ? uint2{pack_e5m2(z), pack_e5m2(z + 4)} : uint2{pack_e4m3(z), pack_e4m3(z + 4)};
            if (a.to_rows && row0 + row < a.rows) {
                uint8_t* to = a.to_rows + (row0 + row) * a.row_pitch + col0 + 8 * piece;
                if (a.tiles) {  // eight rows of 128 bytes with swizzled 16-byte chunks
                    const int in = row % 8;
                    to = a.to_rows + ((row0 + row) / 8 * across + across_tile) * (8 * code_side) + in * code_side +
                         (piece / 2 ^ in) * 16 + piece % 2 * 8;
                }
                *reinterpret_cast<uint2*>(to) = codes;
            }
            if (By == CodeBlocks::tensor || By == CodeBlocks::square)
                *reinterpret_cast<uint2*>(tile + code_word(row, 2 * piece)) = codes;
        }
    }
    if (By == CodeBlocks::rows || !a.to_columns) return;
    if constexpr (by_column) {
        float m[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            m[e] = 0.0f;
#pragma unroll
            for (const uint4& v : w) m[e] = fmaxf(m[e], fabsf(number_at(v, e)));
        }
        auto* const seen = reinterpret_cast<float4*>(&most[first][8 * piece]);
        seen[0] = {m[0], m[1], m[2], m[3]}, seen[1] = {m[4], m[5], m[6], m[7]};
        __syncthreads();
        if (thread < code_side) {
            float of_all = 0.0f;
#pragma unroll
            for (const auto& of : most) of_all = fmaxf(of_all, of[thread]);
            most[0][thread] = of_all;
            if (col0 + thread < a.cols)
                a.column_scales.at[(col0 + thread) * a.column_scales.outer + down_tile * a.column_scales.group] =
                    fp8_block_scale(of_all, a.rule).down;
        }
        __syncthreads();
        // Four columns at a time: with the scales of eight in registers a multiprocessor held one block, and casts of
        // gradients took four times as long as their memory traffic.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const auto scale = [&](int e) {
                return CodeScale(fp8_block_scale(most[0][8 * piece + 4 * half + e], a.rule));
            };
            const CodeScale of_column[4] = {scale(0), scale(1), scale(2), scale(3)};
            cast_with(of_column[0].up > 0, [&](auto scaled) {
#pragma unroll
                for (int i = 0; i < code_loads; ++i) {
                    const uint2 numbers = half == 0 ? uint2{w[i].x, w[i].y} : uint2{w[i].z, w[i].w};
                    float z[4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) z[e] = scaled(of_column[e], number_at({numbers.x, numbers.y, 0, 0}, e));
                    tile[code_word(row_of(i), 2 * piece + half)] = pack_e4m3(z);
                }
            });
        }
    }
    __syncthreads();
    store_code_columns(a, tile, row0, col0);
}

}  // namespace

cudaError_t launch_codes_of(const CodesArgs& a, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(a.rows, code_side) * static_cast<unsigned>(a.row_pitch / code_side);
    if (a.rule.format == CastFormat::fp8 || a.rule.format == CastFormat::fp8_e5m2) {
        if (!a.given && !a.has_amax) {
            if (const cudaError_t code = cudaMemsetAsync(a.amax, 0, sizeof(float), stream)) return code;
            const int64_t count = a.rows * a.cols / 8;
            constexpr unsigned most_blocks = 132 * 8;
            cast_codes_amax_kernel<<<std::min(most_blocks, ceil_blocks(count, code_threads)), code_threads, 0,
                                     stream>>>(reinterpret_cast<const uint4*>(a.x), count, a.amax);
        }
        cast_fp8_codes_kernel<CodeBlocks::tensor><<<blocks, code_threads, 0, stream>>>(a);
    } else if (a.rule.square) {
        cast_fp8_codes_kernel<CodeBlocks::square><<<blocks, code_threads, 0, stream>>>(a);
    } else if (a.to_rows && a.to_columns) {
        cast_fp8_codes_kernel<CodeBlocks::both><<<blocks, code_threads, 0, stream>>>(a);
    } else if (a.to_rows) {
        cast_fp8_codes_kernel<CodeBlocks::rows><<<blocks, code_threads, 0, stream>>>(a);
    } else {
        cast_fp8_codes_kernel<CodeBlocks::columns><<<blocks, code_threads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

}  // namespace nibble::cuda
