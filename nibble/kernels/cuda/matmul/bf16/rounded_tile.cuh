// Writes a warpgroup's outputs of a wide product as rows of BF16: transposed in shared memory, so that 16 bytes of a
// token are stored at once. The bits of bf16_from_float() except for payloads of NaN.
#pragma once

#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {

// 64 rows of W by 128 tokens: a token's 128 bytes in 16-byte chunks, swizzled by the token modulo 8.
inline constexpr int rounded_tokens = 128, rounded_tile_bytes = rounded_tokens * 128;

__device__ inline void warpgroup_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Transposes four matrices of 8 x 8; lane l passes the address of row l % 8 of matrix l / 8.
__device__ inline void store_transposed(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// sums in wgmma layout: lane 4 g + c of warp w has sums[4 i + 2 h + e], row 16 w + g + 8 h, token 8 i + 2 c + e.
// first_row and first_token are the warpgroup's; `tile` has rounded_tile_bytes. y_stride is a multiple of 8.
template <int Tokens>
__device__ void store_rounded(const float (&sums)[Tokens / 2], const ProductArgs& args, int first_row, int first_token,
                              int group, uint32_t tile) {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, g = lane / 4, c = lane % 4;
    const int row = first_row + thread / 32 * 16 + g;
    const RowFactors low(args, 0, min(row, args.n - 1)), high(args, 0, min(row + 8, args.n - 1));
    const int half = lane / 8 % 2, in_matrix = lane % 8;  // parts of the address
    const uint32_t to = tile + (lane / 16 * 8 + in_matrix) * 128 + (((thread / 32 * 2 + half) ^ in_matrix) << 4);
    const int own = thread / 8, chunk = thread % 8, column = first_row + 8 * chunk;  // position of the stored chunk
    const uint32_t from = tile + own * 128 + ((chunk ^ own % 8) << 4);
    // Writes sums to the tile; factor(scale, token) is the factor of a sum.
    const auto turn = [&](int part, const auto& factor) {
#pragma unroll
        for (int i = 0; i < rounded_tokens / 8; i += 2) {
            uint32_t pairs[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const RowFactors& of = m % 2 ? high : low;
                const int first = part * rounded_tokens + 8 * (i + m / 2), at = 4 * (first / 8) + 2 * (m % 2);
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    y[e] = product_output(sums[at + e], factor(of.scale, first_token + first + 2 * c + e), of.bias);
                pairs[m] = pair_of(y[0], y[1]);
            }
            store_transposed(to + i * 8 * 128, pairs);
        }
    };
#pragma unroll
    for (int part = 0; part < Tokens / rounded_tokens; ++part) {
        warpgroup_sync(group);  // the previous contents have been read
        if (args.token_scales)
            turn(part, [&](float scale, int token) { return scale * args.token_scales[min(token, args.tokens - 1)]; });
        else
            turn(part, [&](float scale, int) { return scale * args.input_scale; });
        warpgroup_sync(group);
        const int token = first_token + part * rounded_tokens + own, left = args.tokens - token;
        const auto each = [&](const auto& store) {  // chunks of tokens 16 apart
#pragma unroll
            for (int i = 0; i < rounded_tokens; i += 16) {
                if (i >= left) break;
                uint4 v;
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                             : "r"(from + i * 128)
                             : "memory");
                store(args.y16 + (token + i) * args.y_stride + column, v);
            }
        };
        if (column + 8 <= args.n)
            each([](uint16_t* out, const uint4& v) { *reinterpret_cast<uint4*>(out) = v; });
        else if (column < args.n)
            each([&](uint16_t* out, const uint4& v) {
                const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    if (column + j < args.n) out[j] = static_cast<uint16_t>(word[j / 2] >> j % 2 * 16);
            });
    }
}

}  // namespace nibble::cuda
