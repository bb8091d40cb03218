// The block formats of GGUF: decoders of one block to FP32, and the encoders for writing GGUF. All numbers are
// little-endian; d and m are FP16 scales. Arithmetic is FP32 in the order written, so results equal ggml's reference
// decoder and gguf-py bit for bit: a product of a scale and an integer is exact in 24 bits, only additions round.
// Source: ggml-common.h and ggml-quants.c.
//
//   type   elements bytes  layout
//   Q4_0   32       18     d, 16 nibble pairs                        y = (q - 8) * d
//   Q4_1   32       20     d, m, 16 nibble pairs                     y = q*d + m
//   Q5_0   32       22     d, 32 high bits, 16 nibble pairs          y = (q - 16) * d
//   Q5_1   32       24     d, m, 32 high bits, 16 nibble pairs       y = q*d + m
//   Q8_0   32       34     d, 32 int8                                y = q*d
//   MXFP4  32       17     E8M0 exponent, 16 nibble pairs            y = e2m1 * 2^(e - 127)
//   NVFP4  64       36     4 E4M3 scales, 4 x 8 nibble pairs         y = e2m1 * e4m3      (16 elements per scale)
//   Q2_K   256      84     16 (scale, min) nibbles, 2-bit codes, d, dmin
//   Q3_K   256      110    high bits, 2-bit codes, 16 6-bit scales, d
//   Q4_K   256      144    d, dmin, 8 6-bit (scale, min), nibble pairs
// Q5_K   256      176    like Q4_K, with high bits
//   Q6_K   256      210    low nibbles, high bit pairs, 16 int8 scales, d
//
// Nibble pairs are split by half blocks: byte j holds element j in its low nibble and element j + n/2 in its high
// nibble (n = 32, or 16 for NVFP4). nibble's canonical codes and the safetensors dialects hold elements 2j and 2j+1
// instead.
#pragma once

#include "formats/minifloat.h"

namespace nibble {

namespace ggml_detail {

constexpr float fp16_at(const uint8_t* p) { return fp16_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Minus zero decodes to plus zero in ggml's integer table (code 8), unlike e2m1_to_float.
constexpr float e2m1_value(uint8_t code) { return (code & 15u) == 8 ? 0.0f : e2m1_to_float(code & 15u); }

// The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K, 8 of each in 12 bytes.
struct ScaleMin {
    uint8_t scale, min;
};
constexpr ScaleMin k_scale_min(const uint8_t* s, int j) {
    if (j < 4) return {static_cast<uint8_t>(s[j] & 63), static_cast<uint8_t>(s[j + 4] & 63)};
    return {static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4),
            static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4)};
}

// The signed 6-bit scale j of Q3_K, 16 in 12 bytes: low nibbles in bytes 0..7, high pairs in bytes 8..11.
constexpr int q3k_scale(const uint8_t* s, int j) {
    const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return (low | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

}  // namespace ggml_detail

// decode_X reads one block of X and writes its elements.

constexpr void decode_q4_0(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block);
    for (int j = 0; j < 16; ++j) {
        y[j] = static_cast<float>((block[2 + j] & 15) - 8) * d;
        y[j + 16] = static_cast<float>((block[2 + j] >> 4) - 8) * d;
    }
}

constexpr void decode_q4_1(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block), m = ggml_detail::fp16_at(block + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = static_cast<float>(block[4 + j] & 15) * d + m;
        y[j + 16] = static_cast<float>(block[4 + j] >> 4) * d + m;
    }
}

constexpr void decode_q5_0(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block);
    for (int i = 0; i < 32; ++i) {
        const int low = block[6 + i % 16] >> (i < 16 ? 0 : 4) & 15, high = block[2 + i / 8] >> i % 8 & 1;
        y[i] = static_cast<float>((low | high << 4) - 16) * d;
    }
}

constexpr void decode_q5_1(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block), m = ggml_detail::fp16_at(block + 2);
    for (int i = 0; i < 32; ++i) {
        const int low = block[8 + i % 16] >> (i < 16 ? 0 : 4) & 15, high = block[4 + i / 8] >> i % 8 & 1;
        y[i] = static_cast<float>(low | high << 4) * d + m;
    }
}

constexpr void decode_q8_0(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block);
    for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

constexpr void decode_q2_k(const uint8_t* block, float* y) {
    const uint8_t *scales = block, *codes = block + 16;
    const float d = ggml_detail::fp16_at(block + 80), dmin = ggml_detail::fp16_at(block + 82);
    for (int i = 0; i < 256; ++i) {  // 32 bytes hold four runs of 32: bits 0-1, 2-3, 4-5, 6-7
        const int q = codes[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
        const uint8_t s = scales[i / 16];
        y[i] = (d * static_cast<float>(s & 15)) * static_cast<float>(q) - dmin * static_cast<float>(s >> 4);
    }
}

constexpr void decode_q3_k(const uint8_t* block, float* y) {
    const uint8_t *high = block, *codes = block + 32, *scales = block + 96;
    const float d = ggml_detail::fp16_at(block + 108);
    for (int i = 0; i < 256; ++i) {  // a clear high bit subtracts 4
        const int low = codes[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
        const int q = low - (high[i % 32] >> i / 32 & 1 ? 0 : 4);
        y[i] = (d * static_cast<float>(ggml_detail::q3k_scale(scales, i / 16))) * static_cast<float>(q);
    }
}

constexpr void decode_q4_k(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block), dmin = ggml_detail::fp16_at(block + 2);
    for (int j = 0; j < 8; ++j) {
        const auto [scale, min] = ggml_detail::k_scale_min(block + 4, j);
        const float dl = d * static_cast<float>(scale), ml = dmin * static_cast<float>(min);
        for (int l = 0; l < 32; ++l)
            y[32 * j + l] = dl * static_cast<float>(block[16 + j / 2 * 32 + l] >> (j % 2 * 4) & 15) - ml;
    }
}

constexpr void decode_q5_k(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block), dmin = ggml_detail::fp16_at(block + 2);
    for (int j = 0; j < 8; ++j) {
        const auto [scale, min] = ggml_detail::k_scale_min(block + 4, j);
        const float dl = d * static_cast<float>(scale), ml = dmin * static_cast<float>(min);
        for (int l = 0; l < 32; ++l) {
            const int low = block[48 + j / 2 * 32 + l] >> (j % 2 * 4) & 15, high = block[16 + l] >> j & 1;
            y[32 * j + l] = dl * static_cast<float>(low | high << 4) - ml;
        }
    }
}

constexpr void decode_q6_k(const uint8_t* block, float* y) {
    const float d = ggml_detail::fp16_at(block + 208);
    for (int i = 0; i < 256; ++i) {  // per half of 128: runs of 32 in low nibbles of 64 bytes, then in high nibbles
        const int half = i / 128, run = i / 32 % 4, l = i % 32;
        const int low = block[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        const int high = block[128 + half * 32 + l] >> 2 * run & 3;
        const float scale = static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
        y[i] = (d * scale) * static_cast<float>((low | high << 4) - 32);
    }
}

// From exponent 253 on, the largest codes overflow to infinity. ggml's decoder gives exponent 255 no special meaning.
constexpr void decode_mxfp4(const uint8_t* block, float* y) {
    // ggml multiplies doubled codes by half the scale, 2^(e - 128), which stays finite at 255 and is subnormal at 0
    // and 1.
    const float half =
        block[0] < 2 ? float_from_bits(0x00200000u << block[0]) : float_from_bits(uint32_t(block[0] - 1) << 23);
    for (int j = 0; j < 16; ++j) {
        y[j] = ggml_detail::e2m1_value(block[1 + j] & 15) * 2.0f * half;
        y[j + 16] = ggml_detail::e2m1_value(block[1 + j] >> 4) * 2.0f * half;
    }
}

// Multiplies the block scale by the tensor's `.scale` first, as everywhere in nibble (formats/nvfp4.h). With a tensor
// scale of 1 the bits equal those of ggml's CPU decoder: bit 7 of a block scale is ignored, and 0x7F (E4M3's NaN) is
// zero.
constexpr void decode_nvfp4(const uint8_t* block, float* y, float tensor_scale = 1.0f) {
    for (int s = 0; s < 4; ++s) {
        const float scale =
            block[s] == e4m3_nan_code ? 0.0f : MiniFloat<4, 3>::magnitude_value(block[s] & 0x7Fu) * tensor_scale;
        for (int j = 0; j < 8; ++j) {
            const uint8_t pair = block[4 + 8 * s + j];
            y[16 * s + j] = ggml_detail::e2m1_value(pair & 15) * scale;
            y[16 * s + j + 8] = ggml_detail::e2m1_value(pair >> 4) * scale;
        }
    }
}

// ---- Packing -----------------------------------------------------------------------------------------------------

// split_nibbles() converts n canonical codes (16 or 32; byte t holds elements 2t low, 2t+1 high) to half-block pairs;
// join_nibbles() is its inverse.
template <int n>
constexpr void split_nibbles(const uint8_t* canonical, uint8_t* pairs) {
    const auto element = [&](int i) { return canonical[i / 2] >> (i % 2 * 4) & 15; };
    for (int j = 0; j < n / 2; ++j) pairs[j] = static_cast<uint8_t>(element(j) | element(j + n / 2) << 4);
}

template <int n>
constexpr void join_nibbles(const uint8_t* pairs, uint8_t* canonical) {
    const auto element = [&](int i) { return i < n / 2 ? pairs[i] & 15 : pairs[i - n / 2] >> 4; };
    for (int t = 0; t < n / 2; ++t) canonical[t] = static_cast<uint8_t>(element(2 * t) | element(2 * t + 1) << 4);
}

// Packs 64 elements, 32 bytes of canonical codes and 4 E4M3 scales (non-negative, not NaN), into a block of 36 bytes.
// Clears bit 7 of the scales, which ggml's CPU and CUDA decoders read differently; everything else is lossless.
constexpr void pack_nvfp4(const uint8_t* codes, const uint8_t* scales, uint8_t* block) {
    for (int s = 0; s < 4; ++s) {
        block[s] = scales[s] & 0x7F;
        split_nibbles<16>(codes + 8 * s, block + 4 + 8 * s);
    }
}

constexpr void unpack_nvfp4(const uint8_t* block, uint8_t* codes, uint8_t* scales) {
    for (int s = 0; s < 4; ++s) {
        scales[s] = block[s];
        join_nibbles<16>(block + 4 + 8 * s, codes + 8 * s);
    }
}

// Packs 32 elements, 16 bytes of canonical codes and the E8M0 exponent, into a block of 17 bytes.
constexpr void pack_mxfp4(const uint8_t* codes, uint8_t exponent, uint8_t* block) {
    block[0] = exponent;
    split_nibbles<32>(codes, block + 1);
}

constexpr void unpack_mxfp4(const uint8_t* block, uint8_t* codes, uint8_t* exponent) {
    *exponent = block[0];
    join_nibbles<32>(block + 1, codes);
}

}  // namespace nibble
