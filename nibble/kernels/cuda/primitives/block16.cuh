// Sixteen consecutive elements of a row, the unit that one thread reads, and arithmetic shared by all quantizing
// kernels.
//
// A block of 16 is one thread, a block of 32 is two adjacent lanes, a group of 1 x 128 is eight lanes.
#pragma once

#include "formats/minifloat.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace nibble::cuda {

inline constexpr int chunk = 16;

struct Bf16 {};  // names of the two input types; elements are read as raw bits
struct F32 {};
template <class Input>
inline constexpr bool is_f32 = false;
template <>
inline constexpr bool is_f32<F32> = true;

// Returns one element from memory.
template <class Input>
__device__ float element_at(const uint8_t* chunk_at, int i);
template <>
__device__ inline float element_at<Bf16>(const uint8_t* at, int i) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(at)[i]);
}
template <>
__device__ inline float element_at<F32>(const uint8_t* at, int i) {
    return reinterpret_cast<const float*>(at)[i];
}

// Returns the element as it is encoded; see Chunk::round().
template <class Input>
__device__ float code_source(const uint8_t* at, int i, bool kept);
template <>
__device__ inline float code_source<Bf16>(const uint8_t* at, int i, bool) {
    return element_at<Bf16>(at, i);
}
template <>
__device__ inline float code_source<F32>(const uint8_t* at, int i, bool kept) {
    const float x = element_at<F32>(at, i);
    return kept ? x : round_to_bf16(x);
}

template <class Input>
struct Chunk;

// Pairs of BF16 as in memory: the even element is in the low half.
template <>
struct Chunk<Bf16> {
    static constexpr int bytes = 32;
    uint32_t pair[8];

    __device__ void load(const uint8_t* at) {
        const uint4* p = reinterpret_cast<const uint4*>(at);
        const uint4 a = __ldcs(p), b = __ldcs(p + 1);
        pair[0] = a.x, pair[1] = a.y, pair[2] = a.z, pair[3] = a.w;
        pair[4] = b.x, pair[5] = b.y, pair[6] = b.z, pair[7] = b.w;
    }
    __device__ void clear() {
#pragma unroll
        for (uint32_t& p : pair) p = 0;
    }
    // Codes are made from BF16 weights even if scales were chosen from FP32; `kept`: from the FP32 weights unchanged.
    __device__ void round(bool) {}

    __device__ float value(int i) const {
        return __uint_as_float(i % 2 ? pair[i / 2] & 0xFFFF0000u : pair[i / 2] << 16);
    }
    __device__ float magnitude(int i) const { return fabsf(value(i)); }

    // Returns the largest magnitude as bits, which order NaN and infinity above all finite values.
    __device__ uint32_t amax_bits() const {
        uint32_t m = pair[0] & 0x7FFF7FFFu;
#pragma unroll
        for (int i = 1; i < 8; ++i) m = __vmaxu2(m, pair[i] & 0x7FFF7FFFu);
        return max(m & 0xFFFF0000u, m << 16);
    }
    // The same for finite elements, with half the instructions.
    __device__ float amax() const {
        const auto* x = reinterpret_cast<const __nv_bfloat162*>(pair);
        __nv_bfloat162 m = __habs2(x[0]);
#pragma unroll
        for (int i = 1; i < 8; ++i) m = __hmax2(m, __habs2(x[i]));
        return __bfloat162float(__hmax(m.x, m.y));
    }

    // Returns, in bit 3 of each nibble for elements 8 * half + 0 ... 7, the sign of x + addend (an addition in BF16).
    //   addend +0: x < 0 (-0 becomes +0);   addend -2^-133, the smallest subnormal: not x > 0.
    template <uint16_t Addend>
    __device__ uint32_t sign_nibbles(int half) const {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const __nv_bfloat162 x = *reinterpret_cast<const __nv_bfloat162*>(&pair[4 * half + i]);
            const __nv_bfloat162 y = __hadd2(x, __nv_bfloat162(__nv_bfloat16_raw{Addend}, __nv_bfloat16_raw{Addend}));
            w[i] = *reinterpret_cast<const uint32_t*>(&y);
        }
        // The sign bytes of elements 0 2 1 3 and 4 6 5 7, then of 0 2 4 6 and 1 3 5 7.
        const uint32_t a = __byte_perm(w[0], w[1], 0x7351), b = __byte_perm(w[2], w[3], 0x7351);
        const uint32_t even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
        return ((even >> 4) & 0x08080808u) | (odd & 0x80808080u);
    }
    // Quotients by a safe divisor keep their sign (safe_divisor_max).
    __device__ uint32_t negative_nibbles(int half, float = 0.0f) const { return sign_nibbles<0x0000>(half); }
    __device__ uint32_t not_positive_nibbles(int half) const { return sign_nibbles<0x8001>(half); }
};

template <>
struct Chunk<F32> {
    static constexpr int bytes = 64;
    float x[16];

    __device__ void load(const uint8_t* at) {
        const float4* p = reinterpret_cast<const float4*>(at);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 v = __ldcs(p + i);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
    }
    __device__ void clear() {
#pragma unroll
        for (float& v : x) v = 0.0f;
    }
    __device__ void round(bool kept) {
        if (kept) return;
#pragma unroll
        for (float& v : x) v = __bfloat162float(__float2bfloat16_rn(v));
    }
    __device__ float value(int i) const { return x[i]; }
    __device__ float magnitude(int i) const { return fabsf(x[i]); }
    __device__ uint32_t amax_bits() const {
        uint32_t m = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) m = max(m, __float_as_uint(x[i]) & 0x7FFFFFFFu);
        return m;
    }
    __device__ float amax() const { return __uint_as_float(amax_bits()); }
    // Returns the signs of x / divisor, which loses its sign if it underflows to -0: |x| <= divisor * 2^-150, including
    // the tie. Such x are subnormal, so scaling by 2^149 is exact for them; other x may overflow. Divisor 0: returns
    // the signs of x.
    __device__ uint32_t negative_nibbles(int half, float divisor = 0.0f) const {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float steps = -x[8 * half + i] * 0x1p100f * 0x1p49f;
            n |= (steps > 0.5f * divisor ? 8u : 0u) << (4 * i);
        }
        return n;
    }
    __device__ uint32_t not_positive_nibbles(int half) const {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) n |= (x[8 * half + i] > 0.0f ? 0u : 8u) << (4 * i);
        return n;
    }
};

// ---- Correctly rounded quotients by a shared divisor --------------------------------------------------------------
//
// With r the correctly rounded 1/d and q = x * r, one residual gives the correctly rounded x / d (Markstein), as long
// as d and the residual are normal numbers. `safe_divisor` is that range with a margin for quotients that matter: a
// quotient far below the smallest code rounds to zero in any case, but its sign must survive, which bounds d from
// above. x >= 0: the residual of -0 would lose its sign.
inline constexpr float safe_divisor_min = 1e-18f, safe_divisor_max = 65536.0f;

__device__ inline bool safe_divisor(float d) { return d >= safe_divisor_min && d <= safe_divisor_max; }

struct Divisor {
    float d, r;

    // r is correct for safe divisors only: the approximation is within one ulp, and one Newton step rounds it
    // correctly.
    __device__ explicit Divisor(float divisor) : d(divisor) {
        float y;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(divisor));
        r = fmaf(y, fmaf(-divisor, y, 1.0f), y);
    }
    __device__ float quotient(float x) const {
        const float q = x * r;
        return fmaf(fmaf(-q, d, x), r, q);
    }
};

// ---- E2M1 ----------------------------------------------------------------------------------------------------------

// Returns the magnitude code of t in [0, 7) plus `e2m1_bias`. Rounding to steps of 1/2, 1 and 2 is one FP32 addition
// each; the smallest result is the code. Ties go to even without comparisons.
inline constexpr float e2m1_magic = 6291456.0f;  // 1.5 * 2^22: ulp 1/2
inline constexpr uint32_t e2m1_bias = float_bits(e2m1_magic);

__device__ inline uint32_t e2m1_biased_code(float t) {
    const uint32_t a = __float_as_uint(t + e2m1_magic);
    const uint32_t b = __float_as_uint(fmaf(t, 0.5f, e2m1_magic + 1.0f));
    const uint32_t c = __float_as_uint(fmaf(t, 0.25f, e2m1_magic + 2.0f));
    return min(min(a, b), c);
}

// Packs eight codes without signs, the first in the lowest nibble. quotient(i) is in [0, 7).
template <class Quotient>
__device__ uint32_t e2m1_pack8(Quotient quotient) {
    uint32_t packed = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) packed = packed * 16u + e2m1_biased_code(quotient(i));
    return packed - 0x11111111u * e2m1_bias;
}

// ---- E4M3 ----------------------------------------------------------------------------------------------------------

// Packs four codes, saturating at 448. Arguments are finite.
__device__ inline uint32_t e4m3_pack4(float a, float b, float c, float d) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

__device__ inline uint8_t e4m3_code(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

__device__ inline float e4m3_value(uint8_t code) { return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)); }

}  // namespace nibble::cuda
