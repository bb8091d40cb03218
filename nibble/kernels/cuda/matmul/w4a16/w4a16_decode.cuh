// Shared by all W4A16 kernels: decoding to the A operand of mma.m16n8k16 and wgmma.m64nNk16 (the same registers), the
// order of the last sums, the output.
#pragma once

#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/w4a16_record.h"

#include <cuda_bf16.h>

namespace nibble::cuda {

__device__ inline uint32_t times(uint32_t codes, uint32_t scale) {
    const __nv_bfloat162 product =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&codes), *reinterpret_cast<const __nv_bfloat162*>(&scale));
    return *reinterpret_cast<const uint32_t*>(&product);
}

// The scales of a lane's rows g and g + 8 in block b (a constant) of a record: its 8 scale bytes are (x, y). The
// constants of the format are kernel arguments and thus registers: a three-input operation can use one literal; with
// two the compiler emits two operations.
struct ScalePairs {
    uint32_t upper, lower;
    __device__ ScalePairs(uint2 bytes, int b, const ScaleBits& bits) {
        const uint32_t four = b < 2 ? bytes.x : bytes.y;
        upper = pair(__byte_perm(four, 0, b % 2 ? 0x2222 : 0x0000), bits);
        lower = pair(__byte_perm(four, 0, b % 2 ? 0x3333 : 0x1111), bits);
    }
    static __device__ uint32_t pair(uint32_t byte_four_times, const ScaleBits& bits) {
        uint32_t v;
        asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(v) : "r"(byte_four_times), "r"(bits.keep), "r"(bits.set));
        return v;
    }
};

// Loads a lane's part of a record from shared memory to registers, so that the record's slot is free at once.
struct LaneRecord {
    uint4 codes[w4a16::record_blocks];
    uint2 scales;
    __device__ __forceinline__ LaneRecord(const uint8_t* record, int lane) {
#pragma unroll
        for (int b = 0; b < w4a16::record_blocks; ++b)
            codes[b] = *reinterpret_cast<const uint4*>(record + 512 * b + 16 * lane);
        scales = *reinterpret_cast<const uint2*>(record + w4a16::record_code_bytes + 8 * lane);
    }
};

// Returns zero in lane 0 after a record's loads are done. As part of a request's address it makes that request wait for
// them, like loads_done() but without a fence (m = 1, 4096 x 4096: 5.36 us, with a fence 5.62, with neither 5.35; no
// better in sm90_matmul_w4a16_m32.cu). Machine code waits for a load only where an instruction uses it, so the asm
// must not be empty; the scoreboard belongs to the warp, so lane 0 waits for all lanes. tools/early-release shows
// whether this still works.
__device__ inline uint32_t zero_after(const uint4 (&codes)[w4a16::record_blocks], uint2 scales, int lane) {
    static_assert(w4a16::record_blocks == 4);
    uint32_t zero;
    asm volatile(
        "{\n\t.reg .b32 t;\n\tlop3.b32 t, %1, %2, %3, 0xFE;\n\tlop3.b32 t, t, %4, %5, 0xFE;\n\t"
        "and.b32 %0, t, %6;\n\t}"
        : "=r"(zero)
        : "r"(codes[0].x), "r"(codes[1].x), "r"(codes[2].x), "r"(codes[3].x), "r"(scales.x), "r"(lane));
    return zero;
}

// w4a16::register_of with single operations: the compiler, which knows the bits that survive the mask, splits a
// rotation into up to four.
__device__ inline uint32_t decode_pair(const w4a16::GroupWords& words, int t) {
    if (t < 6) return w4a16::register_of(words, t);
    uint32_t spare, turned;
    asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(spare) : "r"(words.w0), "n"(w4a16::spare_mask), "r"(words.w1));
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(turned) : "r"(spare), "r"(t == 6 ? 8 : 14));
    return turned & w4a16::pair_mask;
}

// Returns the four registers of k-step j (a constant) of a 64-column block.
__device__ inline void decode_step(uint32_t* a, const uint4& codes, const ScalePairs& scales, int j) {
    const w4a16::GroupWords upper{codes.x, codes.y}, lower{codes.z, codes.w};
    a[0] = times(decode_pair(upper, 2 * j), scales.upper);
    a[1] = times(decode_pair(lower, 2 * j), scales.lower);
    a[2] = times(decode_pair(upper, 2 * j + 1), scales.upper);
    a[3] = times(decode_pair(lower, 2 * j + 1), scales.lower);
}

// Adds pairwise: ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)), so that a kernel with only 2^i of the chunks can
// pass on one sum.
template <int Count>
__device__ float tree_sum(const float (&v)[Count]) {
    if constexpr (Count == 1) {
        return v[0];
    } else {
        float half[Count / 2];
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) half[i] = v[2 * i] + v[2 * i + 1];
        return tree_sum(half);
    }
}

// Adding +0 turns -0 into +0: kernels differ in whether a chain starts by adding to +0.
__device__ inline float w4a16_scaled(float sum, float scale) { return fmaf(sum * scale, w4a16::unscale, 0.0f); }

__device__ inline float w4a16_output(float sum, const OutputFactors& f, int row) {
    const float scale = f.row_scales ? f.row_scales[row] : f.tensor_scale ? *f.tensor_scale : 1.0f;
    const float y = w4a16_scaled(sum, scale);
    return f.bias ? y + f.bias[row] : y;
}

}  // namespace nibble::cuda
