// The layout of NVFP4 and MXFP4 weights for the Hopper matrix products. Plain functions for prepack, kernels and tests.
//
// A record is 16 rows x 256 columns = 2304 contiguous bytes. The records of a 16-row tile are adjacent along K, tiles
// are adjacent along N. In each of a record's four blocks of 64 columns, lane = 4 g + c of a warp owns 16 bytes:
// columns 16 c ... 16 c + 15 of row g (words 0, 1) and of row g + 8 (words 2, 3), one scale group each. After the 2048
// bytes of codes come 8 scale bytes per lane: block 0 row g, block 0 row g + 8, block 1 row g ...
//
// A fragment of mma.m16n8k16 needs, per row, a register of columns {0, 1} + 4 j and one of {2, 3} + 4 j for k-step j:
// registers t = 0 ... 7 of a group are its column pairs in order. Columns of weights and activations are permuted this
// way inside blocks of 64.
#pragma once

#include "formats/minifloat.h"

#include <cstdint>

namespace nibble::w4a16 {

inline constexpr int record_rows = 16, record_cols = 256, record_blocks = 4;
inline constexpr int record_code_bytes = 2048, record_bytes = 2304;

// Two codes as BF16 values * 2^-126 (0.5 becomes a subnormal): sign to bit 15, magnitude to bits 8 ... 6.
inline constexpr uint32_t pair_mask = 0x81C081C0u;
NIBBLE_HD constexpr uint32_t pair_bits(uint32_t low, uint32_t high) {
    return ((low & 8u) << 12 | (low & 7u) << 6) | ((high & 8u) << 12 | (high & 7u) << 6) << 16;
}

struct GroupWords {
    uint32_t w0, w1;
};

NIBBLE_HD constexpr uint32_t rotate_left(uint32_t x, int n) { return n ? x << n | x >> (32 - n) : x; }

// A word holds three registers under pair_mask, rotated by 0, 4, 10 (w0) or 2, 6, 12 (w1). Their remaining bits, those
// of `spare_mask` in w0 and the others in w1, form a third word with two more registers, rotated by 8 and 14.
inline constexpr uint32_t spare_mask = 0x06030603u;
inline constexpr int w0_turns[3] = {0, 4, 10}, w1_turns[3] = {2, 6, 12}, spare_turns[2] = {8, 14};

// Returns register t of a group, 0 <= t < 8. t is a compile-time constant in kernels, which removes the branches.
NIBBLE_HD constexpr uint32_t register_of(GroupWords words, int t) {
    if (t < 3) return rotate_left(words.w0, t == 0 ? 0 : t == 1 ? 4 : 10) & pair_mask;
    if (t < 6) return rotate_left(words.w1, t == 3 ? 2 : t == 4 ? 6 : 12) & pair_mask;
    const uint32_t spare = (words.w0 & spare_mask) | (words.w1 & ~spare_mask);
    return rotate_left(spare, t == 6 ? 8 : 14) & pair_mask;
}

// Packs sixteen codes of a row, the first in the lowest nibble.
NIBBLE_HD constexpr GroupWords pack_group(uint64_t codes) {
    uint32_t r[8] = {};
    for (int t = 0; t < 8; ++t)
        r[t] = pair_bits(uint32_t(codes >> (8 * t)) & 15u, uint32_t(codes >> (8 * t + 4)) & 15u);
    const auto back = [](uint32_t x, int n) { return rotate_left(x, (32 - n) % 32); };
    const uint32_t spare = back(r[6], 8) | back(r[7], 14);
    return {r[0] | back(r[1], 4) | back(r[2], 10) | (spare & spare_mask),
            back(r[3], 2) | back(r[4], 6) | back(r[5], 12) | (spare & ~spare_mask)};
}

NIBBLE_HD constexpr uint64_t unpack_group(GroupWords words) {
    uint64_t codes = 0;
    for (int t = 0; t < 8; ++t) {
        const uint32_t r = register_of(words, t);
        for (int h = 0; h < 2; ++h) {
            const uint32_t half = r >> (16 * h) & 0xFFFFu;
            codes |= uint64_t{(half >> 12 & 8u) | (half >> 6 & 7u)} << (8 * t + 4 * h);
        }
    }
    return codes;
}

// Block scales: the values 1 ... 126 of E4M3, positive and finite. scale * 2^119 is a normal BF16 number whose upper
// three exponent bits are ones, so one byte, repeated, gives its pattern after one AND and one OR:
//   byte = [e0 m2 m1 m0 e4 e3 e2 e1], BF16 = 0 111 e4 e3 e2 e1 e0 m2 m1 m0 0000
// The product with a code's register is code * scale * 2^-7, exact (at most 6 significant bits).
NIBBLE_HD constexpr bool packable_scale(uint8_t scale) { return scale >= 1 && scale <= 126; }

NIBBLE_HD constexpr uint8_t pack_scale(uint8_t scale) {
    const uint32_t bits = float_bits(e4m3_to_float(scale) * 0x1p119f) >> 20;  // 0 111 eeeee mmm
    return static_cast<uint8_t>((bits & 0x0Fu) << 4 | (bits >> 4 & 0x0Fu));
}
inline constexpr uint32_t scale_and = 0x0FF00FF0u, scale_or = 0x70007000u;

// Returns scale * 2^119 in BF16, twice, from the packed byte repeated in all four bytes.
NIBBLE_HD constexpr uint32_t scale_pair(uint32_t byte_four_times) { return (byte_four_times & scale_and) | scale_or; }

// MXFP4: a block of 32 is two groups with the same byte. E8M0 scales 2^-118 ... 2^8 are stored with the same factor
// 2^119: the byte is the BF16 exponent of scale * 2^119 rotated right by one, so that two adjacent copies contain it in
// place.
inline constexpr uint32_t mx_scale_and = 0x7F807F80u, mx_scale_or = 0;
NIBBLE_HD constexpr bool packable_mx_scale(uint8_t scale) { return scale >= 9 && scale <= 135; }
NIBBLE_HD constexpr uint8_t pack_mx_scale(uint8_t scale) {
    const uint32_t exponent = scale + 119u;
    return static_cast<uint8_t>(exponent >> 1 | (exponent & 1u) << 7);
}
NIBBLE_HD constexpr uint32_t mx_scale_pair(uint32_t byte_four_times) { return byte_four_times & mx_scale_and; }
NIBBLE_HD constexpr uint8_t unpack_mx_scale(uint8_t packed) {
    return static_cast<uint8_t>(((uint32_t{packed} << 1 | packed >> 7) & 0xFFu) - 119u);
}

NIBBLE_HD constexpr uint8_t unpack_scale(uint8_t packed) {
    const uint32_t pair = scale_pair(packed * 0x01010101u);
    return e4m3_from_float(bf16_to_float(static_cast<uint16_t>(pair)) * 0x1p-119f);
}

// Cancels the factors 2^-126 of codes and 2^119 of scales.
inline constexpr float unscale = 128.0f;

}  // namespace nibble::w4a16
