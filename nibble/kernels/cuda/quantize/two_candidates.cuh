// Ranks two block scales (four over six) by exact integer sums, and computes the codes on the way.
//
// With g the grid value of x under the scale s, the loss of a block is sum x^2 - 2 s sum x g + s^2 sum g^2, so only the
// last two sums decide. Both are exact: in units of 2^-14 of the binade of the block's maximum every BF16 weight whose
// code is not zero is an integer below 2^15 (scales do not clip much, so such a weight is at least 1/26 of the
// maximum), and 2g is one of 0 1 2 3 4 6 8 12. Packed codes select the bytes 2g, four elements an instruction; dot
// products of bytes and of 16-bit words add them up.
//
// Codes are rounded products x * (1/s) instead of rounded quotients x / s, without correction, and s is the scale that
// is stored with the codes, which differs slightly from the one inside the search. All three codes are equal for every
// BF16 x if they are equal on both sides of the seven positions where the code changes, for the eight mantissas of a
// block scale. Every thread block checks this (codes_agree). A tensor that fails uses the general path: it has a tie
// that rounds up in one way and down in the other, or its search is normalised by another maximum than its stored
// scale.
#pragma once

#include "formats/nvfp4.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/nvfp4_scale.cuh"

namespace nibble::cuda {

// Indexed by the E4M3 code of the block scale.
struct CandidateTable {
    float scale[128];    // inside the search: code * fake.down
    float inverse[128];  // 1 / (code * tensor_scale) by code, used for the codes
};

// Rounds |x| times the inverse of a scale to E2M1 in one step: the code plus e2m1_bias. Products are in [0, 7).
struct ProductCode {
    float r, half, quarter;

    __device__ explicit ProductCode(float inverse) : r(inverse), half(0.5f * inverse), quarter(0.25f * inverse) {}
    __device__ uint32_t operator()(float x) const {
        const uint32_t a = __float_as_uint(fmaf(x, r, e2m1_magic));
        const uint32_t b = __float_as_uint(fmaf(x, half, e2m1_magic + 1.0f));
        const uint32_t c = __float_as_uint(fmaf(x, quarter, e2m1_magic + 2.0f));
        return min(min(a, b), c);
    }
};

// Returns true if products and quotients with both scales give equal codes around one change of the code. `task` < 64
// selects a mantissa and a change (seven of eight numbers select one). Codes do not fall as x grows, so four BF16
// numbers around the change suffice.
__device__ inline bool codes_agree(int task, float tensor_scale, float fake_down) {
    constexpr float change[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 0.25f};
    const float mantissa = 1.0f + 0.125f * static_cast<float>(task / 8);
    const Divisor stored(mantissa * tensor_scale), searched(mantissa * fake_down);
    const ProductCode product(stored.r);
    const uint32_t around = __float_as_uint(change[task % 8] * stored.d) & 0xFFFF0000u;
    bool agree = true;
#pragma unroll 1
    for (int step = -1; step <= 2; ++step) {
        const float x = __uint_as_float(around + (static_cast<uint32_t>(step) << 16));
        const uint32_t code = product(x);
        agree = agree && code == e2m1_biased_code(stored.quotient(x)) && code == e2m1_biased_code(searched.quotient(x));
    }
    return agree;
}

// Called by 128 threads. Returns true if the table is complete and usable.
__device__ inline bool make_candidate_table(CandidateTable& table, float fake_down, const StaticScale& store) {
    const auto v = static_cast<int>(threadIdx.x);
    bool good = store.safe && safe_factor(fake_down);
    if (good && v >= 1 && v <= e4m3_max_code) {
        const float value = e4m3_value(static_cast<uint8_t>(v));
        table.scale[v] = value * fake_down;
        const Divisor by(value * store.tensor_scale);
        table.inverse[v] = by.r;
        good = safe_divisor(by.d);
    } else if (v < 128) {
        table.scale[v] = table.inverse[v] = 0.0f;
    }
    if (good && v < 64) good = codes_agree(v, store.tensor_scale, fake_down);
    return __syncthreads_and(good);
}

// Magnitudes as integers in units of `unit`, two per word.
struct FixedBlock {
    uint32_t pair[8];
    float unit;

    __device__ FixedBlock(const Chunk<Bf16>& w, float amax) {
        const uint32_t binade = __float_as_uint(amax) & 0x7F800000u;
        unit = __uint_as_float(binade - (14u << 23));
        const float per_unit = __uint_as_float(((254u + 14u) << 23) - binade);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t a = __float_as_uint(fmaf(w.magnitude(2 * i), per_unit, 8388608.0f));  // 2^23
            const uint32_t b = __float_as_uint(fmaf(w.magnitude(2 * i + 1), per_unit, 8388608.0f));
            pair[i] = __byte_perm(a, b, 0x5410);
        }
    }
};

struct Candidate {
    uint32_t half[2];  // magnitude codes
    float part;        // loss minus sum x^2
};

__device__ inline Candidate candidate(const Chunk<Bf16>& w, const FixedBlock& fixed, float scale, float inverse) {
    Candidate c;
    uint32_t cross = 0, square = 0;  // sums of x * 2g and (2g)^2
    const ProductCode code(inverse);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t packed = 0;
#pragma unroll
        for (int i = 7; i >= 0; --i) packed = packed * 16u + code(w.magnitude(8 * h + i));
        packed -= 0x11111111u * e2m1_bias;
        c.half[h] = packed;
        const uint32_t low = __byte_perm(0x03020100u, 0x0C080604u, packed);
        const uint32_t high = __byte_perm(0x03020100u, 0x0C080604u, packed >> 16);
        square = __dp4a(high, high, __dp4a(low, low, square));
        cross = __dp2a_hi(fixed.pair[4 * h + 1], low, __dp2a_lo(fixed.pair[4 * h], low, cross));
        cross = __dp2a_hi(fixed.pair[4 * h + 3], high, __dp2a_lo(fixed.pair[4 * h + 2], high, cross));
    }
    // Integers below 2^24.
    const float product = fixed.unit * static_cast<float>(cross);
    c.part = scale * fmaf(0.25f * scale, static_cast<float>(square), -product);
    return c;
}

// Returns -1 or 1 if the first or second has the smaller defined loss, 0 if the bounds do not decide. In units of
// scale^2 the defined loss L (at most 16) differs from the exact one by less than 2.9e-6 sqrt(L) + 3e-7 L: products g *
// s of up to 6 s, differences, squares and four levels of additions round in FP32. A part is off by three roundings.
__device__ inline int compare(const Candidate& a, const Candidate& b, float scale_a, float scale_b) {
    const float margin =
        fmaf(2.5e-7f, fabsf(a.part) + fabsf(b.part), 2e-5f * fmaf(scale_a, scale_a, scale_b * scale_b));
    const float difference = a.part - b.part;
    return fabsf(difference) > margin ? (difference > 0.0f ? 1 : -1) : 0;
}

}  // namespace nibble::cuda
